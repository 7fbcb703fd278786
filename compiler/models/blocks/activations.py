"""What contractions see of their activations: rounded, or quantized in blocks of 32 or 16.

One tensor is prepared once and read by every contraction that shares it: Q, K and V, gate and up.
MX weights meet the mode that was chosen. Plain weights meet floats in every mode: there is no
product of int8 and bf16, and the router decides by differences that quantizing would move.
"""

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.models.blocks.primitives import expand, f32
from mxc.dialects.generic import generic, shape_of
from mxc.dialects.quantize import BLOCK, quantize_int8, quantize_mx, quantize_nvfp4
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.formats.recipes import ScaleRecipe

#: Modes in which nothing is quantized.
FLOATS = ("f32", "bf16")

#: The mode of llama.cpp: int8 with a float scale a block.
INT8 = "i8"

#: MX modes: the format and the recipe of the scales. Of E2M1, EVEN loses least (0.3 dB less than
#: FLOOR and RCEIL on normal numbers, and what Quark and aiter take), as of the 6-bit formats; of
#: the 8-bit formats, RCEIL, with which nothing saturates (e4m3: 0.9 dB less than FLOOR, 0.3 dB less
#: than EVEN).
MX = {
    "mxfp4": ("mxfp4", ScaleRecipe.EVEN),
    "mxfp6": ("mxfp6e2m3", ScaleRecipe.EVEN),
    "mxfp6e3m2": ("mxfp6e3m2", ScaleRecipe.EVEN),
    "mxfp8": ("mxfp8e4m3", ScaleRecipe.RCEIL),
    "mxint8": ("mxint8", ScaleRecipe.RCEIL),
}

#: e2m1 in blocks of 16 under e4m3 scales, and a float32 for each row: what a token becomes depends
#: on no other token of the call.
NVFP4 = "nvfp4"

#: All that `--activations` may be.
MODES = (*FLOATS, INT8, *MX, NVFP4)


@dataclass(frozen=True)
class Blocks:
    """Activations for weights in blocks: elements [.., KO, KB], scales [.., KO] where quantized.

    `factors` f32 [..]: what products with a row are multiplied with, where it has a scale of its
    own.
    """

    elements: ir.Value
    scales: ir.Value | None
    factors: ir.Value | None = None


@dataclass(frozen=True)
class Activations:
    """How activations are prepared: `mode` is one of MODES, `floats` one of FLOATS.

    `floats` is what meets plain weights; in the modes "f32" and "bf16" it
    is the mode. `recipe`: of the scales of MX blocks, None for the one of MX.
    """

    mode: str
    floats: str
    recipe: ScaleRecipe | None = None

    def float_type(self) -> ir.Type:
        """The MLIR type of `floats`."""
        return {"f32": ir.F32Type, "bf16": ir.BF16Type}[self.floats].get()

    def round(self, x: ir.Value) -> ir.Value:
        """x f32 [.., K] as plain weights see it: `floats`, rounded to nearest even."""
        kind = self.float_type()
        if kind == f32():
            return x
        loops = " ".join("abcdef"[: len(shape_of(x))])
        return generic([(x, loops)], loops, kind, lambda a: arith.truncf(kind, a))

    def blocks(self, x: ir.Value, format: BlockFormat) -> Blocks:
        """x f32 [.., K] as weights of `format` see it.

        Quantized only in blocks of as many: two scales of a product share their block.
        """
        if self.mode == NVFP4 and format.block == FORMATS[NVFP4].block:
            return Blocks(*quantize_nvfp4(x))
        if format.block != BLOCK:
            return Blocks(in_blocks(self.round(x), format.block), None)
        if self.mode == INT8:
            return Blocks(*quantize_int8(x))
        if self.mode in MX:
            name, usual = MX[self.mode]
            return Blocks(*quantize_mx(x, name, self.recipe or usual))
        return Blocks(in_blocks(self.round(x)), None)


def in_blocks(x: ir.Value, block: int = BLOCK) -> ir.Value:
    """[.., K] as [.., K / block, block]."""
    *lead, depth = shape_of(x)
    groups = [*([axis] for axis in range(len(lead))), [len(lead), len(lead) + 1]]
    return expand(x, groups, [*lead, depth // block, block])
