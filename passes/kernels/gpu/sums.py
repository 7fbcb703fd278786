"""Sums of f32 over the lanes of a workgroup. Their order depends on the number of lanes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import barrier, shared, thread
from mxc.dialects.amdgpu_narrow import mirrored, neighbour
from mxc.passes.kernels.vectors import elements, equal, f32, i32, index, of, when

#: Number of lanes that DPP moves reach; f32 that are loaded from shared memory at once.
TOGETHER, _FOUR = 16, 4
#: DPP moves of an i32 between lanes. Adding after each of them gives every lane the sum of 8 lanes,
#: or of 16 with `OF_ALL`.
OF_EIGHT: tuple[Callable[[ir.Value], ir.Value], ...] = (
    lambda bits: neighbour(bits, 1),
    lambda bits: neighbour(bits, 2),
    lambda bits: mirrored(bits, TOGETHER // 2),
)
OF_ALL = (*OF_EIGHT, lambda bits: mirrored(bits, TOGETHER))


def over_lanes(
    value: ir.Value, moves: Sequence[Callable[[ir.Value], ir.Value]] = OF_ALL
) -> ir.Value:
    """Return, in each lane, the sum of an f32 over 16 lanes, or over those that `moves` reach."""
    for move in moves:
        other = arith.bitcast(f32(), move(arith.bitcast(i32(), value)))
        value = value + other
    return value


def over_workgroup(value: ir.Value, threads: int) -> ir.Value:
    """Return, in each lane, the sum of an f32 over all lanes of a workgroup.

    `threads`: the number of these lanes, a multiple of 64.
    """
    count, lane = threads // TOGETHER, thread()
    total, memory = over_lanes(value), shared([count], f32())
    first = equal(lane % TOGETHER, 0)
    with when(first):
        memref.StoreOp(total, memory, [lane // TOGETHER])
    barrier()
    whole = None
    for at in range(0, count, _FOUR):
        part = vector.load(of(f32(), _FOUR), memory, [index(at)], alignment=4 * _FOUR)
        whole = part if whole is None else whole + part
    return sum_of(whole)


def sum_of(values: ir.Value) -> ir.Value:
    """Return the sum of the elements of a vector, a power of two of them, by adding halves."""
    parts = elements(values)
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [a + b for a, b in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]
