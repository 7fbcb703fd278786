"""Float sides of a product: f32, f16 or bf16 in memory, bf16 in registers, without a loss.

f16 activations stay f16 if weights are f16 in registers too.

Matrix instructions multiply pairs of bf16 exactly and add in f32. A float with more bits is the sum
of two or three bf16, each with the next 8 bits of its significand: f16 has 11 bits, f32 has 24. So
each product of an activation with a weight of at most 8 bits is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.amdgpu import pinned
from mxc.passes.kernels.extents import Buffer, Size, product
from mxc.passes.kernels.gpu.bounded_views import load_bytes
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, K_STEPS, TileInstruction
from mxc.passes.kernels.gpu.lanes import Lane
from mxc.passes.kernels.gpu.panels import along, spread, start_of
from mxc.passes.kernels.gpu.wave_side import Loaded, WaveSide
from mxc.passes.kernels.sources import ActivationSource
from mxc.passes.kernels.vectors import (
    below,
    bitcast,
    concat,
    f32,
    i8,
    i32,
    lanes_of,
    of,
    splat,
    upper_halves,
)
from mxc.targets.matrix_unit import MatrixUnit

#: Runs of 8 floats that are rounded to bf16 at once by integer operations. Few, because the test
#: whether a float is NaN takes two scalar registers.
_AT_ONCE = 2
#: Registers of a lane up to which there are too few for the floats of two k-steps.
_FEW = 256
#: Bytes of a load.
_LOAD = 16
#: Mask of the bits of an f32 that are a bf16, and half of the lowest of these bits.
_HIGH, _HALF = -0x10000, 0x8000


@dataclass(frozen=True)
class FloatBlocks:
    """A side of floats of the type `memory`, with `blocks` blocks of 32 in a row.

    `rounded`: they are f32 in memory, and are rounded to bf16 before they are multiplied. `panels`:
    how rows are stored, as in panels.py.
    """

    memory: str
    rounded: bool
    blocks: int
    panels: int = 0

    def parts(self, register: Register) -> int:
        """Return the number of floats in registers whose sum is one float in memory."""
        if self.rounded or self.memory == register:
            return 1
        return {"f16": 2, "f32": 3}[self.memory]

    @property
    def element(self) -> ir.Type:
        """The type in memory."""
        return ir.Type.parse(self.memory)

    @property
    def bits(self) -> int:
        """Bits of an element in memory."""
        return 32 if self.memory == "f32" else 16

    @property
    def block_bytes(self) -> int:
        """Bytes of 32 elements."""
        return BLOCK * self.bits // 8

    @staticmethod
    def of(source: ActivationSource, blocks: int) -> FloatBlocks:
        """Return the side that the activations `source` are, with `blocks` blocks in a row."""
        return FloatBlocks("f32" if source.rounded else source.format, source.rounded, blocks)

    @property
    def rows_of_scale(self) -> int:
        """Number of rows that share their scales: 1, because floats have none."""
        return 1

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """Bytes of a row."""
        return (self.blocks * self.block_bytes,)

    def buffers(self, rows: Size) -> list[Buffer]:
        """The buffer of `rows` rows, as bytes: loads to shared memory take bytes."""
        return [Buffer([product(rows, size)], i8()) for size in self.row_sizes]


@dataclass(frozen=True)
class FloatSide(WaveSide):
    """The rows of float activations for the tiles of one wave: see ScaledSide.

    In k-step x of a step, a lane of group g has all of block 4 g + x. If a k-step is `sums` sums,
    it has a part of one block of each of these sums.
    """

    kind: FloatBlocks
    instruction: TileInstruction
    lane: Lane
    buffer: ir.Value
    rows: tuple[ir.Value, ...]
    register: Register
    sums: int = 0

    @property
    def _lanes(self) -> int:
        """Elements of a load."""
        return 8 * _LOAD // self.kind.bits

    @property
    def pins(self) -> bool:
        """Whether floats are rounded to bf16 by integer operations, a few runs at a time."""
        return self.kind.rounded and not self.instruction.unit.rounds and len(self.rows) > 1

    def load(self, step: ir.Value, k_step: int, *, masked: bool) -> Loaded:
        """Load the floats of a k-step of a step.

        `masked`: the step may go past the end of a row; blocks past the end are zero.
        """
        kind, group, groups = self.kind, self.lane.block, self.instruction.groups
        # With `sums`, a lane has a part of one block of each sum. Without, it has a whole block.
        sums = max(1, self.sums)
        first, stride = (1, groups // sums) if self.sums else (K_STEPS, 1)
        own = step * self.instruction.step + group // sums * first
        part = kind.block_bytes // sums
        found: list[ir.Value] = []
        for row in self.rows:
            start = (row * kind.blocks + own) * kind.block_bytes
            start = start + group % sums * part
            for number in range(k_step * sums, (k_step + 1) * sums):
                block = own + number * stride
                for byte in range(0, part, _LOAD):
                    at = start + (number * stride * kind.block_bytes + byte)
                    inside = below(block, kind.blocks) if masked else None
                    loaded = load_bytes(self.buffer, at, _LOAD, inside)
                    found.append(bitcast(loaded, kind.element, self._lanes))
        return Loaded(dict(enumerate(found, start=k_step * len(found))))

    def parts(self, loaded: Loaded, tile: int, k_step: int) -> list[list[ir.Value]]:
        """Return the floats of a tile in a k-step as runs of 8 along K.

        Each run is a list of vectors of the type `register` whose sum is the run.
        """
        count = BLOCK // self._lanes
        start = (k_step * len(self.rows) + tile) * count
        runs = self._runs([loaded.elements[start + number] for number in range(count)])
        if not self.pins:
            return [self.split(each) for each in runs]
        found = []
        for first in range(0, len(runs), _AT_ONCE):
            own = [self.split(run)[0] for run in pinned(runs[first : first + _AT_ONCE])]
            words = pinned([bitcast(each, i32(), FRAGMENT // 2) for each in own])
            found += [[bitcast(each, ir.BF16Type.get(), FRAGMENT)] for each in words]
        return found

    def _runs(self, loaded: Sequence[ir.Value]) -> list[ir.Value]:
        """Concatenate loaded vectors to runs of 8."""
        each = FRAGMENT // self._lanes
        return [concat(loaded[at : at + each]) for at in range(0, len(loaded), each)]

    def split(self, floats: ir.Value) -> list[ir.Value]:
        """Return the vectors of the type `register` whose sum is a run of 8 floats."""
        return split_floats(self.kind, floats, self.register)


@dataclass(frozen=True, kw_only=True)
class DenseSide(FloatSide):
    """The rows of activations or weights of a dense product for one wave. A k-step is one block.

    Each lane group has consecutive elements of a block. So a load of all lanes reads whole segments
    of memory: 64 bytes of a row of 16-bit floats. `ragged`: a step may go past the end of K.
    """

    ragged: bool

    @property
    def _part(self) -> int:
        """Bytes of a block that a lane has."""
        return self.kind.block_bytes // self.instruction.groups

    @property
    def loads(self) -> int:
        """Number of loads of a lane for a block of all tiles."""
        return len(self.rows) * (self._part // _LOAD)

    def block(self, first: ir.Value, number: int) -> list[ir.Value]:
        """Load block `first + number` of all tiles. If `ragged`, it is zero past the end of K."""
        kind, found = self.kind, []
        own = self.lane.block * self._part
        for row in self.rows:
            start = start_of(kind, row, first) + along(kind, own)
            for byte in range(0, self._part, _LOAD):
                at = start + (number * kind.block_bytes + byte) * spread(kind)
                inside = below(first + number, kind.blocks) if self.ragged else None
                loaded = load_bytes(self.buffer, at, _LOAD, inside)
                found.append(bitcast(loaded, kind.element, self._lanes))
        return found

    def parts(self, loaded: Loaded, tile: int, k_step: int) -> list[list[ir.Value]]:
        """Return the floats that the lane has of a tile in a k-step as runs of 8 along K.

        Each run is a list of vectors of the type `register` whose sum is the run.
        """
        count = self._part // _LOAD
        start = k_step * self.loads + tile * count
        runs = self._runs([loaded.elements[start + number] for number in range(count)])
        return [self.split(each) for each in runs]


def loaded_ahead(unit: MatrixUnit) -> bool:
    """Return whether lanes have registers to load floats one k-step ahead."""
    return unit.registers > _FEW


def split_floats(kind: FloatBlocks, floats: ir.Value, register: Register) -> list[ir.Value]:
    """Return the vectors of the type `register` whose sum is a run of 8 floats of `kind`."""
    brief = of(ir.BF16Type.get(), FRAGMENT)
    if kind.memory == register:
        return [floats]
    if kind.rounded:
        return [arith.truncf(brief, floats)]
    wide = of(f32(), FRAGMENT)
    left = floats if kind.memory == "f32" else arith.extf(wide, floats)
    return bf16_parts(left, kind.parts(register))


def bf16_parts(
    left: ir.Value, count: int, *, finite: bool = False, rounded: MatrixUnit | None = None
) -> list[ir.Value]:
    """Split f32 [n] into `count` parts, bf16 [n], each with the next 8 bits of the significand.

    The sum of three parts is all of an f32. An infinity becomes an infinity and zeros; with
    `finite` there are none, and this is not checked. `rounded`: the unit by whose instructions the
    last part is rounded to nearest; None: its further bits are cut off.
    """
    found, size = [], lanes_of(left)
    for part in range(count):
        last = part + 1 == count
        found.append(_nearest(left, rounded) if last and rounded else upper_halves(left))
        if not last:
            bits = bitcast(left, i32(), size)
            high = bitcast(bits & _HIGH, f32(), size)
            rest = left - high
            if not finite:
                # inf - inf is NaN: what remains of an infinity is set to zero.
                same = arith.cmpf(arith.CmpFPredicate.OEQ, left, high)
                rest = arith.select(same, splat(0, f32(), size), rest)
            left = rest
    return found


def _nearest(floats: ir.Value, unit: MatrixUnit) -> ir.Value:
    """Round f32 [n] to bf16 [n].

    Where no instruction rounds, ties go away from zero, and a NaN may become a number: another part
    of the same float has to be NaN too.
    """
    size = lanes_of(floats)
    if unit.rounds:
        return arith.truncf(of(ir.BF16Type.get(), size), floats)
    return upper_halves(bitcast(bitcast(floats, i32(), size) + _HALF, f32(), size))
