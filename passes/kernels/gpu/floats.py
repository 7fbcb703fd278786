"""Activations that are floats: f32, f16 or bf16 in memory, bf16 in registers, without a loss.

f16 stays what it is where weights are f16 too.

Matrix instructions multiply pairs of bf16 exactly and add in f32. A float of more bits is the sum
of two or three bf16, each with the next 8 bits of its significand: f16 has 11, f32 24. So each
product of an activation with a weight of at most 8 bits is exact, as one of floats would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.amdgpu import pinned
from mxc.passes.kernels.extents import Buffer, Size, product
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, K_STEPS, TileInstruction
from mxc.passes.kernels.gpu.lanes import Lane
from mxc.passes.kernels.gpu.panels import along, spread, start_of
from mxc.passes.kernels.gpu.parts import load_bytes
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

#: Runs of 8 floats that are rounded at once by integers: whether one is a number takes two scalar
#: registers.
_AT_ONCE = 2
#: Registers of a lane that has none for floats of two k-steps.
_FEW = 256
#: Bytes of a load.
_LOAD = 16
#: Bits of a float that are those of a bf16; half of the last one.
_HIGH, _HALF = -0x10000, 0x8000


@dataclass(frozen=True)
class FloatBlocks:
    """`blocks` of 32 floats a row. `rounded`: they are f32, of which bf16 are multiplied. `panels`:
    as in panels.py."""

    memory: str
    rounded: bool
    blocks: int
    panels: int = 0

    def parts(self, register: Register) -> int:
        """The floats in registers whose sum is one float."""
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
        """What a source is in memory."""
        return FloatBlocks("f32" if source.rounded else source.format, source.rounded, blocks)

    @property
    def rows_of_scale(self) -> int:
        """Rows that have the same scale, of which there is none."""
        return 1

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """Bytes of a row."""
        return (self.blocks * self.block_bytes,)

    def buffers(self, rows: Size) -> list[Buffer]:
        """So many rows, as bytes: as such they are loaded to shared memory."""
        return [Buffer([product(rows, size)], i8()) for size in self.row_sizes]


@dataclass(frozen=True)
class FloatSide(WaveSide):
    """Rows of float activations, for the tiles of one wave: see ScaledSide.

    In k-step x of a step a lane of group g has all of block 4 g + x; with `sums` its part of the
    blocks of each sum of the k-step.
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
        """Whether few floats are rounded at once, by integers."""
        return self.kind.rounded and not self.instruction.unit.rounds and len(self.rows) > 1

    def load(self, step: ir.Value, k_step: int, *, masked: bool) -> Loaded:
        """A k-step of a step. `masked`: blocks that the row does not have are zero."""
        kind, group, groups = self.kind, self.lane.block, self.instruction.groups
        # Of the blocks of a sum a lane has a part; without sums a k-step is one, and each its own.
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
        """The fragments of a tile in a k-step, along K; of each the floats that add up to it."""
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
        """What was loaded as runs of 8."""
        each = FRAGMENT // self._lanes
        return [concat(loaded[at : at + each]) for at in range(0, len(loaded), each)]

    def split(self, floats: ir.Value) -> list[ir.Value]:
        """A run of 8 as the floats in registers that add up to it."""
        return split_floats(self.kind, floats, self.register)


@dataclass(frozen=True, kw_only=True)
class DenseSide(FloatSide):
    """Rows of floats of a dense product, activations or weights. A k-step is one block.

    Of a block each lane group has consecutive elements: so a load of all lanes reads whole segments
    of memory, 64 bytes of a row of 16-bit floats. `ragged`: a step may go beyond the end of K.
    """

    ragged: bool

    @property
    def _part(self) -> int:
        """Bytes of a block that a lane has."""
        return self.kind.block_bytes // self.instruction.groups

    @property
    def loads(self) -> int:
        """Loads for a block of all tiles."""
        return len(self.rows) * (self._part // _LOAD)

    def block(self, first: ir.Value, number: int) -> list[ir.Value]:
        """Block `first + number` of all tiles; zero past the end of a row."""
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
        """Runs of 8 along K that the lane has of a tile; of each the floats that add up to it."""
        count = self._part // _LOAD
        start = k_step * self.loads + tile * count
        runs = self._runs([loaded.elements[start + number] for number in range(count)])
        return [self.split(each) for each in runs]


def loaded_ahead(unit: MatrixUnit) -> bool:
    """Whether floats of a k-step are loaded while those of the one before are multiplied."""
    return unit.registers > _FEW


def split_floats(kind: FloatBlocks, floats: ir.Value, register: Register) -> list[ir.Value]:
    """A run of 8 floats of a kind as the floats in registers that add up to it."""
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
    """The first `count` bf16 whose sum are f32 [n], each with the next 8 bits; three are all of an
    f32. An infinity is its own first part, unless all are said to be `finite`. `rounded`: the last
    part is rounded to nearest, by the instructions of this unit; else cut off."""
    found, size = [], lanes_of(left)
    for part in range(count):
        last = part + 1 == count
        found.append(_nearest(left, rounded) if last and rounded else upper_halves(left))
        if not last:
            bits = bitcast(left, i32(), size)
            high = bitcast(bits & _HIGH, f32(), size)
            rest = left - high
            if not finite:
                # Infinities, which are their own high part, have nothing left.
                same = arith.cmpf(arith.CmpFPredicate.OEQ, left, high)
                rest = arith.select(same, splat(0, f32(), size), rest)
            left = rest
    return found


def _nearest(floats: ir.Value, unit: MatrixUnit) -> ir.Value:
    """f32 [n] as bf16 [n]. Where no instruction rounds, what is halfway goes away from zero, and
    what is no number must not be there alone."""
    size = lanes_of(floats)
    if unit.rounds:
        return arith.truncf(of(ir.BF16Type.get(), size), floats)
    return upper_halves(bitcast(bitcast(floats, i32(), size) + _HALF, f32(), size))
