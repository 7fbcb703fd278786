"""Constant tensors as numpy arrays: bits of integers as uint64, values of floats as float64."""

from __future__ import annotations

import math
import re

import numpy as np
from iree.compiler import ir

from mxc.dialects.scalar_operations import FLOATS, Array

#: Elements up to which a constant is read: above, it is a weight and no table.
_MOST = 1 << 16
#: A dense attribute of many elements is printed as its bytes.
_AS_BYTES = re.compile(r'dense<"0x([0-9A-Fa-f]*)">')
_NUMBERS = re.compile(r"0x[0-9A-Fa-f]+|-?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?")


def constant_of(value: ir.Value) -> Array | None:
    """The elements of a constant tensor, in its shape; None where it is none, or a large one.

    A tensor of one repeated element has any size.
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


def splat_number(attribute: ir.Attribute) -> float | int | None:
    """The number of a scalar attribute: the bits of an integer, the value of a float."""
    if isinstance(attribute, ir.FloatAttr):
        return float(attribute.value)
    if isinstance(attribute, ir.IntegerAttr):
        width = getattr(attribute.type, "width", 64)
        return int(attribute.value) & ((1 << width) - 1)
    return None


def floats_of(attribute: ir.DenseElementsAttr) -> Array | None:
    """The numbers of a dense attribute of floats, in one dimension; None for an unknown type.

    The bindings read three float types alone.
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
    """What an immutable global begins with."""
    module = load
    while module.parent is not None:
        module = module.parent.operation
    name = ir.FlatSymbolRefAttr(load.attributes["global"]).value
    for view in module.regions[0].blocks[0].operations:
        op = view.operation
        if op.name != "util.global" or ir.StringAttr(op.attributes["sym_name"]).value != name:
            continue
        constant = "is_mutable" not in op.attributes and "initial_value" in op.attributes
        return op.attributes["initial_value"] if constant else None
    return None
