"""The matrix instructions of an AMD GPU: shapes, operands, clocks, and the place of every sum.

All of them multiply a tile of `rows` rows by one of as many columns, with one layout. Lane l of the
wave has row l % rows of either operand, in group g = l / rows along K, and column l % rows of the
result. GPUs differ in:

    lanes       lanes per wave: 64 or 32
    k           elements along K per instruction: a lane holds k / groups elements of its row
    replicated  lanes of all groups hold the same k elements of their row instead
    run         sum e of a lane is row  run groups (e / run) + run g + e % run  of the result

Which elements along K a group has does not matter if both operands use the same map, because a sum
may take its terms in any order. A bf16 instruction therefore needs no more than this record; a
scaled instruction also needs the place of its scales (passes/kernels/gpu/fragments.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

#: MLIR names of the MX element types; an f8f6f4 instruction takes any pair of them.
F8F6F4 = ("f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E4M3FN", "f8E5M2")

_LAYOUT = re.compile(r"W?MF?MAR?\d?_[FI]32_16x16x(?P<k>\d+)_(?P<element>\w+)")
_SHAPE = re.compile(r"_(\d+)x(\d+)x(\d+)_")


@dataclass(frozen=True)
class MatrixInstruction:
    """D[m, n] += sum over k of A[m, k] B[k, n] in f32; the mnemonic includes the shape.

    `clocks`: clocks for which it occupies the matrix core, with 4-bit elements on both sides where
    wider ones take longer; 0 where no source states it. `block`: elements along K per E8M0 scale, 0
    without scales. `lhs`, `rhs`: possible element types (MLIR names) of each operand, independent
    of the other. `selected`: IREE selects the instruction by itself, where both operands have one
    format and there are at least m rows.
    """

    mnemonic: str
    clocks: int = 0
    block: int = 0
    lhs: tuple[str, ...] = ("bf16",)
    rhs: tuple[str, ...] = ("bf16",)
    selected: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a mnemonic without a shape, partial blocks, or unknown types."""
        if _SHAPE.search(self.mnemonic) is None:
            raise ValueError(f"the mnemonic has no shape in {self}")
        if self.block < 0 or (self.block and self.k % self.block):
            raise ValueError(f"k is not a positive number of blocks in {self}")
        known = set(F8F6F4) if self.block else {"bf16"}
        if not self.lhs or not self.rhs or not set(self.lhs) | set(self.rhs) <= known:
            raise ValueError(f"unknown element type in {self}")

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """m, n and k."""
        found = _SHAPE.search(self.mnemonic)
        assert found is not None
        m, n, k = map(int, found.groups())
        return m, n, k

    @property
    def m(self) -> int:
        """Rows of A and of the result."""
        return self.shape[0]

    @property
    def n(self) -> int:
        """Columns of B and of the result."""
        return self.shape[1]

    @property
    def k(self) -> int:
        """Elements along K."""
        return self.shape[2]


def scaled(
    mnemonic: str,
    clocks: int = 0,
    *,
    block: int = 32,
    elements: tuple[str, ...] = F8F6F4,
    selected: bool = False,
) -> MatrixInstruction:
    """A scaled instruction whose operands may each have any type of `elements`."""
    return MatrixInstruction(mnemonic, clocks, block, elements, elements, selected)


@dataclass(frozen=True, kw_only=True)
class MatrixUnit:
    """The matrix instructions of one GPU.

    `family`: the operation of MLIR's dialect amdgpu. `registers`: vector registers that a lane may
    have, accumulation registers included. `scaled_bits`: element widths for which the place of the
    scales in a square instruction is known; other widths are decoded. `converts`: the
    GPU has v_cvt_scalef32_*, which convert scaled elements to bf16. `rounds`: it has
    v_cvt_pk_bf16_f32, which rounds f32. `extends_fnuz`: it has v_cvt_pk_f32_fp8 and
    v_cvt_pk_f32_bf8, which read FNUZ numbers. `swaps`: it has v_permlane16_swap and
    v_permlane32_swap, which exchange groups of lanes. `dma`: bytes per lane of a load straight to
    LDS, 0 where such loads are not used. `layouts`: the instructions with 16 rows that IREE's code
    generator knows, by its names (IREEGPUEnums.td), which end with the type of both operands.
    """

    family: Literal["mfma", "wmma"]
    lanes: int
    registers: int
    run: int
    instructions: tuple[MatrixInstruction, ...]
    source: str
    replicated: bool = False
    scaled_bits: tuple[int, ...] = ()
    converts: bool = False
    rounds: bool = False
    extends_fnuz: bool = False
    swaps: bool = False
    dma: int = 0
    layouts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for an instruction whose result does not fill a wave."""
        for each in self.instructions:
            if each.m * each.n % self.lanes:
                raise ValueError(f"{each.mnemonic} does not fill a wave of {self.lanes} lanes")
        for name in self.layouts:
            if _LAYOUT.fullmatch(name) is None:
                raise ValueError(f"{name} is no name of an instruction with 16 rows")

    @property
    def scaled(self) -> tuple[MatrixInstruction, ...]:
        """The instructions with block scales."""
        return tuple(each for each in self.instructions if each.block)

    @property
    def forms(self) -> tuple[MatrixInstruction, ...]:
        """The instructions for bf16."""
        return tuple(each for each in self.instructions if not each.block)

    def form(self, rows: int) -> MatrixInstruction:
        """The bf16 instruction with this number of rows. Raises ValueError where there is none."""
        return self._of(rows, self.forms)

    def scaled_form(self, rows: int) -> MatrixInstruction:
        """The square instruction with `rows` rows and a scale per 32 elements, else ValueError."""
        forms = (each for each in self.scaled if each.m == each.n and each.block == 32)
        return self._of(rows, tuple(forms) if self.scaled_bits else ())

    def layout(self, element: str) -> tuple[str, int] | None:
        """IREE's instruction for operands of this type (MLIR name): its name, and the elements that
        it takes along K. None where there is none."""
        for name in self.layouts:
            found = _LAYOUT.fullmatch(name)
            if found is not None and found["element"].lower() == element.lower():
                return name, int(found["k"])
        return None

    def takes(self, *bits: int) -> bool:
        """Whether scaled instructions take elements of all these widths without decoding."""
        return all(each in self.scaled_bits for each in bits)

    def _of(self, rows: int, forms: tuple[MatrixInstruction, ...]) -> MatrixInstruction:
        for form in forms:
            if form.m == rows:
                return form
        known = ", ".join(str(form.m) for form in forms) or "none"
        raise ValueError(f"{self.family} has such instructions of {known} rows here, not of {rows}")
