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

#: How the program is written. "canonical": as mxc's builders write it. "floordiv": rank-2 operands,
#: scales read by `floordiv` maps. "materialised": both sides are dequantized to tensors, which are
#: multiplied. "dequantized": only the weight is. "quantize", "dequantize": no contraction.
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
#: Elements per f32 scale, and the elements that have such scales, by the names of the formats.
_F32_BLOCK = 128
_UNDER_F32 = {"fp8s": E4M3, "i8s": INT8, "i4s": INT4}
#: The name of fp8 with an f32 scale for each square of 128 rows by 128 elements.
SQUARES = "fp8sq"
#: What follows the contraction.
Epilogue = Literal["", "bias_silu", "gelu", "gelu_tanh", "relu", "bf16", "f16", "quantize"]


def format_of(name: str) -> BlockFormat:
    """Return the format of a side by its short name."""
    if name in _UNDER_F32:
        return BlockFormat(name, _UNDER_F32[name], _F32_BLOCK, F32)
    if name == SQUARES:
        return BlockFormat(name, E4M3, _F32_BLOCK, F32, rows=_F32_BLOCK)
    return FORMATS[SHORT[name]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program: activations [m, k] by weights [n, k].

    m: -1 if dynamic. lhs, rhs: formats of activations and weights, named as in `format_of` or
    `FLOATS`. block: elements per scale, 0 for those of the format. batch: leading dimension of both
    sides, or with `shared` of the activations only; 0 for none. experts, choices: number of experts
    whose weights are gathered, and experts per token of m tokens; 0 for none. between: element type
    of the tensors that the program dequantizes to. source: the type from which the program
    quantizes (or rounds) the activations first; "" if it does not. spelled: the program in the
    form of another project (matrix_spellings.py), from which the other fields are taken.
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
        """Whether the program has a contraction."""
        return self.form not in ("quantize", "dequantize")

    @property
    def weight_only(self) -> bool:
        """Whether the activations are plain floats."""
        return self.lhs in FLOATS

    @property
    def is_dense(self) -> bool:
        """Whether the weights are plain floats too."""
        return self.rhs in FLOATS

    @property
    def scales_fit(self) -> bool:
        """Whether scaled instructions can compute the case.

        They can if E8M0 scales are for 32 elements or more and f32 scales for 128 or more, and if
        the type `between` loses nothing: f16 lacks most scales, bf16 the least values of 8 bits.
        """
        sides = (self.lhs, self.rhs)
        few = self.block == 16 or ("fp8s" in sides and 0 < self.block < _F32_BLOCK)
        whole = not few and not {"nvf4", "int8", "i8s", "i4s"} & set(sides)
        wide = "e4m3" in (self.lhs, self.rhs) or "e5m2" in (self.lhs, self.rhs)
        return whole and self.between != "f16" and not (self.between == "bf16" and wide)

    @property
    def kernels_wanted(self) -> int:
        """The largest number of kernels that is accepted.

        One for a contraction with its epilogue. One more if activations are quantized, for each
        other product before or after it, and for each weight tensor that is reordered. Two more if
        the program quantizes the result with its own operations. Their result for a NaN differs
        from that of mxc's blocks, and is kept: scales are one kernel, elements another, and the f32
        result goes through memory (docs/gpu-quality.md).
        """
        more = self.spelled
        if more is None:
            return 1 + bool(self.source) + self.unordered
        behind = {"gate": 1, "geglu": 1, "after": 1, "quantize": 2}.get(more.ending, 0)
        return 1 + bool(self.source) + more.before + behind + self.unordered

    @property
    def unordered(self) -> int:
        """Number of weight tensors that the program has in another order than [N, K], K last.

        These are elements [K, N], elements in another order of nibbles (the first of two in the
        high nibble, or the first half of a row in the low nibbles), and scales [K / 32, N]. The
        program loads them as they are, so each call reorders them.
        """
        if self.spelled is None or not self.spelled.rhs.packed:
            return 0
        side, both = self.spelled.rhs, self.spelled.gated + 1
        elements = side.layout != "nk" or side.elements in ("high", "halves")
        return both * (elements + (side.scales != "nk"))

    @property
    def result_bytes(self) -> float:
        """Bytes of an element of the result, with its part of a scale."""
        ends = self.epilogue or (self.spelled.ending if self.spelled else "")
        if ends == "quantize":
            return (4 if self.lhs == "f4" else 8) / 8 + 1 / 32
        return 2 if ends in ("bf16", "f16") else 4

    @property
    def does_more(self) -> bool:
        """Whether the program computes more than one contraction and its epilogue."""
        more = self.spelled
        beside = ("twice", "quantize", "gate", "geglu", "after")
        return more is not None and (more.before or more.ending in beside)

    @property
    def moves_more(self) -> bool:
        """Whether the program reads or writes more than both operands and one result."""
        more = self.spelled
        return more is not None and (
            self.does_more
            or self.unordered > 0
            or more.accumulator == "argument"
            or any(each.startswith("residual") for each in more.epilogue)
        )

    @property
    def group_rows(self) -> tuple[int, int]:
        """Number of groups, each with the rows of one expert, and rows of a group, as models group
        them for gfx950. A single token has a group of one row for each choice. -1 if dynamic."""
        if self.m < 0:
            return -1, -1
        pairs = self.m * self.choices
        if self.m == 1:
            return pairs, 1
        rows = rows_of_groups(pairs, self.experts, GFX950.group_rows)
        assert isinstance(rows, int)
        return (pairs + min(self.experts, pairs) * (rows - 1)) // rows, rows
