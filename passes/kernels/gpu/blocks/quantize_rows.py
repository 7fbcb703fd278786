"""A kernel that quantizes rows to nvfp4: each float is read once, and each byte written once.

A row has an f32 scale, which follows from its largest magnitude, and each block of 16 of it an E4M3
scale. So a workgroup has a row, and holds all of it in registers:

    lane       8 consecutive floats in each iteration of the workgroup; two lanes share a block
    amax       of the row: over 16 lanes by DPP, then through LDS, 4 bytes for each 16 lanes
    scales     of the row and of the block: each lane computes those by which it divides
    elements   by v_cvt_scalef32_pk_fp4_f32 under a scale of one where the GPU has it, else by
               integer operations

Past the end of a row zeros are read, and nothing is stored. The results are those of
dialects/quantize_scalars.py, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import BEYOND, barrier, no_reordering, shared, thread
from mxc.dialects.amdgpu_narrow import neighbour
from mxc.dialects.generic import constant
from mxc.dialects.quantize_scalars import as_float, block_scale, row_scale
from mxc.formats.formats import E8M0, FORMATS
from mxc.formats.recipes import MANTISSA, ScaleRecipe
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Size, named
from mxc.passes.kernels.gpu.blocks.quantize import InRows
from mxc.passes.kernels.gpu.conversions import BlockConversion, largest_in, largest_of
from mxc.passes.kernels.gpu.sums import OF_ALL, TOGETHER
from mxc.passes.kernels.vectors import equal, f32, i8, i32, index, of, when

_FORMAT = FORMATS["nvfp4"]
#: Consecutive elements of a lane in an iteration: 8 elements of 4 bits are a register.
_RUN = 8
#: Most lanes of a workgroup, and most floats that a lane holds.
_MOST_THREADS, _MOST_HELD = 1024, 64


@dataclass(frozen=True)
class QuantizeRows(InRows):
    """The kernel that quantizes `rows` rows of `depth` floats of the type `source` ("f32", "bf16"
    or "f16") to nvfp4.

    Where `rows` is None, their number is an index scalar of each call. `lanes`: lanes of a wave.
    `converts`: whether the GPU has v_cvt_scalef32_*.

    Buffers: the floats; then elements as i32, scales of blocks as i8, and scales of rows as f32.
    """

    rows: Size
    depth: int
    source: str
    lanes: int
    converts: bool

    @property
    def fits(self) -> bool:
        """Whether the registers of a workgroup hold a row."""
        return 0 < self.depth <= _MOST_THREADS * _MOST_HELD

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        return f"mxc_quantize_{self.source}_{_FORMAT.name}_{named(self.rows)}x{self.depth}"

    @property
    def threads(self) -> int:
        """Lanes of a workgroup: whole waves."""
        waves = -(-self.depth // (_RUN * self.lanes))
        return min(waves * self.lanes, _MOST_THREADS)

    @property
    def workgroups(self) -> list[Size]:
        """One workgroup per row."""
        return [self.rows]

    @property
    def _rows(self) -> Size:
        return self.rows

    @property
    def _kinds(self) -> list[tuple[int, ir.Type]]:
        """Number and type of the elements of a row, for each buffer."""
        return [
            (self.depth, ir.Type.parse(self.source)),
            (self.depth * _FORMAT.element.bits // 32, i32()),
            (self.depth // _FORMAT.block, i8()),
            (1, f32()),
        ]

    def body(self, *given: ir.Value) -> None:
        """Build the body at the insertion point."""
        floats, elements, scales, wholes = self._from_row(given, workgroup(0), 1)
        lane = thread()
        iterations = -(-self.depth // (_RUN * self.threads))
        runs = [lane + step * self.threads for step in range(iterations)]
        held = [self._values(floats, run) for run in runs]
        # All loads are issued before the wait for the first of them.
        no_reordering()
        largest = [largest_in(values) for values in held]
        amax = largest[0]
        for other in largest[1:]:
            amax = arith.maxsi(amax, other)
        whole = row_scale(self._across(amax, lane), _FORMAT)
        first = equal(lane, 0)
        memref.StoreOp(whole, wholes, [arith.select(first, index(0), index(BEYOND // 4))])
        conversion = BlockConversion(_FORMAT, ScaleRecipe.EVEN, self.converts)
        for run, values, own in zip(runs, held, largest, strict=True):
            code = block_scale(arith.maxsi(own, neighbour(own, 1)), whole, _FORMAT)
            one = constant(1.0, f32())
            unit = one / whole / _normal(code)
            steps = values * vector.broadcast(values.type, unit)
            vector.store(conversion.elements(steps, None), elements, [run])
            stores = equal(run % 2, 0)
            at = arith.select(stores, run // 2, index(BEYOND))
            memref.StoreOp(arith.trunci(i8(), code), scales, [at])

    def _values(self, floats: ir.Value, run: ir.Value) -> ir.Value:
        """Load run number `run` of the row, as f32 [8]."""
        kind = ir.Type.parse(self.source)
        values = vector.load(of(kind, _RUN), floats, [run * _RUN])
        return values if self.source == "f32" else arith.extf(of(f32(), _RUN), values)

    def _across(self, amax: ir.Value, lane: ir.Value) -> ir.Value:
        """The largest `amax`, the bits of a magnitude as i32, of all lanes of the workgroup."""
        amax = largest_of(*OF_ALL)(amax)
        count = self.threads // TOGETHER
        memory = shared([count], i32())
        first = equal(lane % TOGETHER, 0)
        with when(first):
            memref.StoreOp(amax, memory, [lane // TOGETHER])
        barrier()
        size = 4 if count % 4 == 0 else 2
        parts = [
            vector.load(of(i32(), size), memory, [index(at)], alignment=4 * size)
            for at in range(0, count, size)
        ]
        most = parts[0]
        for part in parts[1:]:
            most = arith.maxsi(most, part)
        return vector.reduction(i32(), vector.CombiningKind.MAXSI, most)


def _normal(code: ir.Value) -> ir.Value:
    """The f32 of the E4M3 code, i32, of a scale that is a positive normal number."""
    scale = _FORMAT.scale
    bias = constant((E8M0.bias - scale.bias) << scale.mantissa, i32())
    places = constant(MANTISSA - scale.mantissa, i32())
    return as_float(code + bias << places)
