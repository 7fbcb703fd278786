"""The boundary of a program: i8 bytes outside, elements and scales inside.

Types of less than 8 bits are not legal in the signature of a program. Packed tensors enter as bytes
and are reinterpreted inside by `flow.tensor.bitcast`, which moves nothing. Only this module knows
the packing in the IR: byte i of a row holds elements 2i (low nibble) and 2i + 1 (high nibble) of a
4-bit format; 6-bit elements are a little-endian bit stream. OCP MX 1.0 leaves both open; IREE's
codegen reads this packing.
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import flow

from mxc.dialects.sizes import dynamic_sizes


def unpack(value: ir.Value, element: ir.Type) -> ir.Value:
    """Reinterpret bytes as `element`: tensor [.., B] i8 -> tensor [.., B * 8 / width] `element`.

    With 4-bit elements [.., KO, 16] becomes [.., KO, 32]; with 8-bit types, including scales, the
    shape stays. Leading dimensions may be dynamic. Raises ValueError where the last dimension is
    dynamic or does not hold whole elements.
    """
    source = ir.RankedTensorType(value.type)
    if source.element_type != ir.IntegerType.get_signless(8):
        raise ValueError(f"packed bytes must be i8, got {source}")
    return _bitcast(value, source, element, width_from=8, width_to=_width(element))


def pack(value: ir.Value) -> ir.Value:
    """The inverse of `unpack`: tensor [.., N] of elements or scales -> tensor [.., bytes] i8."""
    source = ir.RankedTensorType(value.type)
    i8 = ir.IntegerType.get_signless(8)
    return _bitcast(value, source, i8, width_from=_width(source.element_type), width_to=8)


def _bitcast(
    value: ir.Value,
    source: ir.RankedTensorType,
    element: ir.Type,
    *,
    width_from: int,
    width_to: int,
) -> ir.Value:
    last = source.rank - 1
    if source.is_dynamic_dim(last):
        raise ValueError(f"the last dimension of {source} must be static to be read as {element}")
    bits = source.get_dim_size(last) * width_from
    if bits % width_to:
        raise ValueError(f"a row of {source} is {bits} bits, not a whole number of {element}")
    shape = [*list(source.shape)[:-1], bits // width_to]
    sizes = dynamic_sizes(value)
    target = ir.RankedTensorType.get(shape, element)
    return flow.TensorBitCastOp(target, value, sizes, sizes).result


def _width(element: ir.Type) -> int:
    if isinstance(element, ir.FloatType):
        return int(element.width)
    return int(ir.IntegerType(element).width)
