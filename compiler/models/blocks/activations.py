"""Preparation of activations for contractions: rounding, or quantization in blocks of 32 or 16.

A tensor is prepared once for all contractions that read it: Q, K and V, or gate and up. Activations
that multiply MX weights are in the chosen mode. Activations that multiply plain weights are floats
in every mode: there is no product of int8 and bf16, and quantizing could change a router's choice.
"""

from dataclasses import dataclass
from typing import NamedTuple

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.models.blocks.primitives import expand, f32
from mxc.dialects.attention import F32_BITS
from mxc.dialects.generic import generic, shape_of
from mxc.dialects.quantize import BLOCK, quantize_int8, quantize_mx, quantize_nvfp4
from mxc.formats.formats import E4M3, E5M2, F32, FORMATS, BlockFormat
from mxc.formats.recipes import ScaleRecipe

#: Modes in which nothing is quantized.
FLOATS = ("f32", "bf16")

#: The mode of llama.cpp: int8 with a float scale per block.
INT8 = "i8"

#: MX modes: the format, and the recipe of the scales with the least error. For E2M1 and the 6-bit
#: formats it is EVEN (E2M1: 0.3 dB better than FLOOR and RCEIL on normally distributed numbers;
#: Quark and aiter use it too). For the 8-bit formats it is RCEIL, with which nothing saturates
#: (e4m3: 0.9 dB better than FLOOR, 0.3 dB better than EVEN).
MX = {
    "mxfp4": ("mxfp4", ScaleRecipe.EVEN),
    "mxfp6": ("mxfp6e2m3", ScaleRecipe.EVEN),
    "mxfp6e3m2": ("mxfp6e3m2", ScaleRecipe.EVEN),
    "mxfp8": ("mxfp8e4m3", ScaleRecipe.RCEIL),
    "mxint8": ("mxint8", ScaleRecipe.RCEIL),
}

#: e2m1 in blocks of 16 with e4m3 scales, and a float32 scale per row, so that a quantized token
#: does not depend on other tokens of the call.
NVFP4 = "nvfp4"

#: All values of `--activations`.
MODES = (*FLOATS, INT8, *MX, NVFP4)


#: Elements of a row that share a scale in the usual fp8 format, which has a scale per square.
_SQUARE = 128


class PreparationKey(NamedTuple):
    """The properties of a weight format that determine how activations are prepared. `block`: the
    elements per scale. `mx_quantizes`: whether the MX modes quantize activations although `block`
    is larger than an MX block."""

    block: int
    mx_quantizes: bool


@dataclass(frozen=True)
class BlockActivations:
    """Activations for weights in blocks: elements [.., KO, KB], scales [.., KO] where quantized.

    `factors` f32 [..]: the scale of each row, which multiplies products with it; None where rows
    have no scale.
    """

    elements: ir.Value
    scales: ir.Value | None
    factors: ir.Value | None = None


@dataclass(frozen=True)
class Activations:
    """Prepares activations. `mode` is one of MODES, `floats` one of FLOATS.

    `floats`: the type of activations that multiply plain weights; in the modes "f32" and "bf16" it
    equals the mode. `recipe`: the recipe of the scales of MX blocks; None for the default in MX.
    """

    mode: str
    floats: str
    recipe: ScaleRecipe | None = None

    @property
    def bits(self) -> int:
        """Significant bits that attention needs of queries and weights: all of an f32, or, where
        products of its result round it to 8 bits or fewer, 16."""
        return F32_BITS if self.floats == "f32" else 16

    def float_type(self) -> ir.Type:
        """The MLIR type of `floats`."""
        return {"f32": ir.F32Type, "bf16": ir.BF16Type}[self.floats].get()

    def round(self, x: ir.Value) -> ir.Value:
        """Round x f32 [.., K] to `floats`, to nearest even, for plain weights."""
        kind = self.float_type()
        if kind == f32():
            return x
        loops = " ".join("abcdef"[: len(shape_of(x))])
        return generic([(x, loops)], loops, kind, lambda a: arith.truncf(kind, a))

    def blocks(self, x: ir.Value, format: BlockFormat) -> BlockActivations:
        """Prepare x f32 [.., K] for weights of `format`.

        x is quantized where the mode's block size is that of `format`. An MX mode also quantizes x
        for fp8 weights whose float scales are for 128 elements or a multiple; not for fewer,
        because no kernel for GPUs takes 6 bits there. Otherwise x is rounded to `floats`.
        """
        if self.mode == NVFP4 and format.block == FORMATS[NVFP4].block:
            return BlockActivations(*quantize_nvfp4(x))
        block, mx_quantizes = preparation_key(format)
        if self.mode in MX and mx_quantizes:
            return BlockActivations(*self._mx(x))
        if block != BLOCK:
            return BlockActivations(in_blocks(self.round(x), block), None)
        if self.mode == INT8:
            return BlockActivations(*quantize_int8(x))
        if self.mode in MX:
            return BlockActivations(*self._mx(x))
        return BlockActivations(in_blocks(self.round(x)), None)

    def _mx(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """x f32 [.., K] in the MX format of the mode: elements [.., K / 32, 32] and scales."""
        name, usual = MX[self.mode]
        return quantize_mx(x, name, self.recipe or usual)


def preparation_key(format: BlockFormat) -> PreparationKey:
    """How activations are prepared for weights of this format."""
    fp8 = format.element in (E4M3, E5M2) and format.scale == F32
    return PreparationKey(format.block, fp8 and format.block % _SQUARE == 0)


def in_blocks(x: ir.Value, block: int = BLOCK) -> ir.Value:
    """Reshape x [.., K] to [.., K / block, block]."""
    *lead, depth = shape_of(x)
    groups = [*([axis] for axis in range(len(lead))), [len(lead), len(lead) + 1]]
    return expand(x, groups, [*lead, depth // block, block])
