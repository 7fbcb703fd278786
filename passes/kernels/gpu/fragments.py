"""Which elements of a scaled matrix instruction a lane holds, and which lane has their scale.

v_mfma_scale_f32_{16x16x128,32x32x64}_f8f6f4 multiplies a tile of 16 (32) rows by a tile of 16 (32)
columns, over 4 (2) blocks of 32 along K. Lane l has row l % 16 (32) of its tile, and is in group
g = l / 16 (32). It passes 32 elements and a scale:

    4 and 6 bits    the elements are block g of its row
    8 bits          elements 0-15 are run g of 16, 16-31 are run g + 4 (2): a block is two runs
    the scale       is that of block g of its row

Sources: AMD, "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture";
composable_kernel test/mx_mfma_op/mx_mfma_op.hpp (045a71bc14e9), a test on hardware. The stock
compiler takes 8-bit elements to be contiguous as well, and so pairs them with wrong scales.

The sum over K may take the blocks in any order, as long as both sides use the same order. Four
instructions, a *step*, cover 16 (8) blocks, and instruction x (a *k-step*) takes

    block b of the instruction = block 4 b + x of the step

The scales that lane group g passes to the four instructions are then four consecutive bytes of the
scales in memory, one dword; `op_sel` selects byte x.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mxc.targets.amd import GFX950
from mxc.targets.matrix_unit import MatrixInstruction, MatrixUnit

#: Elements of a block. With an MX format, they share a scale.
BLOCK = 32
#: Rows, and columns, of the smallest tile of a matrix instruction.
SMALLEST_TILE = 16
#: K-steps of a step: one for each of the four scales in a dword.
K_STEPS = 4
#: Sums of a lane that are stored at once: of consecutive columns of the result.
QUAD = 4
#: Elements of a fragment of bf16 or f16: 16 bytes.
FRAGMENT = 8


@dataclass(frozen=True)
class TileInstruction:
    """The matrix instructions of `unit` for tiles of `rows` rows.

    Raises ValueError if the unit has no bf16 instruction with this number of rows.
    """

    rows: int
    unit: MatrixUnit = field(default=GFX950.matrix, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError if there is no such instruction."""
        assert self.form.m == self.rows

    @property
    def form(self) -> MatrixInstruction:
        """The instruction for bf16."""
        return self.unit.form(self.rows)

    @property
    def lane_groups(self) -> int:
        """Number of groups of `rows` lanes, which hold different rows of the result."""
        return self.unit.lanes // self.rows

    @property
    def groups(self) -> int:
        """Number of lane groups that hold different blocks along K."""
        return 1 if self.unit.replicated else self.lane_groups

    @property
    def fragment(self) -> int:
        """Number of bf16 that a lane passes to the bf16 instruction for an operand."""
        return self.form.k // self.groups

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, n, k of the scaled instruction."""
        return self.rows, self.rows, self.unit.scaled_form(self.rows).k

    @property
    def k_steps(self) -> int:
        """Number of scaled instructions along K in a step."""
        return self.step * BLOCK // self.shape[2]

    @property
    def clocks(self) -> int:
        """Clocks of a matrix core for a block per lane by the scaled instruction.

        If one side has 8-bit elements they are twice as many: `byte_clocks`.
        """
        return self.unit.scaled_form(self.rows).clocks * self.k_steps // K_STEPS

    @property
    def decoded_clocks(self) -> int:
        """Clocks of a matrix core for a block per lane by the bf16 instruction."""
        return BLOCK // self.fragment * self.form.clocks

    @property
    def byte_clocks(self) -> int:
        """Clocks by the scaled instruction, if one side or both have 8-bit elements."""
        return 2 * self.clocks

    @property
    def step(self) -> int:
        """Number of blocks along K in a step."""
        return K_STEPS * self.groups

    @property
    def totals(self) -> int:
        """Number of sums of a tile that a lane holds: one column, in the rows that `row` says."""
        return self.rows * self.rows // self.unit.lanes

    def row(self, quad: int) -> int:
        """Return the row of sum 4 * `quad` of a lane in lane group 0.

        In group g, sums 4 quad .. 4 quad + 3 belong to row `run` * g + this, and the next three.
        """
        runs, rest = divmod(4 * quad, self.run)
        return self.run * self.lane_groups * runs + rest

    @property
    def interleaved(self) -> bool:
        """Whether consecutive rows of the result are in different lane groups.

        Then the rows of an operand are passed in another order, so that the rows of the result that
        a lane holds are consecutive rows of the tile (lanes.py).
        """
        return self.unit.run < QUAD

    @property
    def run(self) -> int:
        """Number of consecutive rows of the result that a lane holds."""
        return self.totals if self.interleaved else self.unit.run


@dataclass(frozen=True)
class FragmentPiece:
    """Contiguous bytes of a lane's fragment: a block, or a part of one.

    They are in block `first + group // share` of the instruction, from byte
    `start + stride * (group % share)` of the block on, where `group` is the lane's group.
    """

    bytes: int
    first: int = 0
    share: int = 1
    start: int = 0
    stride: int = 0


def pieces(bits: int, instruction: TileInstruction) -> tuple[FragmentPiece, ...]:
    """Return what a lane loads of its row for one scaled instruction, in order of registers."""
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
    """Return the pieces for v_wmma_scale: runs of 16 bytes go to the lane groups alternately."""
    groups, blocks = instruction.groups, instruction.shape[2] // BLOCK
    if bits == 4:
        return tuple(FragmentPiece(16, first=first) for first in range(0, blocks, groups))
    return tuple(FragmentPiece(16, first=block, share=groups, stride=16) for block in range(blocks))


def shared_pieces(bits: int, groups: int, sums: int) -> tuple[FragmentPiece, ...]:
    """Return what a lane loads for a k-step of `groups` blocks that is `sums` sums.

    It is a part of one block of each sum.
    """
    size = BLOCK * bits // 8 // sums
    return tuple(
        FragmentPiece(size, first=number * groups // sums, share=sums, stride=size)
        for number in range(sums)
    )


def whole(bits: int) -> tuple[FragmentPiece, ...]:
    """Return the pieces of the whole block that a lane's group has."""
    size = BLOCK * bits // 8
    # Blocks of 24 bytes lie on multiples of 8.
    unit = 16 if size % 16 == 0 else 8
    return tuple(FragmentPiece(unit, start=at) for at in range(0, size, unit))
