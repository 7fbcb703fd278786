"""Add up the pieces of decoded tokens, if each piece was computed by its own wave.

Each wave has stored, for its piece and each row, the sums of weights times values, then the maximum
and the total (sums.py). A lane here has four elements of a row. It adds the pieces that the token
attends to in their order, a few of them loaded at once. So the bits of the result do not depend on
which wave adds them, or when.

If there are counters, the wave that finishes last of those of a tile of rows adds the pieces
(gpu/last_wave.py), else a second kernel (`merge_pieces`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.dialects.amdgpu import bounded, thread
from mxc.dialects.dense_attention import LOWEST
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.gpu.attention.operands import extended, part
from mxc.passes.kernels.gpu.attention.shape import MERGED, TAIL, TILE, GpuAttention, pieces_between
from mxc.passes.kernels.gpu.attention.softmax import number, rounded, zero
from mxc.passes.kernels.gpu.attention.sums import Sums
from mxc.passes.kernels.gpu.attention.wave import Wave
from mxc.passes.kernels.gpu.bounded_views import flat
from mxc.passes.kernels.gpu.lanes import at_most, long
from mxc.passes.kernels.gpu.last_wave import last_wave
from mxc.passes.kernels.runs import first_seen, read_run
from mxc.passes.kernels.vectors import below, equal, f32, index, loop, of, when

#: Pieces that are loaded at once.
_PIECES = 8


def merge_pieces(shape: GpuAttention, buffers: Sequence[ir.Value]) -> None:
    """Build the body of the second kernel, over the memrefs of `merged_buffers`."""
    parts, sinks, runs, result = buffers
    run = read_run(runs, workgroup(1))
    quads = shape.mixed // TAIL
    own = workgroup(0) * MERGED + thread()
    decoded = equal(run.tokens, 1)
    with when(decoded & below(own, shape.heads * shape.group * quads)):
        at = own % quads * TAIL
        member = own // quads % shape.group
        head = own // (quads * shape.group)
        count = pieces_between(first_seen(shape.reach, run.before), run.before)
        pieces = _Pieces(shape, parts, sinks, result, run.number, run.first, count)
        pieces.merge(head, member, at)


def merge_when_last(
    shape: GpuAttention, buffers: Sequence[ir.Value], own: Wave, lane: ir.Value
) -> None:
    """Add up all pieces of a tile of rows, if this wave is the last one to have stored its piece.

    `own`: the rows of this wave. `lane`: number of the lane in the wave, an index.
    """
    *_, sinks, _, _, counters, parts, result = buffers
    with when(own.apart):
        head = workgroup(0) // shape.slices
        count = pieces_between(first_seen(shape.reach, own.position), own.position)
        row = head * shape.group + long(own.skipped)
        place = long(own.token) * (shape.heads * shape.group) + row
        with last_wave(flat(counters), place, lane, count * shape.slices + -1):
            pieces = _Pieces(
                shape, parts, sinks, result, long(own.run), long(own.token), long(count)
            )
            quads = shape.mixed // TAIL
            rows = arith.minui(own.rows, own.skipped + TILE)
            rows = long(rows - own.skipped)
            with loop(lane, rows * quads, index(shape.lanes)) as (each, _, _):
                member = long(own.skipped) + each // quads
                pieces.merge(head, member, each % quads * TAIL)


@dataclass(frozen=True)
class _Pieces:
    """The `count` pieces of the `token` that run `run` decodes (all three are index values), in the
    memref `parts`; `sinks` and `result` are memrefs of the kernel too."""

    shape: GpuAttention
    parts: ir.Value
    sinks: ir.Value
    result: ir.Value
    run: ir.Value
    token: ir.Value
    count: ir.Value

    def merge(self, head: ir.Value, member: ir.Value, at: ir.Value) -> None:
        """Add up the pieces for four elements of a row, from `at` on, and store the result."""
        shape = self.shape
        with loop(index(0), self.count, index(_PIECES), Sums.none([zero(TAIL)]).all) as (
            start,
            carried,
            op,
        ):
            (sums,) = Sums.each(carried, 1)
            numbers = [start + n for n in range(_PIECES)]
            last = self.count + -1
            loaded = [self._load(at_most(each, last), head, member, at) for each in numbers]
            for number_of, some in zip(numbers, loaded, strict=True):
                there = below(number_of, self.count)
                maximum = arith.select(there, some.maximum, number(LOWEST))
                total = arith.select(there, some.total, number(0.0))
                values = arith.select(there, some.values[0], zero(TAIL))
                sums = sums.plus(Sums(maximum, total, [values]), careful=True)
            scf.YieldOp(sums.all)
        (sums,) = Sums.each(list(op.results), 1)
        sink = extended(memref.LoadOp(self.sinks, [head, member]).result)
        (whole,) = sums.finished(sink)
        vector.store(rounded(whole, shape.result), self.result, [self.token, head, member, at])

    def _load(self, piece: ir.Value, head: ir.Value, member: ir.Value, at: ir.Value) -> Sums:
        """Load the sums of a piece: its maximum and total, and four elements from `at` on."""
        shape = self.shape
        place = piece * value_of(shape.runs) + self.run
        begin = [place, index(0), index(0), index(0)]
        sizes = [1, shape.heads, shape.group, shape.mixed + TAIL]
        left = bounded(part(self.parts, begin, sizes, kept=(1, 2, 3)))
        kind = of(f32(), TAIL)
        values = vector.load(kind, left, [head, member, at])
        tail = vector.load(kind, left, [head, member, index(shape.mixed)])
        maximum, total = (vector.extract(tail, [], [n]) for n in range(2))
        return Sums(maximum, total, [values])
