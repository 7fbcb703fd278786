"""A case of the coverage matrix: one contraction, activations [M, K] by weights [N, K], or one
quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mxc.dialects.expert_groups import rows_of_groups
from mxc.formats.formats import E4M3, F32, FORMATS, INT4, INT8, BlockFormat
from mxc.targets.amd import GFX950

if TYPE_CHECKING:
    from fuzz.description import Program

#: How the program is written: as builders write it; rank-2 operands with `floordiv` maps; both
#: sides dequantized to tensors and then multiplied; only the weight dequantized; no contraction.
Form = Literal["canonical", "floordiv", "materialised", "dequantized", "quantize", "dequantize"]

#: Short names of formats, as they stand in the names of cases.
SHORT = {
    "f4": "mxfp4",
    "f6e2m3": "mxfp6e2m3",
    "f6e3m2": "mxfp6e3m2",
    "e4m3": "mxfp8e4m3",
    "e5m2": "mxfp8e5m2",
    "nvf4": "nvfp4",
    "int8": "mxint8",
}
FLOATS = ("bf16", "f16", "f32")
#: Elements under an f32 scale for so many of them, by their names in cases.
_F32_BLOCK = 128
_UNDER_F32 = {"fp8s": E4M3, "i8s": INT8, "i4s": INT4}
#: fp8 under f32 scales for squares of so many rows and elements of each.
SQUARES = "fp8sq"
#: What follows.
Epilogue = Literal["", "bias_silu", "gelu", "gelu_tanh", "relu", "bf16", "f16", "quantize"]


def format_of(name: str) -> BlockFormat:
    """The format of a side, by its short name."""
    if name in _UNDER_F32:
        return BlockFormat(name, _UNDER_F32[name], _F32_BLOCK, F32)
    if name == SQUARES:
        return BlockFormat(name, E4M3, _F32_BLOCK, F32, rows=_F32_BLOCK)
    return FORMATS[SHORT[name]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program. Names of formats are those of `format_of` or `FLOATS`; m is -1 where dynamic.

    block: elements a scale, 0 for the format's own. batch: leading dimension of both sides, with
    `shared` of the activations only. experts, choices: weights are gathered by expert for m tokens
    that choose so many each. between: element type of what a materialising form writes. source:
    the type from which the activations are quantized first. epilogue: what follows. spelled: the
    program in the words of others (matrix_spellings.py), which says all of this and more.
    """

    name: str
    group: str
    m: int
    n: int
    k: int
    lhs: str = "f4"
    rhs: str = "f4"
    block: int = 0
    batch: int = 0
    shared: bool = False
    experts: int = 0
    choices: int = 0
    form: Form = "canonical"
    between: str = ""
    source: str = ""
    epilogue: Epilogue = ""
    spelled: Program | None = None

    @property
    def contracts(self) -> bool:
        """Whether there is a contraction in it."""
        return self.form not in ("quantize", "dequantize")

    @property
    def weight_only(self) -> bool:
        """Whether the activations are plain numbers."""
        return self.lhs in FLOATS

    @property
    def is_dense(self) -> bool:
        """Whether the weights are plain numbers too."""
        return self.rhs in FLOATS

    @property
    def scales_fit(self) -> bool:
        """Whether scaled instructions compute it: E8M0 scales for 32 elements at least, f32 scales
        for 128; and what is dequantized first loses nothing (f16 lacks most scales, bf16 the least
        values of 8 bits)."""
        sides = (self.lhs, self.rhs)
        few = self.block == 16 or ("fp8s" in sides and 0 < self.block < _F32_BLOCK)
        whole = not few and not {"nvf4", "int8", "i8s", "i4s"} & set(sides)
        wide = "e4m3" in (self.lhs, self.rhs) or "e5m2" in (self.lhs, self.rhs)
        return whole and self.between != "f16" and not (self.between == "bf16" and wide)

    @property
    def kernels_wanted(self) -> int:
        """One for a contraction with its epilogue, one more where activations are quantized, for
        another product, before or after it, and for each operand that is put in order; two more
        where the program quantizes the result in words of its own.

        Those keep what these words make of a NaN, which is not what our blocks have: scales are one
        kernel, elements another, and the f32 result goes through memory (docs/gpu-quality.md).
        """
        more = self.spelled
        if more is None:
            return 1 + bool(self.source) + self.unordered
        behind = {"gate": 1, "geglu": 1, "after": 1, "quantize": 2}.get(more.ending, 0)
        return 1 + bool(self.source) + more.before + behind + self.unordered

    @property
    def unordered(self) -> int:
        """Tensors of weights that the program has in another order than by rows of the sum.

        Elements [K, N], or with the even ones in high nibbles or in a half of their own, and scales
        [K / 32, N]: the program loads them, so that each call puts them in order.
        """
        if self.spelled is None or not self.spelled.rhs.packed:
            return 0
        side, both = self.spelled.rhs, self.spelled.gated + 1
        elements = side.layout != "nk" or side.elements in ("high", "halves")
        return both * (elements + (side.scales != "nk"))

    @property
    def result_bytes(self) -> float:
        """Bytes of an element of the result."""
        ends = self.epilogue or (self.spelled.ending if self.spelled else "")
        if ends == "quantize":
            return (4 if self.lhs == "f4" else 8) / 8 + 1 / 32
        return 2 if ends in ("bf16", "f16") else 4

    @property
    def does_more(self) -> bool:
        """Whether there is something beside one contraction and its epilogue."""
        more = self.spelled
        beside = ("twice", "quantize", "gate", "geglu", "after")
        return more is not None and (more.before or more.ending in beside)

    @property
    def moves_more(self) -> bool:
        """Whether it reads or writes more than both operands and one result."""
        more = self.spelled
        return more is not None and (
            self.does_more
            or self.unordered > 0
            or more.accumulator == "argument"
            or any(each.startswith("residual") for each in more.epilogue)
        )

    @property
    def group_rows(self) -> tuple[int, int]:
        """Groups and rows of a group, of experts: as models group them for gfx950, or each row
        by itself."""
        if self.m < 0:
            return -1, -1
        pairs = self.m * self.choices
        if self.m == 1:
            return pairs, 1
        rows = rows_of_groups(pairs, self.experts, GFX950.group_rows)
        assert isinstance(rows, int)
        return (pairs + min(self.experts, pairs) * (rows - 1)) // rows, rows
