"""Gathers of StableHLO, slices that begin at a computed place, and updates of such slices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.compiler.programs.reshape_groups import Size
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes, has_no_sign, numbers_of
from mxc.dialects.generic import generic, loop_index
from mxc.dialects.sizes import value_of

#: Lists of numbers in the attribute of a gather or a scatter, and the dimension of components.
_LISTS = re.compile(r"(\w+) = \[([\d, ]*)\]")
_VECTOR = re.compile(r"index_vector_dim = (\d+)")


def lists_of(op: ir.Operation, attribute: str) -> dict[str, list[int]]:
    """The lists of numbers in an attribute of dimensions."""
    found = _LISTS.findall(str(op.attributes[attribute]))
    return {name: numbers_of(each) for name, each in found}


class _Gather:
    """The attributes of a gather."""

    def __init__(self, op: ir.Operation) -> None:
        found = lists_of(op, "dimension_numbers")
        self.offset_dims = found.get("offset_dims", [])
        self.map = found.get("start_index_map", [])
        self.batching = found.get("operand_batching_dims", [])
        self.start_batching = found.get("start_indices_batching_dims", [])
        self.dropped = [*found.get("collapsed_slice_dims", []), *self.batching]
        vector = _VECTOR.search(str(op.attributes["dimension_numbers"]))
        #: The dimension of the places that has their components; that after the last one: one each.
        self.vector = int(vector[1]) if vector else 0


def gathered(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.gather` and `dynamic_gather`. At one place it is a slice."""
    value, start = list(op.operands)[:2]
    if has_no_sign(start):
        return None
    found, source = _Gather(op), ir.RankedTensorType(value.type)
    counts: list[tuple[Size, Callable[[], ir.Value]]] = []
    for axis in range(source.rank):
        if op.name == "stablehlo.gather":
            count = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))[axis]
            counts.append((Size(count), partial(value_of, count)))
        else:
            wanted = op.operands[2]
            counts.append((sizes.element(wanted, axis), partial(sizes.index, wanted, axis)))
    if ir.RankedTensorType(start.type).rank == 1 and not found.batching:
        offsets = {axis: sizes.index(start, number) for number, axis in enumerate(found.map)}
        return _slice(op, offsets, counts, found.dropped, sizes)
    return _gathered(op, found, [number for _, number in counts])


def _slice(
    op: ir.Operation,
    offsets: Mapping[int, ir.Value],
    counts: Sequence[tuple[Size, Callable[[], ir.Value]]],
    dropped: Sequence[int],
    sizes: DimensionSizes,
) -> ir.Value:
    """A part of the first operand, which begins so that it ends in time. `offsets`: of dimensions
    where it may begin elsewhere than at 0; `dropped`: dimensions that the result has not."""
    value, unknown = op.operands[0], ir.ShapedType.get_dynamic_size()
    starts, lengths, static, static_starts = [], [], [], []
    for axis, (size, count) in enumerate(counts):
        if axis in offsets:
            starts.append(_clamped(value, axis, offsets[axis], count()))
        static_starts.append(unknown if axis in offsets else 0)
        static.append(unknown if size.names else size.factor)
        if size.names:
            lengths.append(count())
    kind = ir.RankedTensorType(op.results[0].type)
    kept = [axis for axis in range(len(counts)) if axis not in dropped]
    shape = [static[axis] for axis in kept]
    result = tensor.ExtractSliceOp(
        ir.RankedTensorType.get(shape, kind.element_type),
        value,
        starts,
        lengths,
        [],
        static_offsets=static_starts,
        static_sizes=static,
        static_strides=[1] * len(counts),
    ).result
    if result.type != kind:
        result = tensor.cast(kind, result)
    sizes.record(result, [counts[axis][0] for axis in kept])
    return result


