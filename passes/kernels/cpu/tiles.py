"""The contraction on tiles (kernels/amx.py) as a kernel of a program: its buffers and its parts.

Activations are what `Prepare` makes of them, in steps of 32 elements; a row of it is a row of
tiles. They are bf16: as they are, blocks of small elements under their scales, and f32 as three
planes. Weights are the panels of every kernel of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.dialects.generic import element_of as type_of
from mxc.dialects.reasons import Reason
from mxc.kernels.amx import TILE, most_rows, scheduled
from mxc.kernels.contraction import PLANES, Choice, Contraction
from mxc.kernels.decode import STEP, element_of, scale_element
from mxc.kernels.language import Kernel
from mxc.kernels.lowering.nest import Emitters, lower, workgroups
from mxc.kernels.lowering.statements import Store
from mxc.passes.kernels.cpu.activations import Prepared
from mxc.passes.kernels.cpu.decoded_tiles import DecodedTiles
from mxc.passes.kernels.cpu.elements import Codes
from mxc.passes.kernels.cpu.isa import Amx, Isa
from mxc.passes.kernels.cpu.matches import Call
from mxc.passes.kernels.cpu.quantise.output import BlockTile
from mxc.passes.kernels.cpu.quantise.output import buffers as block_buffers
from mxc.passes.kernels.cpu.quantise.rounding import Rounding
from mxc.passes.kernels.cpu.rows import Rows
from mxc.passes.kernels.cpu.weights import PANEL, Weights
from mxc.passes.kernels.epilogues import NOTHING, Epilogue, flat_shape
from mxc.passes.kernels.extents import Buffer, Size, quotient_up
from mxc.passes.kernels.finish import Finish, Place
from mxc.passes.kernels.narrow_floats import narrowed
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import i1, index, of

#: Rows from which on tiles are faster than kernels of AVX-512.
LEAST_ROWS = 3
#: Rows that are read behind the last one: a tile of 32 may begin with it.
PADDING = 2 * TILE - 1


def prepared_for_tiles(isa: Isa, call: Call, *, sorted: bool) -> Prepared | Reason:
    """The activations of a call as tiles take them, or why tiles do not compute it."""
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
    if planes > 1 and isinstance(elements, Codes) and elements.element.inf_codes:
        return Reason("an infinite weight times a plane of zero is no number")
    return Prepared(
        "pairs",
        scaled=False,
        order=tuple(tuple(pair) for pair in replace(elements, block=STEP).order("pairs")),
        folded=source.scale is not None and not source.to,
        planes=planes,
        # Sorted rows are copies, and only these are read as tiles.
        padding=0 if sorted else PADDING,
    )


def padded(prepared: Prepared) -> Prepared:
    """With rows behind the last one: a tile may begin with that."""
    return replace(prepared, padding=PADDING)


@dataclass(frozen=True)
class Tiles:
    """One kernel. `steps`: of 32 elements along K; sorted rows come in the order of experts. `out`:
    the result is MX blocks along the columns, of which there are whole ones."""

    weights: Weights
    prepared: Prepared
    rows: Rows
    columns: int
    steps: int
    epilogue: Epilogue = NOTHING
    out: Rounding | None = None

    @property
    def scalars(self) -> int:
        """How many index values come with each call."""
        return self.rows.scalars

    def given(self, scalars: Sequence[ir.Value]) -> Tiles:
        """This kernel for so many groups or rows."""
        return replace(self, rows=self.rows.given(scalars)) if self.scalars else self

    @property
    def _halves(self) -> int:
        return 2 if self.epilogue.gated else 1

    @property
    def result_columns(self) -> int:
        """Columns of the result."""
        return self.columns // self._halves

    @property
    def contraction(self) -> Contraction:
        """What is computed."""
        elements, scales, rows = self.weights.elements, self.weights.scales, self.rows
        choice: Choice = "all"
        if rows.experts:
            choice = "sorted" if rows.sorted else "own" if rows.own else "chosen"
        groups = rows.experts if rows.sorted else rows.groups
        return Contraction(
            columns=self.result_columns,
            depth=self.steps * STEP,
            weights=element_of(elements.element if isinstance(elements, Codes) else None),
            scales=None if scales is None else scale_element(scales.type),
            block=STEP if scales is None else scales.block,
            rows=rows.rows if isinstance(rows.rows, int) else None,
            groups=groups if isinstance(groups, int) else None,
            experts=rows.experts,
            choice=choice,
            halves=self._halves,
            planes=self.prepared.planes,
            together=TILE if self.out is None else BLOCK,
        )

    @cached_property
    def kernel(self) -> Kernel:
        """How it is computed."""
        rows, most = self.rows.rows, most_rows(self.contraction)
        if isinstance(rows, int) and not self.rows.sorted:
            parts = -(-rows // most)
            most = -(-rows // (parts * TILE)) * TILE
        return scheduled(self.contraction, most, self.steps | 1)

    @property
    def workgroups(self) -> list[Size]:
        """Along columns, rows and groups."""
        sizes: dict[str, Size] = {"n": self.result_columns, "m": self.rows.rows}
        sizes["g"] = self.rows.experts if self.rows.sorted else self.rows.groups
        grid = workgroups(self.kernel)
        return [
            quotient_up(sizes[grid[at][0]], grid[at][1]) if at in grid else 1 for at in range(3)
        ]

    @property
    def buffers(self) -> list[Buffer]:
        """Activations, what chooses the rows if anything, weights, scales, what the epilogue reads,
        the result."""
        rows = self.rows.results if self.rows.sorted else self.rows.sources
        blocks = self.steps * STEP // self.weights.elements.block
        return [
            self.prepared.buffer(rows, self.steps),
            *self.rows.buffers,
            *self.weights.buffers(self.rows.experts, -(-self.columns // PANEL), blocks),
            *(
                Buffer(flat_shape(reach, value, self.rows.results), type_of(value))
                for reach, value in self.epilogue.operands
            ),
            *self._results,
        ]

    @property
    def _results(self) -> list[Buffer]:
        if self.out is None:
            return [Buffer([self.rows.results, self.result_columns], self.epilogue.result)]
        return block_buffers(self.out, self.rows.results, self.result_columns)

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        rest = list(buffers)
        memory, results = {"A": rest.pop(0)}, [rest.pop() for _ in self._results][::-1]
        if self.rows.buffers:
            memory["ROUTES" if self.rows.sorted else "IDS"] = rest.pop(0)
        elements = rest.pop(0)
        scales = rest.pop(0) if self.weights.scaled else None
        keys = self.epilogue.operands
        finish = Finish(self.epilogue, dict(zip(keys, rest, strict=True)), TILE)
        decode = DecodedTiles(self.weights, elements, scales, self.result_columns // PANEL)
        rows = {"m": self.rows.rows, "g": self.rows.groups}
        sizes: dict[str, int | ir.Value] = {
            axis: size if size is not None else 0 for axis, size in self.kernel.sizes.items()
        }
        for axis, size in rows.items():
            if isinstance(size, ir.Value) and not self.rows.sorted:
                sizes[axis] = size
        emitters = Emitters(decode.tile, self._store(finish, results))
        lower(self.kernel, memory, sizes, emitters)

    def _store(self, finish: Finish, results: Sequence[ir.Value]) -> Store:
        """Finishes and stores columns of a row: as they are, or as a block."""
        width = self.result_columns
        blocks = None
        if self.out is not None:
            blocks = BlockTile.of(self.out, results[0], results[1], 1)

        def store(parts: Sequence[Sequence[ir.Value]], row: ir.Value, column: ir.Value) -> None:
            for number, totals in enumerate(parts):
                at = arith.addi(column, index(number * TILE))
                mask = None
                if width % PANEL:
                    mask = vector.create_mask(of(i1(), TILE), [arith.subi(index(width), at)])
                second = [arith.addi(at, index(width))] * (len(totals) - 1)
                places = [Place(row, each, mask) for each in (at, *second)]
                value = finish.apply(list(totals), places)
                if blocks is not None:
                    blocks.put(value, 0, index(number * TILE))
                    continue
                value = narrowed(value, self.epilogue.result)
                if mask is None:
                    vector.store(value, results[0], [row, at])
                else:
                    vector.maskedstore(results[0], [row, at], mask, value)
            if blocks is not None:
                blocks.store([row], arith.divui(column, index(BLOCK)))

        return store
