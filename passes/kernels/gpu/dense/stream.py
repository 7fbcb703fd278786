"""Dense products straight from memory to registers.

They are for few rows, and for GPUs without direct loads to LDS.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

    for the chunk of K that this wave has, or for each of all chunks    # chunks.py
      sum = 0
      for step of the chunk: sum += product of both, loaded while the step before was multiplied
      total = total + sum
    total = sum over the waves along K, if each has a chunk
    result = epilogue(total)

With few rows, the time is what loading the weights takes. Each byte of them is loaded once, and the
waves of a workgroup issue the loads of their whole chunks, or of some KiB of each, before they
wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import scf

from mxc.dialects.amdgpu import no_reordering, pinned
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.gpu.dense.chunks import ROWS, Chunks
from mxc.passes.kernels.gpu.floats import DenseSide, FloatBlocks
from mxc.passes.kernels.gpu.lanes import at_most
from mxc.passes.kernels.gpu.products import DecodedProduct
from mxc.passes.kernels.gpu.stream import Body, StreamKernel
from mxc.passes.kernels.gpu.wave_side import Loaded
from mxc.passes.kernels.vectors import f32, index, loop, splat
from mxc.targets.amd import GFX950

#: Registers that sums and loaded operands may take, by the lanes of a wave. `_SHARED`: the limit if
#: waves of a workgroup share a SIMD, as they do if there are more than four.
_REGISTERS, _SHARED = {64: 288, 32: 160}, 224


@dataclass(frozen=True)
class DenseStream(StreamKernel):
    """A dense product by a schedule of the transport "stream"."""

    lhs: FloatBlocks
    rhs: FloatBlocks

    def __post_init__(self) -> None:
        """Raise ValueError for a schedule that would sum in another order than chunks.py has."""
        super().__post_init__()
        if self.schedule.instruction.rows != ROWS:
            raise ValueError(f"{self.schedule}: a dense product has tiles of {ROWS} rows")
        if self.schedule.waves[2] not in (1, self.chunks.count):
            raise ValueError(
                f"{self.schedule}: a dense product over {self.lhs.blocks} blocks has 1 or "
                f"{self.chunks.count} waves along K"
            )

    @property
    def chunks(self) -> Chunks:
        """The chunks that K is cut into."""
        return Chunks.of(self.lhs.blocks)

    @property
    def chunks_per_wave(self) -> int:
        """Number of chunks that a wave computes, one after the other."""
        return self.chunks.count // self.schedule.waves[2]

    @property
    def room(self) -> int:
        """Number of blocks of all tiles that a lane has registers for, beside its sums."""
        m, n = self.schedule.tiles
        instruction = self.schedule.instruction
        sums = m * n * instruction.totals * min(2, self.chunks_per_wave)
        block = (m * self.lhs.block_bytes + n * self.rhs.block_bytes) // instruction.groups // 4
        most = _REGISTERS[instruction.unit.lanes]
        if self.schedule.threads > GFX950.unit.simds * instruction.unit.lanes:
            most = min(most, _SHARED)
        return (most - sums) // block

    @property
    def ahead(self) -> bool:
        """Whether a wave loads a step while it multiplies the step before.

        It does not if it has one chunk, and registers for one block: other waves then compute while
        it waits.
        """
        return self.chunks_per_wave > 1 or self.room > 1

    @property
    def step(self) -> int:
        """Number of blocks of a step: a chunk, or the largest part of it that registers allow."""
        size, room = self.chunks.size, self.room
        if self.chunks_per_wave == 1 and size <= room:
            return size
        # Registers hold two steps: one is multiplied while the next one is loaded.
        return max(
            step for step in range(1, size + 1) if size % step == 0 and step <= max(1, room // 2)
        )

    def compute(self, *given: ir.Value) -> None:
        """Build what a workgroup does for its group."""
        _Body(self, given).build()


class _Body(Body):
    """The values of the kernel's body while it is built."""

    kernel: DenseStream
    lhs: DenseSide
    rhs: DenseSide
    product: DecodedProduct

    def _sides(
        self,
        lhs: list[ir.Value],
        rhs: list[ir.Value],
        rows: tuple[ir.Value, ...],
        columns: tuple[ir.Value, ...],
    ) -> tuple[DenseSide, DenseSide]:
        """Return lhs and rhs, as in the base class."""
        kernel, chunks = self.kernel, self.kernel.chunks
        ragged = chunks.size * chunks.count != kernel.lhs.blocks

        def side(kind: FloatBlocks, buffer: ir.Value, own: tuple[ir.Value, ...]) -> DenseSide:
            assert kernel.decoded is not None
            at = (kind, self.instruction, self.lane, buffer, own, kernel.decoded)
            return DenseSide(*at, ragged=ragged)

        return side(kernel.lhs, lhs[0], rows), side(kernel.rhs, rhs[0], columns)

    def _steps(self, totals: list[ir.Value]) -> list[ir.Value]:
        """Build the chunks of this wave, and return the sums of all of them."""
        kernel = self.kernel
        chunks, steps = kernel.chunks, kernel.chunks.size // kernel.step
        first = self.wave_k * chunks.size if self.waves_k > 1 else index(0)

        def load(step: ir.Value) -> list[ir.Value]:
            at, found = first + step * kernel.step, []
            for number in range(kernel.step):
                found += [*self.lhs.block(at, number), *self.rhs.block(at, number)]
            # All loads of a step are issued before one is waited for.
            no_reordering()
            return found

        if not kernel.ahead:
            with loop(index(0), index(steps), index(1), totals) as (step, inside, op):
                # If LLVM unrolls the loop, a step is not loaded before the previous one is
                # multiplied.
                no_reordering()
                scf.YieldOp(self._multiply(list(inside), load(step)))
            return list(op.results)
        loaded = load(index(0))
        if kernel.chunks_per_wave == 1:
            if steps > 1:
                held = totals, loaded
                bounds = index(0), index(steps - 1), index(1)
                with loop(*bounds, values_of(held)) as (step, given, op):
                    coming = load(step + 1)
                    found = self._multiply(*with_values(held, given))
                    scf.YieldOp([*found, *coming])
                totals, loaded = with_values(held, op.results)
            return self._multiply(totals, loaded)
        last = kernel.chunks_per_wave * steps - 1
        # The sums start from -0.0: adding it changes no number, not even the sign of a zero.
        whole = [splat(-0.0, f32(), self.instruction.totals)] * len(totals)
        held = whole, loaded
        bounds = index(0), index(kernel.chunks_per_wave), index(1)
        with loop(*bounds, values_of(held)) as (chunk, given, op):
            now, own = with_values(held, given)
            carried = [*totals, *own]
            with loop(index(0), index(steps), index(1), carried) as (step, inside, inner):
                at = chunk * steps + step
                coming = load(at_most(at + 1, last))
                found = self._multiply(*with_values(held, inside))
                scf.YieldOp([*found, *coming])
            sums, own = with_values(held, inner.results)
            # Otherwise the sums of all chunks stay in registers until the last one is computed.
            added = pinned([one + other for one, other in zip(now, sums, strict=True)])
            scf.YieldOp([*added, *own])
        return with_values(held, op.results)[0]

    def _multiply(self, totals: list[ir.Value], loaded: list[ir.Value]) -> list[ir.Value]:
        """Return `totals` with a step added, whose loads are `loaded`."""
        each = self.lhs.loads + self.rhs.loads
        for number in range(self.kernel.step):
            block = loaded[number * each : (number + 1) * each]
            sides = block[: self.lhs.loads], block[self.lhs.loads :]
            left, right = (Loaded(dict(enumerate(side))) for side in sides)
            totals = self.product.add(totals, left, right, 0)
        return totals
