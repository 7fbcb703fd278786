"""Constant tensors as numpy arrays, of numbers or of codes.

Numbers are the bits of integers as uint64 and the values of floats as float64.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects.boundary import unpack
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.named_operations import symbol_of
from mxc.dialects.scalar_operations import FLOATS, Array, bits_of
from mxc.dialects.sizes import RESHAPES

Codes = NDArray[Any]

#: Most elements of a constant that is read: a larger one is a weight, not a table.
_MOST = 1 << 16
#: The printed form of a dense attribute of many elements: its bytes.
_AS_BYTES = re.compile(r'dense<"0x([0-9A-Fa-f]*)">')
_BITCAST = "flow.tensor.bitcast"
_BYTE, _NIBBLE = 8, 4
#: Types whose memory the bindings expose.
_WITH_A_BUFFER = ("f64", "f32", "f16", "i64", "i32", "i16", "i8")
_NUMBERS = re.compile(r"0x[0-9A-Fa-f]+|-?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?")


def constant_of(value: ir.Value) -> Array | None:
    """The elements of a constant tensor, in its shape; None for other tensors and large constants.

    A tensor of one repeated element may have any size.
    """
    kind = value.type
    if isinstance(value, ir.BlockArgument) or not isinstance(kind, ir.RankedTensorType):
        return None
    op = value.owner
    if op.name == "util.global.load":
        attribute = _initial_value(op)
    elif op.name == "arith.constant":
        attribute = op.attributes["value"]
    else:
        return None
    if not isinstance(attribute, ir.DenseElementsAttr):
        return None
    element = kind.element_type
    if attribute.is_splat:
        number = splat_number(attribute.get_splat_value())
        dtype = np.float64 if isinstance(element, ir.FloatType) else np.uint64
        return None if number is None else np.broadcast_to(np.array(number, dtype), kind.shape)
    if math.prod(kind.shape) > _MOST:
        return None
    if not isinstance(element, ir.FloatType):
        if isinstance(element, ir.IntegerType) and element.width not in (1, 8, 16, 32, 64):
            return None
        mask = np.uint64((1 << int(getattr(element, "width", 64))) - 1)
        return np.array(attribute).astype(np.int64).view(np.uint64) & mask
    found = floats_of(attribute)
    return None if found is None else found.reshape(kind.shape)


def is_constant(value: ir.Value) -> bool:
    """Whether `codes_of` can read a tensor."""
    if isinstance(value, ir.BlockArgument) or not isinstance(value.type, ir.RankedTensorType):
        return False
    op, bits = value.owner, bits_of(element_of(value))
    if op.name in RESHAPES or op.name == _BITCAST:
        source = op.operands[0]
        same = bits == bits_of(element_of(source))
        nibbles = (bits_of(element_of(source)), bits) == (_BYTE, _NIBBLE)
        return (same or nibbles) and is_constant(source)
    return (
        op.name == "arith.constant"
        and isinstance(op.attributes["value"], ir.DenseElementsAttr)
        and bits in (_NIBBLE, _BYTE, 16, 32, 64)
    )


def codes_of(value: ir.Value) -> Codes:
    """The bits of each element of a tensor for which `is_constant` holds, in its shape: a byte per
    4-bit element, else an unsigned integer of the width of the element."""
    op, shape = value.owner, shape_of(value)
    if op.name in RESHAPES:
        return codes_of(op.operands[0]).reshape(shape)
    if op.name == _BITCAST:
        found = codes_of(op.operands[0])
        if bits_of(element_of(value)) == _NIBBLE != bits_of(element_of(op.operands[0])):
            found = np.stack([found & 15, found >> _NIBBLE], axis=-1)
        return found.reshape(shape)
    codes = codes_of_attribute(ir.DenseElementsAttr(op.attributes["value"]))
    return np.broadcast_to(codes, shape) if codes.size == 1 else codes.reshape(shape)


def codes_of_attribute(attribute: ir.DenseElementsAttr) -> Codes:
    """The codes of a dense attribute of elements of 4, 8, 16, 32 or 64 bits, in one dimension; a
    single code for a repeated element."""
    element = ir.RankedTensorType(attribute.type).element_type
    bits = bits_of(element)
    kind = np.dtype(f"u{max(bits, _BYTE) // _BYTE}")
    if str(element) in _WITH_A_BUFFER and not attribute.is_splat:
        return np.ascontiguousarray(np.array(attribute)).reshape(-1).view(kind)
    text = str(attribute)
    found = _AS_BYTES.match(text)
    if found is not None:
        return np.frombuffer(bytes.fromhex(found.group(1)), kind)
    floats = floats_of(attribute)
    if floats is not None:
        return floats.astype(FLOATS[str(element)]).view(kind)
    numbers = _NUMBERS.findall(text.rpartition(">")[0].rpartition(">")[0])
    return np.array([int(each, 0) & ((1 << bits) - 1) for each in numbers], kind)


def constant_tensor(codes: Codes, element: ir.Type) -> ir.Value:
    """Build a constant of codes in the form of `codes_of`; floats of at most 8 bits are stored as
    bytes and bitcast."""
    bits = bits_of(element)
    packed = isinstance(element, ir.FloatType) and bits <= _BYTE
    if packed and bits == _NIBBLE:
        codes = codes[..., 0::2] | codes[..., 1::2] << _NIBBLE
    kind = ir.IntegerType.get_signless(_BYTE) if packed else element
    stored = ir.RankedTensorType.get(list(codes.shape), kind)
    attribute = ir.DenseElementsAttr.get(np.ascontiguousarray(codes), type=stored)
    found = arith.constant(stored, attribute)
    return unpack(found, element) if packed else found


def splat_number(attribute: ir.Attribute) -> float | int | None:
    """The number of a scalar attribute: the bits of an integer, the value of a float."""
    if isinstance(attribute, ir.FloatAttr):
        return float(attribute.value)
    if isinstance(attribute, ir.BoolAttr):
        return int(attribute.value)
    if isinstance(attribute, ir.IntegerAttr):
        width = getattr(attribute.type, "width", 64)
        return int(attribute.value) & ((1 << width) - 1)
    return None


def floats_of(attribute: ir.DenseElementsAttr) -> Array | None:
    """The numbers of a dense attribute of floats, in one dimension; None for an unknown type.

    The bindings can read three float types only.
    """
    element = str(ir.RankedTensorType(attribute.type).element_type)
    if element not in FLOATS:
        return None
    text, kind = str(attribute), np.dtype(FLOATS[element])
    found = _AS_BYTES.match(text)
    if found is not None:
        raw = np.frombuffer(bytes.fromhex(found.group(1)), kind)
        return np.asarray(raw.astype(np.float64))
    numbers = _NUMBERS.findall(text.rpartition(">")[0].rpartition(">")[0])
    bits = f"u{kind.itemsize}"
    return np.array(
        [
            float(np.array(int(each, 16), bits).view(kind))
            if each.startswith("0x")
            else float(each)
            for each in numbers
        ]
    )


def _initial_value(load: ir.Operation) -> ir.Attribute | None:
    """The initial value of the immutable global that `load` reads; None for a mutable one."""
    module = load
    while module.parent is not None:
        module = module.parent.operation
    name = ir.FlatSymbolRefAttr(load.attributes["global"]).value
    for view in module.regions[0].blocks[0].operations:
        op = view.operation
        if op.name != "util.global" or symbol_of(op) != name:
            continue
        constant = "is_mutable" not in op.attributes and "initial_value" in op.attributes
        return op.attributes["initial_value"] if constant else None
    return None
