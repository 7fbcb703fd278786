"""mxc-set-product-schedule: matrix instructions of a GPU for plain products of dynamic sizes.

IREE chooses a matrix instruction only where all sizes of a product are known. Where the number of
rows or columns comes with the call, its own schedule multiplies number by number and loads two or
four bytes at a time. Its code generator can do better: given an instruction, and tiles to which
operands are padded in shared memory, it takes any number of rows and columns. This pass gives it
both.

Where the two sides are different floats, IREE has no instruction at all. The shorter side is
extended to the other one, or both to f32, in an operation that IREE computes in the same kernel.

before:
    %y = linalg.generic {..} ins(%x, %w : tensor<?x2880xbf16>, tensor<2880x96xbf16>) outs(%zero)
        { extf, extf, mulf, addf }
after:
    %y = linalg.generic {.., compilation_info = #iree_codegen.compilation_info<
        lowering_config = #iree_gpu.lowering_config<{
          mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x32_BF16>, padding = [64, 96, 64],
          promote_operands = [0, 1], reduction = [0, 0, 2], subgroup = [2, 3, 0],
          workgroup = [64, 96, 0]}>, translation_info = <pipeline = #iree_gpu.pipeline<TileAndFuse>
          workgroup_size = [256, 1, 1] subgroup_size = 64, ..>>}

Loops of one iteration are removed and neighbours become one loop first, because IREE does so later
and loses the schedule.

Leaves alone: operations that have a `compilation_info`; products of one type with known sizes; one
row or one column, for which memory is the limit; types for which the target has no instruction;
integers that are extended without a sign, and any other body than a product that is added; sums of
a number of terms that comes with the call, which IREE pads to the largest number that there might
be; batches, of which IREE then reads a row beyond the end of a buffer; loops of rows, of columns or
of the sum that are not neighbours in all operands, with which IREE 3.13 ends in an assertion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg

from mxc.dialects.generic import element_of, generic, shape_of
from mxc.dialects.indexing import indexing_maps, loop_ranges
from mxc.passes.base import Pass
from mxc.passes.rewriting.generics import generic_like
from mxc.passes.rewriting.merged_loops import are_neighbours, with_loops
from mxc.passes.rewriting.rebuild import OperandRead, linalg_operations
from mxc.passes.rewriting.rebuild import replace as replace_by
from mxc.passes.set_cpu_schedule import ATTRIBUTE
from mxc.targets.amd import known_gpu
from mxc.targets.matrix_unit import MatrixUnit

#: Operations of a body: a product that is added, of floats or of integers with a sign.
_BODIES = ({"arith.mulf", "arith.addf"}, {"arith.muli", "arith.addi"})
_EXTENSIONS = {"arith.extf", "arith.extsi"}
_FLOATS = {"f32", "bf16", "f16"}
#: Rows and columns of the tile of a workgroup, at most, the latter by lanes of a wave; as IREE has
#: them for known sizes.
_ROWS, _COLUMNS = 64, {64: 128, 32: 64}
#: Rows and columns of an instruction.
_TILE = 16
#: Waves of a workgroup, at most.
_WAVES = 4
#: Bytes of a row of either operand that are in shared memory at once; fewer where the groups of a
#: wave hold the same elements, which would spill.
_DEPTH_BYTES, _FEW_DEPTH_BYTES = 128, 64
#: Bytes of an element that has more than one.
_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class SetProductSchedule(Pass):
    """Set schedules with a matrix instruction of `target`, which must have a record."""

    name = "mxc-set-product-schedule"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Set the schedule of each product that would have no matrix instruction. PassError for a
        target without a record."""
        unit = known_gpu(self.target).matrix
        for op in linalg_operations(module):
            if ATTRIBUTE in op.attributes or not linalg.isa_contraction_op(op) or not _is_plain(op):
                continue
            lhs, rhs, _ = (str(element_of(value)) for value in op.operands)
            if lhs != rhs:
                if not ({lhs, rhs} <= _FLOATS and unit.layout("f32")):
                    continue
                op, lhs = _with_f32(op), "f32"
            loops, layout = _loops(op), unit.layout(lhs)
            if loops is not None and layout is not None:
                op = with_loops(op, loops)
                op.attributes[ATTRIBUTE] = _schedule(lhs, layout, loop_ranges(op), unit)


