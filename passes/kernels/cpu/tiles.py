"""The contraction on tiles (kernels/amx.py) as a CPU kernel: its buffers and its parts.

Activations are prepared by `Prepare`, in steps of 32 elements; a prepared row is a row of tiles.
They are bf16: plain bf16, blocks of small elements times their scales, or f32 as three planes.
Weights are the same panels as for the other CPU kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from iree.compiler import ir
from iree.compiler.dialects import scf

from mxc.dialects.reasons import Reason
from mxc.formats.panels import PANEL
from mxc.kernels.amx import TILE, TilePlan, plans, scheduled
from mxc.kernels.contraction import PLANES
from mxc.kernels.decode import STEP
from mxc.kernels.language import Kernel
from mxc.kernels.lowering.nest import lower
from mxc.kernels.lowering.tiles import Store
from mxc.kernels.lowering.tiles import TileStatements as Emitter
from mxc.passes.kernels.cpu.activations import Prepared
from mxc.passes.kernels.cpu.decoded_tiles import DecodedTiles
from mxc.passes.kernels.cpu.elements import CodeElements
from mxc.passes.kernels.cpu.isa import Amx, Isa
from mxc.passes.kernels.cpu.matches import ContractionMatch
from mxc.passes.kernels.cpu.product import CpuProduct, ProductBuffers, put
from mxc.passes.kernels.cpu.quantize.output import BlockTile
from mxc.passes.kernels.cpu.tile_rows import TileRow
from mxc.passes.kernels.extents import Buffer
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import index

#: Least rows for which tiles are faster than AVX-512 kernels.
LEAST_ROWS = 3
#: Rows that may be read past the last one: a tile of 32 rows may begin at the last row.
PADDING = 2 * TILE - 1


def prepared_for_tiles(isa: Isa, call: ContractionMatch, *, sorted: bool) -> Prepared | Reason:
    """The layout of the activations of a call for tiles, or the reason why tiles do not compute it.
    `sorted`: whether rows are sorted by expert."""
    source, elements, scales, of = call.lhs.source, call.elements, call.scales, call.of
    if not isinstance(isa, Amx):
        return Reason("the instruction set has no tiles")
    if not sorted and isinstance(of.m, int) and of.m < LEAST_ROWS:
        return Reason(f"M = {of.m}; from {LEAST_ROWS} rows on they are faster")
    if call.lhs.share > 1 and not sorted:
        return Reason("rows share activations, and tiles take rows that follow each other")
    if not call.parameters:
        return Reason("the weights are no parameter, and only panels become tiles")
    if of.k % STEP:
        return Reason(f"K = {of.k} is no multiple of {STEP}")
    if "pairs" not in elements.kinds or (scales is not None and scales.type == "f32"):
        return Reason(f"bf16 does not hold every weight of {of.rhs.name}")
    if of.rhs.rounded or source.to not in ("", "bf16"):
        return Reason("a side is rounded to a type that is not bf16, or not alone")
    if source.scale == "f32" and not source.to:
        return Reason(f"bf16 does not hold activations of {source.name}")
    if source.block % STEP:
        return Reason(f"a scale of activations is for {source.block} elements")
    planes = PLANES if source.format in ("f32", "f16") and not source.rounded else 1
    if planes > 1 and isinstance(elements, CodeElements) and elements.element.inf_codes:
        return Reason("an infinite weight times a plane of zero is no number")
    return Prepared(
        "pairs",
        scaled=False,
        order=replace(elements, block=STEP).order("pairs"),
        folded=source.scale is not None and not source.to,
        planes=planes,
        # Sorted rows are copied, and tiles read the copies.
        padding=0 if sorted else PADDING,
    )


def padded(prepared: Prepared) -> Prepared:
    """The layout with the rows past the last one that a tile may read."""
    return replace(prepared, padding=PADDING)


@dataclass(frozen=True)
class TileKernel(CpuProduct):
    """A contraction kernel on tiles. `steps`: number of steps of 32 elements along K. `plan`: the
    first of `plans` by default. Sorted rows are copied in the order of their experts."""

    plan: TilePlan | None = None

    @property
    def lanes(self) -> int:
        """Number of columns of a tile."""
        return TILE

    @cached_property
    def kernel(self) -> Kernel:
        """The scheduled kernel."""
        return scheduled(self.contraction(copied=True), self._plan, self.steps | 1)

    @property
    def plans(self) -> list[TilePlan]:
        """The schedules of this product."""
        return plans(self.contraction(copied=True))

    @property
    def _plan(self) -> TilePlan:
        return self.plan or self.plans[0]

    @property
    def _activations(self) -> Buffer:
        rows = self.rows.results if self.rows.sorted else self.rows.sources
        return self.prepared.buffer(rows, self.steps)

    @cached_property
    def row(self) -> TileRow | None:
        """The kernel of groups of one row on vector registers; None if the number of rows is known,
        or if tiles compute one row too."""
        if not self._unknown or self._tiles_alone:
            return None
        return TileRow(
            replace(self.weights, kind="floats"),
            self.prepared,
            self.rows,
            self.columns,
            self.steps * (STEP // min(STEP, self.weights.elements.block)),
            self.epilogue,
            self.out,
            isa=Amx(),
            shape=self.contraction(copied=True),
            width=self._plan.columns,
        )

    @property
    def _unknown(self) -> bool:
        """Whether the number of rows of a group is known only at the call."""
        return self.rows.sorted or not isinstance(self.rows.rows, int)

    @property
    def _tiles_alone(self) -> str:
        """The reason why tiles compute one row, too; empty if vector registers do."""
        if self.prepared.planes > 1:
            return "f32 is three planes, with three products for each weight"
        chosen = self.rows.experts and not self.rows.sorted
        return "its groups choose their experts" if chosen else ""

    @property
    def choice(self) -> str:
        """The text of the report that says what computes one row, and why; empty if the number of
        rows is known."""
        if not self._unknown:
            return ""
        if self._tiles_alone:
            return f"a call of one row takes tiles too: {self._tiles_alone}"
        return "a call of one row takes vector registers instead of tiles, with the same bits"

    @property
    def nests(self) -> list[Kernel]:
        """The scheduled kernel, and the one for a single row if there is one."""
        return [self.kernel] if self.row is None else [self.kernel, self.row.kernel]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        given = self.memory(buffers)
        if self.row is None:
            self._nest(given)
            return
        branch = scf.IfOp(self.row.serves(given), has_else=True)
        with ir.InsertionPoint(branch.then_block):
            self.row.nest(given, self.row.kernel, 1)
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            self._nest(given)
            scf.YieldOp([])

    def _nest(self, given: ProductBuffers) -> None:
        """Emit the nest on tiles."""
        panels = self.result_columns // PANEL
        decode = DecodedTiles(self.weights, given.elements, given.scales, panels)
        store = self._store(given)
        lower(
            self.kernel,
            given.arrays,
            self.sizes,
            lambda kernel, places: Emitter(kernel, places, decode.tile, store),
        )

    def _store(self, given: ProductBuffers) -> Store:
        """Return a function that finishes columns of a row and stores them, as plain numbers or as
        an MX block."""
        blocks = None
        if self.out is not None:
            blocks = BlockTile.of(self.out, given.results[0], given.results[1], 1)

        def store(parts: Sequence[Sequence[ir.Value]], row: ir.Value, column: ir.Value) -> None:
            for number, totals in enumerate(parts):
                places = self.places(row, column + number * TILE)
                value = given.finish.apply(list(totals), places)
                if blocks is not None:
                    blocks.put(value, 0, index(number * TILE))
                else:
                    put(value, given.results[0], places[0])
            if blocks is not None:
                blocks.store([row], column // BLOCK)

        return store