def _gathered(
    op: ir.Operation, found: _Gather, counts: Sequence[Callable[[], ir.Value]]
) -> ir.Value:
    """Elements of the first operand at several places, each of a result found by its index."""
    value, start = list(op.operands)[:2]
    kind, places = (ir.RankedTensorType(each.type) for each in (op.results[0], start))
    letters = [f"d{axis}" for axis in range(kind.rank)]
    output = " ".join(letters)
    batch = [axis for axis in range(kind.rank) if axis not in found.offset_dims]
    # The dimensions of the places without that of their components, in the order of the result.
    own = [axis for axis in range(places.rank) if axis != found.vector]
    batch_of = dict(zip(own, batch, strict=True))
    within = iter(found.offset_dims)
    offset_of = {axis: next(within) for axis in range(len(counts)) if axis not in found.dropped}
    lengths = [count() for count in counts]
    known: dict[str, int | ir.Value] = {}
    for axis, size in enumerate(kind.shape):
        known[letters[axis]] = size
        if size < 0:
            source = next((each for each, at in batch_of.items() if at == axis), None)
            known[letters[axis]] = (
                tensor.dim(start, value_of(source))
                if source is not None
                else lengths[next(each for each, at in offset_of.items() if at == axis)]
            )

    # A place of one number is an operand of the loops: so a lookup of rows is recognized.
    given = _numbers(start, found.vector) if len(found.map) == 1 else None

    def body(*number: ir.Value) -> ir.Value:
        loops = [loop_index(output, letter) for letter in letters]
        at = []
        for axis, length in enumerate(lengths):
            if axis in found.batching:
                source = found.start_batching[found.batching.index(axis)]
                at.append(loops[batch_of[source]])
                continue
            place = value_of(0)
            if axis in found.map:
                component = value_of(found.map.index(axis))
                where = [
                    component if each == found.vector else loops[batch_of[each]]
                    for each in range(places.rank)
                ]
                (own_place,) = number or (tensor.extract(start, where),)
                offset = arith.index_cast(ir.IndexType.get(), own_place)
                place = _clamped(value, axis, offset, length)
            if axis in offset_of:
                inside = loops[offset_of[axis]]
                place = arith.addi(place, inside) if axis in found.map else inside
            at.append(place)
        return tensor.extract(value, at)

    read = [] if given is None else [(given, " ".join(letters[batch_of[each]] for each in own))]
    return generic(read, output, kind.element_type, body, sizes=known)


def _numbers(start: ir.Value, vector: int) -> ir.Value | None:
    """Places of one number without the dimension of that number."""
    kind = ir.RankedTensorType(start.type)
    if vector == kind.rank:
        return start
    if kind.rank == 1 or kind.shape[vector] != 1:
        return None
    groups = [[axis] for axis in range(kind.rank) if axis != vector]
    groups[max(vector - 1, 0)].append(vector)
    groups = [sorted(group) for group in groups]
    shape = [size for axis, size in enumerate(kind.shape) if axis != vector]
    return tensor.collapse_shape(ir.RankedTensorType.get(shape, kind.element_type), start, groups)


def sliced(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.dynamic_slice`."""
    _, *starts = op.operands
    if any(map(has_no_sign, starts)):
        return None
    counts = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
    offsets = {axis: sizes.index(each, 0) for axis, each in enumerate(starts)}
    return _slice(
        op, offsets, [(Size(count), partial(value_of, count)) for count in counts], [], sizes
    )


def updated(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.dynamic_update_slice`."""
    value, part, *starts = op.operands
    if any(map(has_no_sign, starts)):
        return None
    kind, unknown = ir.RankedTensorType(part.type), ir.ShapedType.get_dynamic_size()
    counts = [
        tensor.dim(part, value_of(axis)) if size < 0 else value_of(size)
        for axis, size in enumerate(kind.shape)
    ]
    offsets = [
        _clamped(value, axis, sizes.index(each, 0), counts[axis])
        for axis, each in enumerate(starts)
    ]
    found = tensor.InsertSliceOp(
        part,
        value,
        offsets,
        [count for count, size in zip(counts, kind.shape, strict=True) if size < 0],
        [],
        static_offsets=[unknown] * kind.rank,
        static_sizes=kind.shape,
        static_strides=[1] * kind.rank,
    ).result
    sizes.record(found, sizes.of(value))
    return found


def _clamped(value: ir.Value, axis: int, offset: ir.Value, count: ir.Value) -> ir.Value:
    """Where a part of `count` elements begins, if it is to end in time."""
    most = arith.subi(tensor.dim(value, value_of(axis)), count)
    return arith.maxsi(arith.minsi(offset, most), value_of(0))
