"""f32 scales that differ along K: which of them kernels for GPUs multiply sums by.

No matrix instruction takes an f32 scale. So the elements under one are multiplied without it, and
their sum is multiplied by the scales of both sides (products.py). A k-step goes over
one block of 32 for each lane group; where a scale is for fewer of them than there are groups, a
k-step is several sums, each over `width` blocks that all lane groups share.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from mxc.dialects.reasons import Reason
from mxc.formats.formats import E4M3, E4M3FNUZ, E5M2, E5M2FNUZ, INT4, INT8, ElementFormat
from mxc.passes.kernels.gpu.fragments import BLOCK, TileInstruction
from mxc.targets.matrix_unit import MatrixUnit

#: Elements that are multiplied so: as they are, or as bf16 that are equal to them.
ELEMENTS = (E4M3, E5M2, E4M3FNUZ, E5M2FNUZ, INT8, INT4)

#: f32 of a load.
_LOAD = 4


def blocks_of_scale(element: ElementFormat, block: int, unit: MatrixUnit) -> int | Reason:
    """Blocks of 32 that share an f32 scale for `block` elements, or why no kernel multiplies their
    sums by it."""
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
    """The f32 scales of a row in a step: `count`, from one to the next `stride` blocks.

    `together`: so many lie side by side in memory, whatever the step.
    """

    count: int
    stride: int
    together: int

    @property
    def late(self) -> bool:
        """Whether they are too many to be in registers a step ahead."""
        return self.count > _LOAD


def factors_of_step(shared: int, instruction: TileInstruction, sums: int) -> StepFactors:
    """Those of a row with a scale for each `shared` blocks, where a k-step is `sums` sums."""
    step = instruction.step
    if shared % step == 0:
        return StepFactors(1, step, 1)
    if step % shared == 0:
        count = step // shared
        return StepFactors(count, shared, min(count, _LOAD))
    width = instruction.groups // sums
    return StepFactors(step // width, width, 1)


def sums_of(groups: int, *shared: int) -> int:
    """Sums of a k-step over `groups` blocks of sides with an f32 scale per `shared` blocks."""
    return groups // gcd(groups, *shared)
