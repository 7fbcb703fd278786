"""How a side of a ring that waves do not share gets to them: straight from memory to registers.

In LDS every byte of it would be written once and read once, for nothing. A lane loads the pieces of
its rows that it would read there (staging.py), some stages before their use.

Its scales come the same way, those of half a span (staged_scales.py) at once. Group g wants those
that lie g k-steps of a stage after those of group 0: for one k-step a stage every other byte,
for two k-steps two bytes of four. Loads of group 1 begin as much later, so that all lanes find
theirs at the same places, op_sel selects them, and no lane moves a byte:

    byte of the load = byte of group 0 in the half + k-steps,   load = half - k-steps + g k-steps ..

A load begins early rather than late, so as not to end past the last row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.generic import constant
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.lanes import Lane
from mxc.passes.kernels.gpu.ring.staged_scales import HALF
from mxc.passes.kernels.gpu.ring.staging import PIECE, Layout, Pieces, fragment
from mxc.passes.kernels.vectors import below, bitcast, i8, index, of, part_of


class DirectSide:
    """Elements for one lane: `rows` has its row of each tile; loaded `ahead` pieces early."""

    def __init__(
        self, layout: Layout, lane: Lane, buffer: ir.Value, rows: list[ir.Value], ahead: int
    ) -> None:
        """At the insertion point: what is the same in all stages."""
        self.layout, self.ahead = layout, ahead
        self._lane, self._buffer = lane, buffer
        whole = layout.kind.blocks * layout.kind.block_bytes
        self._starts = [row * whole for row in rows]

    def load(
        self, tile: int, piece: tuple[int, int], stage: ir.Value, *, left: int | None
    ) -> ir.Value:
        """A piece of this lane's row of a tile. `left`: blocks that rows have, if not all."""
        first, across = piece
        inside = self._lane.group * (across * PIECE) + first * PIECE
        offset = self._starts[tile] + inside + stage * self.layout.row_bytes
        if left is not None:
            valid = below(inside, left * self.layout.kind.block_bytes)
            offset = arith.select(valid, offset, index(BEYOND))
        return vector.load(of(i8(), PIECE), self._buffer, [offset])

    def fragment(self, known: Pieces, tile: int, k_step: int) -> ir.Value:
        """The elements of a tile for a k-step."""
        return fragment(self.layout, known, tile, k_step)


class DirectScales:
    """Scales for one lane: `rows` has its row of each tile; loaded `ahead` halves early."""

    def __init__(
        self, layout: Layout, lane: Lane, buffer: ir.Value, rows: list[ir.Value], ahead: int
    ) -> None:
        """At the insertion point: what is the same in all halves."""
        self.ahead = ahead
        self._layout, self._buffer = layout, buffer
        self._own = lane.group * layout.k_steps
        self._starts = [row * (layout.kind.blocks // layout.scaled.shared) for row in rows]

    def loads(
        self, half: ir.Value, into: list[ir.Value], *, left: int | None
    ) -> list[Callable[[], None]]:
        """Load a half that is not the first one of all; or, with `left`, the first blocks of it."""
        if left is None and self._layout.scaled.shared == 1:
            return [partial(self._load, start, half, into) for start in self._starts]
        some = HALF if left is None else left
        return [partial(self._load_some, start, half, into, some) for start in self._starts]

    def _load(self, start: ir.Value, half: ir.Value, into: list[ir.Value]) -> None:
        at = start + self._own + half * HALF + -self._layout.k_steps
        into.append(vector.load(of(i8(), HALF), self._buffer, [at]))

    def _load_some(self, start: ir.Value, half: ir.Value, into: list[ir.Value], left: int) -> None:
        """One by one, the least scale for blocks that are not there."""
        scales = [constant(0, i8())] * HALF
        for k_step in range(K_STEPS):
            own = self._own + self._layout.block(k_step, 0)
            block = half * HALF + own
            at = start + block // self._layout.scaled.shared
            at = arith.select(below(own, left), at, index(BEYOND))
            loaded = vector.load(of(i8(), 1), self._buffer, [at])
            scales[self._byte(k_step)] = vector.extract(loaded, [], [0])
        into.append(vector.from_elements(of(i8(), HALF), scales))

    def _byte(self, k_step: int) -> int:
        """The byte of a half where a k-step finds its scale."""
        return self._layout.block(k_step, 0) + self._layout.k_steps

    def word(self, scales: ir.Value, k_step: int) -> tuple[ir.Value, int]:
        """Four scales, and which of them a k-step of the half takes."""
        word, chosen = divmod(self._byte(k_step), K_STEPS)
        return bitcast(
            part_of(scales, K_STEPS * word, K_STEPS), ir.Float8E8M0FNUType.get(), K_STEPS
        ), chosen
