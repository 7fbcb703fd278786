"""What the matrix instructions of an AMD GPU take and give: one frozen record an architecture.

All of them multiply a tile of `rows` rows by one of as many columns, and hold it alike: lane l of
the wave has row l % rows of either side, in group g = l / rows along K, and of the result column
l % rows. What differs:

    lanes       of a wave: 64, or 32
    depth       of an instruction along K: a lane gives depth / groups elements of its row
    run         sum e of a lane is row  run groups (e / run) + run g + e % run  of the result

Which elements along K a group has is of no importance where each side is read by the same map: a
sum may take them in any order. So a bf16 instruction needs no more than what is here; a scaled one
needs the place of its scales (passes/kernels/gpu/fragments.py).

Imports no MLIR and no IREE: a schedule may be chosen by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Form:
    """An instruction: `rows` x `rows` over `depth` along K, f32 sums, in so many clocks."""

    rows: int
    depth: int
    clocks: int


@dataclass(frozen=True, kw_only=True)
class MatrixUnit:
    """The matrix instructions of the architecture `target`.

    `family`: the word of MLIR's dialect amdgpu. `forms`: for bf16. `scaled_forms`: for elements of
    `scaled_bits` with E8M0 scales of blocks of 32, whose place is known; of 4 bits on both sides,
    where more take longer. `converts`: v_cvt_scalef32_* make bf16 of elements. `dma`: bytes a lane
    that a load to LDS may have, 0 where it is not used.
    """

    target: str
    family: Literal["mfma", "wmma"]
    lanes: int
    run: int
    forms: tuple[Form, ...]
    source: str
    scaled_forms: tuple[Form, ...] = ()
    scaled_bits: tuple[int, ...] = ()
    converts: bool = False
    dma: int = 0

    def form(self, rows: int) -> Form:
        """The bf16 instruction of so many rows. Raises ValueError where there is none."""
        return self._of(rows, self.forms)

    def scaled_form(self, rows: int) -> Form:
        """The scaled instruction of so many rows. Raises ValueError where there is none."""
        return self._of(rows, self.scaled_forms)

    def takes(self, *bits: int) -> bool:
        """Whether scaled instructions take elements of so many bits as they are."""
        return all(each in self.scaled_bits for each in bits)

    def _of(self, rows: int, forms: tuple[Form, ...]) -> Form:
        for form in forms:
            if form.rows == rows:
                return form
        known = ", ".join(str(form.rows) for form in forms) or "none"
        raise ValueError(f"{self.target} has such instructions of {known} rows, not of {rows}")


GFX950 = MatrixUnit(
    target="gfx950",
    family="mfma",
    lanes=64,
    run=4,
    forms=(Form(16, 32, 16), Form(32, 16, 32)),
    scaled_forms=(Form(16, 128, 16), Form(32, 64, 32)),
    scaled_bits=(4, 6, 8),
    converts=True,
    dma=16,
    source="AMD CDNA4 ISA guide, 7.1.3 to 7.1.5 and table 28",
)

#: CDNA3 has the same maps (AMD Instinct MI300 ISA guide, 7.1.3 and 7.1.4; AMD's Matrix Instruction
#: Calculator, `--architecture cdna3`), half the depth, and none of the instructions with scales.
GFX942 = MatrixUnit(
    target="gfx942",
    family="mfma",
    lanes=64,
    run=4,
    forms=(Form(16, 16, 16), Form(32, 8, 32)),
    dma=4,
    source="AMD CDNA3 ISA guide, 7.1 and table 28",
)

#: All rows of a group lie together: AMD RDNA4 ISA guide, 7.9.1 (layout of 16-bit A and B and of
#: 32-bit C and D, wave32); the same in IREE's IREEGPUAttrs.cpp (WMMAR4_F32_16x16x16_BF16). The
#: clocks are worked out: 195 TFLOP/s of f16 at 2.97 GHz on 128 SIMDs (AMD Radeon RX 9070 XT).
GFX1201 = MatrixUnit(
    target="gfx1201",
    family="wmma",
    lanes=32,
    run=8,
    forms=(Form(16, 16, 16),),
    source="AMD RDNA4 ISA guide, 7.9",
)

#: Groups as of gfx1201: Triton's LinearLayoutConversions.cpp, wmmaDotOperandToLinearLayout and
#: AMDWmmaEncodingAttr (version 3), and its tests. It has no 6 bits, and no other source of them was
#: found: they are decoded. Clocks: LLVM SISchedule.td, GFX1250SpeedModel (XDL of two passes).
GFX1250 = MatrixUnit(
    target="gfx1250",
    family="wmma",
    lanes=32,
    run=8,
    forms=(Form(16, 32, 8),),
    scaled_forms=(Form(16, 128, 8),),
    scaled_bits=(4, 8),
    source="Triton, LinearLayoutConversions.cpp; LLVM VOP3PInstructions.td",
)

UNITS = (GFX950, GFX942, GFX1201, GFX1250)


def matrix_unit(target: str) -> MatrixUnit | None:
    """The matrix instructions of a GPU by its name; None where none are known here."""
    return next((unit for unit in UNITS if unit.target == target), None)
