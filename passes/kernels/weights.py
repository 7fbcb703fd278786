"""How a kernel reads weights: the layout in memory, and what becomes of it in registers.

A panel is 16 columns of the result, one a lane. Along K a kernel goes in blocks of 32; a block of
a panel is decoded in steps, each of which gives one register for the dot product to use with the
activations of the same step.

Layouts (compiler/packing/panels.py writes them while packing): "panel16xU" takes 16 rows
[16, row] and turns them into [row / U, 16] units of U bytes, so that unit i of all 16 rows is one
register.
- mxfp4 elements, U = 4: [N/16, KB, 4, 16] dwords; nibble t of dword j is k = 8j + t.
- scales, U = 1: [N/16, KB, 16].
- bf16 in pairs, U = 4: [N/16, K/2, 16] pairs k = 2p, 2p + 1; for f32 activations, U = 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects import x86
from mxc.dialects.formats import E2M1
from mxc.passes.kernels.vectors import bitcast, i8, i16, i32, index, load, of, splat, table

#: Columns of a panel: the f32 lanes of a 512-bit register.
LANES = 16
#: Elements along K of one pass of a kernel's inner loop.
BLOCK = 32


class Weights(Protocol):
    """What a kernel asks of a weight format. `at` is the place of a block: [.., panel, block]."""

    #: Registers that a block is decoded to.
    steps: int
    #: Activation elements that one step multiplies in each lane.
    pair: bool

    def memrefs(self, place: Sequence[int]) -> list[ir.Type]:
        """Types of the elements, and of the scales if any; `place`: sizes [.., panels, blocks]."""
        ...

    def prepare(self) -> None:
        """Build the constants, before the loops."""

    def decode(self, step: int, blocks: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        """The register of one step."""
        ...

    def scale(self, scales: ir.Value | None, at: Sequence[ir.Value]) -> ir.Value | None:
        """The f32 scales [16] of a block, or None where there are none."""
        ...


def e8m0_scales(scales: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
    """E8M0 bytes as f32: the byte is the exponent; 255 is NaN. Byte 0 (2^-127) becomes zero,
    as the machine's flush of subnormals makes it anyway."""
    raw = load(scales, [*at, index(0)], i8(), LANES)
    wide = arith.extui(of(i32(), LANES), raw)
    power = bitcast(arith.shli(wide, splat(23, i32(), LANES)), ir.F32Type.get(), LANES)
    is_nan = arith.cmpi(arith.CmpIPredicate.eq, wide, splat(255, i32(), LANES))
    return arith.select(is_nan, splat(float("nan"), ir.F32Type.get(), LANES), power)


@dataclass
class Mxfp4Bf16:
    """mxfp4 to pairs of bf16, exactly: 16-bit words are looked up by their low bits (vpermw).

    Step 4j + t takes nibble t of the words of dword j: k = 8j + t and 8j + 4 + t.
    """

    steps: int = 16
    pair: bool = True

    def memrefs(self, place: Sequence[int]) -> list[ir.Type]:
        """[.., 4, 64] and [.., 16] bytes."""
        return [ir.MemRefType.get([*place, 4, 64], i8()), ir.MemRefType.get([*place, LANES], i8())]

    def prepare(self) -> None:
        """The table: vpermw reads five bits of a word, so that it stands twice."""
        bits = (E2M1.values.view(np.uint32) >> 16).astype(np.uint16)
        self._table = table(np.tile(bits, 2).view(np.int16), i16())

    def decode(self, step: int, blocks: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        """One of 16 registers of 32 bf16."""
        dword, nibble = divmod(step, 4)
        words = bitcast(load(blocks, [*at, index(dword), index(0)], i8(), 64), i16(), 32)
        if nibble:
            words = arith.shrui(words, splat(4 * nibble, i16(), 32))
        return bitcast(x86.permute_words(self._table, words), ir.BF16Type.get(), 32)

    def scale(self, scales: ir.Value | None, at: Sequence[ir.Value]) -> ir.Value | None:
        """The block's scales."""
        assert scales is not None
        return e8m0_scales(scales, at)


@dataclass
class Mxfp4F32:
    """mxfp4 to f32, exactly: dwords are looked up by their low four bits (vpermps)."""

    steps: int = 32
    pair: bool = False

    def memrefs(self, place: Sequence[int]) -> list[ir.Type]:
        """[.., 4, 64] and [.., 16] bytes."""
        return [ir.MemRefType.get([*place, 4, 64], i8()), ir.MemRefType.get([*place, LANES], i8())]

    def prepare(self) -> None:
        """The table of the 16 codes."""
        self._table = table(E2M1.values, ir.F32Type.get())

    def decode(self, step: int, blocks: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        """One of 32 registers of 16 f32: k = step."""
        dword, nibble = divmod(step, 8)
        codes = bitcast(load(blocks, [*at, index(dword), index(0)], i8(), 64), i32(), LANES)
        if nibble:
            codes = arith.shrui(codes, splat(4 * nibble, i32(), LANES))
        return x86.permute_floats(self._table, codes)

    def scale(self, scales: ir.Value | None, at: Sequence[ir.Value]) -> ir.Value | None:
        """The block's scales."""
        assert scales is not None
        return e8m0_scales(scales, at)


@dataclass
class DensePairs:
    """bf16 weights as pairs: nothing to decode."""

    steps: int = 16
    pair: bool = True

    def memrefs(self, place: Sequence[int]) -> list[ir.Type]:
        """[.., 16, 32] bf16."""
        return [ir.MemRefType.get([*place, BLOCK // 2, 2 * LANES], ir.BF16Type.get())]

    def prepare(self) -> None:
        """Nothing."""

    def decode(self, step: int, blocks: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        """One of 16 registers of 32 bf16: k = 2 step, 2 step + 1."""
        return load(blocks, [*at, index(step), index(0)], ir.BF16Type.get(), 32)

    def scale(self, scales: ir.Value | None, at: Sequence[ir.Value]) -> ir.Value | None:
        """None."""
        return None


@dataclass
class DenseF32:
    """bf16 weights to f32, exactly: a bf16 is the upper half of an f32."""

    steps: int = 32
    pair: bool = False

    def memrefs(self, place: Sequence[int]) -> list[ir.Type]:
        """[.., 32, 16] bf16."""
        return [ir.MemRefType.get([*place, BLOCK, LANES], ir.BF16Type.get())]

    def prepare(self) -> None:
        """Nothing."""

    def decode(self, step: int, blocks: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        """One of 32 registers of 16 f32: k = step."""
        half = load(blocks, [*at, index(step), index(0)], ir.BF16Type.get(), LANES)
        return arith.extf(of(ir.F32Type.get(), LANES), half)

    def scale(self, scales: ir.Value | None, at: Sequence[ir.Value]) -> ir.Value | None:
        """None."""
        return None


def weights_for(format: str, *, pairs: bool) -> Weights:
    """How weights of a format ("mxfp4", "bf16") meet activations, in pairs of bf16 or in f32."""
    chosen: dict[tuple[str, bool], Weights] = {
        ("mxfp4", True): Mxfp4Bf16(),
        ("mxfp4", False): Mxfp4F32(),
        ("bf16", True): DensePairs(),
        ("bf16", False): DenseF32(),
    }
    return chosen[format, pairs]