def _loops(op: ir.Operation) -> list[list[int]] | None:
    """The loops of rows, of columns and of the sum that have several iterations; None where IREE
    finds a schedule itself, or takes none from us."""
    ranges = loop_ranges(op)
    loops = linalg.infer_contraction_dimensions(op)
    batch, *own = (
        [loop for loop in each if ranges[loop] != 1]
        for each in (loops.batch, loops.m, loops.n, loops.k)
    )
    if None not in ranges or batch or not all(own) or any(ranges[loop] is None for loop in own[-1]):
        return None
    return own if are_neighbours(op, own) else None


def _is_plain(op: ir.Operation) -> bool:
    """Whether a body does no more than extend, multiply, and add in 32 bits."""
    if str(element_of(op.results[0])) not in ("f32", "i32"):
        return False
    names = [each.operation.name for each in op.regions[0].blocks[0].operations][:-1]
    work = [name for name in names if name not in _EXTENSIONS]
    return len(work) == len(_BODIES[0]) and set(work) in _BODIES


def _with_f32(op: ir.Operation) -> ir.Operation:
    """A product of floats rebuilt for sides that are extended to f32 before it."""
    with ir.InsertionPoint(op), op.location:
        sides = [_extended(value) for value in list(op.operands)[:2]]
    reads = list(map(OperandRead, sides, indexing_maps(op)))

    def body(scalars: Sequence[ir.Value]) -> ir.Value:
        lhs, rhs, total = scalars
        return arith.addf(total, arith.mulf(lhs, rhs))

    found = generic_like(op, reads, op.operands[2], body)
    replace_by(op, found)
    return found.owner


def _extended(value: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    if element_of(value) == f32:
        return value
    loops = " ".join(f"d{axis}" for axis in range(len(shape_of(value))))
    return generic([(value, loops)], loops, f32, lambda each: arith.extf(f32, each))


def _schedule(
    element: str, layout: tuple[str, int], ranges: Sequence[int | None], unit: MatrixUnit
) -> ir.Attribute:
    """The schedule of a product of so many rows, columns and terms of a sum, by the instruction
    `layout` of the `unit`."""
    name, k = layout

    def tile(size: int | None, most: int) -> int:
        """As many as there are, in whole instructions, and at most `most`."""
        return most if size is None else min(most, -(-size // _TILE) * _TILE)

    rows, columns = tile(ranges[0], _ROWS), tile(ranges[1], _COLUMNS[unit.lanes])
    waves = _waves(rows // _TILE, columns // _TILE)
    depth = _FEW_DEPTH_BYTES if unit.replicated else _DEPTH_BYTES
    steps = depth // _BYTES.get(element, 1) // k
    own = [rows // _TILE // waves[0], columns // _TILE // waves[1]]
    return ir.Attribute.parse(
        "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{"
        f"mma_kind = #iree_gpu.mma_layout<{name}>, "
        f"padding = {[rows, columns, steps * k]}, promote_operands = [0, 1], "
        f"reduction = {[0, 0, steps]}, subgroup = {[*own, 0]}, "
        f"workgroup = {[rows, columns, 0]}}}>, "
        "translation_info = #iree_codegen.translation_info<"
        "pipeline = #iree_gpu.pipeline<TileAndFuse> "
        f"workgroup_size = [{waves[0] * waves[1] * unit.lanes}, 1, 1] "
        f"subgroup_size = {unit.lanes}, {{gpu_pipeline_options = #iree_gpu.pipeline_options<"
        "prefetch_num_stages = 2, no_reduce_shared_memory_bank_conflicts = false>}>>"
    )


def _waves(rows: int, columns: int) -> tuple[int, int]:
    """Waves of a workgroup along rows and columns, of so many instructions: as many as there may
    be, each with a part that is as square as can be."""
    return max(
        (
            (down, right)
            for down, right in product(range(1, _WAVES + 1), repeat=2)
            if down * right <= _WAVES and rows % down == 0 and columns % right == 0
        ),
        key=lambda waves: (
            waves[0] * waves[1],
            -abs(rows // waves[0] - columns // waves[1]),
        ),
    )
