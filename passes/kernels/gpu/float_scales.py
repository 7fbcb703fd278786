"""f32 scales that differ along K: which of them GPU kernels support, and how a step has them.

No matrix instruction takes an f32 scale. So the elements under one are multiplied without it, and
their sum is multiplied by the scales of both sides (products.py). A k-step covers one block of 32
for each lane group. If a scale is for fewer blocks than there are lane groups, a k-step is several
sums. Each of them is over `width` blocks, of which every lane group has a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from mxc.dialects.reasons import Reason
from mxc.formats.formats import E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, INT4, INT8, ElementFormat
from mxc.passes.kernels.gpu.fragments import BLOCK, TileInstruction
from mxc.targets.matrix_unit import MatrixUnit

#: Elements that may be under f32 scales. They are multiplied as they are, or as equal bf16.
ELEMENTS = (E4M3, E5M2, E4M3FNUZ, E5M2FNUZ, INT8, INT4)

#: Number of f32 scales in a load of 16 bytes.
_LOAD = 4


def blocks_of_scale(element: ElementFormat, block: int, unit: MatrixUnit) -> int | Reason:
    """Return the number of blocks of 32 that share an f32 scale for `block` elements.

    Returns a Reason if no kernel multiplies sums by such scales.
    """
    if element not in ELEMENTS:
        known = ", ".join(each.mlir for each in ELEMENTS)
        return Reason(f"a side is {element.mlir} under f32; kernels take {known} under f32")
    if unit.family != "mfma":
        return Reason("kernels for wmma take no f32 scales that differ along a row")
    if block <= 0 or block % BLOCK:
        return Reason(f"an f32 scale is for {block} elements; kernels take multiples of {BLOCK}")
    return block // BLOCK


@dataclass(frozen=True)
class StepFactors:
    """The f32 scales of a row in a step: `count` scales, `stride` blocks apart.

    `together`: number of them that are contiguous in memory, in every step.
    """

    count: int
    stride: int
    together: int

    @property
    def late(self) -> bool:
        """Whether they are too many to be loaded to registers one step ahead."""
        return self.count > _LOAD


def factors_of_step(shared: int, instruction: TileInstruction, sums: int) -> StepFactors:
    """Return the f32 scales that a row has in a step.

    `shared`: number of blocks that share a scale. `sums`: number of sums of a k-step.
    """
    step = instruction.step
    if shared % step == 0:
        return StepFactors(1, step, 1)
    if step % shared == 0:
        count = step // shared
        return StepFactors(count, shared, min(count, _LOAD))
    width = instruction.groups // sums
    return StepFactors(step // width, width, 1)


def sums_of(groups: int, *shared: int) -> int:
    """Return the number of sums of a k-step over `groups` blocks.

    `shared`: for each side with f32 scales, the number of blocks that share a scale.
    """
    return groups // gcd(groups, *shared)
