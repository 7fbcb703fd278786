"""Transpose tensors, also those whose elements share bytes. Constants become other constants."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.generic import element_of, empty, generic, loop_index, shape_of
from mxc.dialects.scalar_operations import bits_of
from mxc.dialects.sizes import size_of
from mxc.dialects.tensor_constants import codes_of, constant_tensor, is_constant
from mxc.passes.rewriting.split_loops import reassociation, reshape

_BYTE = 8
_NIBBLE = 4


def is_reshape(value: ir.Value, order: Sequence[int]) -> bool:
    """Whether a transpose to this order of dimensions is a reshape: sizes are static, and only
    dimensions of size 1 change their places among the others."""
    shape = shape_of(value)
    others = [axis for axis in order if shape[axis] != 1]
    return min(shape) > 0 and others != [] and others == sorted(others)


def is_movable(value: ir.Value, order: Sequence[int]) -> bool:
    """Whether `transposed` can transpose a tensor to this order of dimensions.

    Elements that share bytes must stay together, or be nibbles that again fill whole bytes.
    """
    bits = bits_of(element_of(value))
    if bits >= _BYTE or is_reshape(value, order):
        return True
    shape = shape_of(value)
    rows = shape[-1], shape[order[-1]]
    if min(rows) < 0 or any(bits * size % _BYTE for size in rows):
        return False
    return bits == _NIBBLE or order[-1] == len(shape) - 1


def transposed(value: ir.Value, order: Sequence[int]) -> ir.Value:
    """Transpose `value` at the insertion point; `is_movable` must be true.

    `order`: for each dimension of the result, the dimension of `value`.
    """
    if is_constant(value):
        return constant_tensor(codes_of(value).transpose(order), element_of(value))
    if is_reshape(value, order):
        return _reshaped(value, order)
    element, last = element_of(value), len(shape_of(value)) - 1
    if bits_of(element) < _BYTE and order[-1] != last:
        return _of_nibbles(value, order)
    packed = isinstance(element, ir.FloatType) and bits_of(element) <= _BYTE
    source = pack(value) if packed else value
    init = empty([size_of(source, axis) for axis in order], element_of(source))
    found = linalg.transpose(source, outs=[init], permutation=list(order)).results[0]
    return unpack(found, element) if packed else found


def _reshaped(value: ir.Value, order: Sequence[int]) -> ir.Value:
    """Move dimensions of size 1 without a copy: they are dropped, and added in their new places."""
    shape = shape_of(value)
    sizes: list[int | None] = [*shape]
    kept = [axis for axis in range(len(shape)) if shape[axis] != 1]
    dense = reshape(value, [[axis] if axis in kept else [] for axis in range(len(shape))], sizes)
    groups: list[list[int]] = [[]]
    for axis in order:
        if axis in kept and any(other in kept for other in groups[-1]):
            groups.append([])
        groups[-1].append(axis)
    return reshape(dense, groups, sizes)


def _of_nibbles(value: ir.Value, order: Sequence[int]) -> ir.Value:
    """Transpose 4-bit elements so that another dimension is the last: each byte of the result
    combines nibbles of two bytes."""
    i8 = ir.IntegerType.get_signless(_BYTE)
    last, inner = len(order) - 1, order[-1]
    # Bytes [.., D / 2, 2, .., C / 2] of elements [.., D, .., C] become [.., C / 2, 2, .., D / 2].
    loops = [[axis] for axis in range(last + 1)]
    loops[inner].append(last + 1)
    source = reshape(pack(value), loops, [*(None for _ in loops), 2])
    letters = list("abcdefgh"[: last + 1])
    read = list(letters)
    read[inner] += " p"
    write = [letters[axis] for axis in order]
    write[order.index(last)] += " t"
    output = " ".join(write)

    def shift(letter: str) -> ir.Value:
        place = arith.index_cast(i8, loop_index(f"{output} p", letter))
        return place * _NIBBLE

    def body(byte: ir.Value, made: ir.Value) -> ir.Value:
        code = byte >> shift("t") & 15
        return made | code << shift("p")

    found = generic([(source, " ".join(read))], output, i8, body, sizes={"t": 2})
    groups = [[axis] for axis in order]
    groups[order.index(last)].append(last + 1)
    shape = [shape_of(value)[axis] for axis in order[:-1]] + [shape_of(source)[inner]]
    kind = ir.RankedTensorType.get(shape, i8)
    return unpack(
        tensor.CollapseShapeOp(kind, found, reassociation(groups)).result, element_of(value)
    )
