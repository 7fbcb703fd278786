"""Which elements a lane holds of a scaled matrix instruction, and where their scale comes from.

v_mfma_scale_f32_{16x16x128,32x32x64}_f8f6f4 multiplies a tile of 16 (32) rows by one of 16
(32) columns, over 4 (2) blocks of 32 along K. Lane l has row l % 16 (32) of its tile, in group
g = l / 16 (32):

    4 and 6 bits    its 32 elements are block g
    8 bits          elements 0-15 are run g of 16, 16-31 are run g + 4 (2): a block is two runs
    the scale       that it gives is the scale of block g of its row

Sources: AMD, "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture";
composable_kernel test/mx_mfma_op/mx_mfma_op.hpp (045a71bc14e9), a test on hardware. The stock
compiler holds 8-bit elements to be contiguous as well, which pairs them with wrong scales.

The sum over K may take the blocks in any order, as long as both sides take the same. Four
instructions, a *step*, go over 16 (8) blocks, and instruction x takes

    block b of the instruction = block 4 b + x of the step

so that the scales which lane group g gives to the four instructions are four bytes in a row, one
dword of the scales as they lie in memory; `op_sel` chooses x.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mxc.targets.amd import GFX950
from mxc.targets.matrix_unit import MatrixInstruction, MatrixUnit

#: Elements that share a scale.
BLOCK = 32
#: Instructions of a step: the scales in a dword.
K_STEPS = 4
#: Consecutive sums of a lane that are stored at once.
QUAD = 4
#: Elements of a fragment of bf16 or f16: 16 bytes.
FRAGMENT = 8


@dataclass(frozen=True)
class TileInstruction:
    """A matrix instruction of `unit` by the rows of a tile.

    Raises ValueError where the unit has none of so many rows.
    """

    rows: int
    unit: MatrixUnit = field(default=GFX950.matrix, repr=False)

    def __post_init__(self) -> None:
        """Ask the unit."""
        assert self.form.m == self.rows

    @property
    def form(self) -> MatrixInstruction:
        """That for bf16."""
        return self.unit.form(self.rows)

    @property
    def lane_groups(self) -> int:
        """Groups of `rows` lanes, which have different rows of the result."""
        return self.unit.lanes // self.rows

    @property
    def groups(self) -> int:
        """Lane groups with different blocks along K."""
        return 1 if self.unit.replicated else self.lane_groups

    @property
    def fragment(self) -> int:
        """The bf16 that a lane gives to an instruction."""
        return self.form.k // self.groups

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, n, k of the scaled instruction."""
        return self.rows, self.rows, self.unit.scaled_form(self.rows).k

    @property
    def k_steps(self) -> int:
        """Scaled instructions of a step."""
        return self.step * BLOCK // self.shape[2]

    @property
    def clocks(self) -> int:
        """Clocks of a matrix core for a scaled block per lane; twice as many where one has 8
        bits."""
        return self.unit.scaled_form(self.rows).clocks * self.k_steps // K_STEPS

    @property
    def decoded_clocks(self) -> int:
        """The same in bf16."""
        return BLOCK // self.fragment * self.form.clocks

    @property
    def byte_clocks(self) -> int:
        """The same of floats of 8 bits, on one side or both."""
        return 2 * self.clocks

    @property
    def step(self) -> int:
        """Blocks of a step."""
        return K_STEPS * self.groups

    @property
    def totals(self) -> int:
        """Sums that a lane holds: of one column, rows as `row` says."""
        return self.rows * self.rows // self.unit.lanes

    def row(self, quad: int) -> int:
        """Sums 4 quad .. 4 quad + 3 of a lane belong to rows run x group + this, and the next."""
        runs, rest = divmod(4 * quad, self.run)
        return self.run * self.lane_groups * runs + rest

    @property
    def interleaved(self) -> bool:
        """Whether consecutive rows of the result are in different lane groups.

        Then the rows of an operand are given in another order, so that a lane has a run of them.
        """
        return self.unit.run < QUAD

    @property
    def run(self) -> int:
        """Consecutive rows of the result that a lane has."""
        return self.totals if self.interleaved else self.unit.run


@dataclass(frozen=True)
class FragmentPiece:
    """Bytes of a lane's fragment that lie together: a part of a block.

    Block `first + group // share` of the instruction, from `start + stride * (group % share)` bytes
    of it on.
    """

    bytes: int
    first: int = 0
    share: int = 1
    start: int = 0
    stride: int = 0


def pieces(bits: int, instruction: TileInstruction) -> tuple[FragmentPiece, ...]:
    """What a lane loads of its row for one scaled instruction, in the order of its registers."""
    if instruction.unit.family == "wmma":
        return _wide(bits, instruction)
    if bits == 8:
        runs = 2  # of 16 elements, in a block
        half = instruction.groups // runs
        return tuple(
            FragmentPiece(16, first=part * half, share=runs, stride=16) for part in range(2)
        )
    return whole(bits)


def _wide(bits: int, instruction: TileInstruction) -> tuple[FragmentPiece, ...]:
    """Pieces for v_wmma_scale: 16 bytes of each group alternately."""
    groups, blocks = instruction.groups, instruction.shape[2] // BLOCK
    if bits == 4:
        return tuple(FragmentPiece(16, first=first) for first in range(0, blocks, groups))
    return tuple(FragmentPiece(16, first=block, share=groups, stride=16) for block in range(blocks))


def shared_pieces(bits: int, groups: int, sums: int) -> tuple[FragmentPiece, ...]:
    """What a lane loads of `groups` blocks that are `sums` sums: its part of the blocks of each."""
    size = BLOCK * bits // 8 // sums
    return tuple(
        FragmentPiece(size, first=number * groups // sums, share=sums, stride=size)
        for number in range(sums)
    )


def whole(bits: int) -> tuple[FragmentPiece, ...]:
    """The whole block of the lane's group."""
    size = BLOCK * bits // 8
    # Blocks of 24 bytes lie on multiples of 8.
    unit = 16 if size % 16 == 0 else 8
    return tuple(FragmentPiece(unit, start=at) for at in range(0, size, unit))
