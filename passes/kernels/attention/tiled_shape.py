"""Sizes of attention on AMX tiles (tiled.py), and which calls it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.reasons import Reason
from mxc.kernels.amx import TILE
from mxc.kernels.decode import STEP
from mxc.passes.kernels.attention.shape import CpuAttention
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.vectors import index, signed_below
from mxc.targets.cpus import STACK_BYTES

#: Bf16 numbers, planes, whose sum stands for a query or a weight.
PLANES = 2
#: Significant bits of a query or a weight.
BITS = 8 * PLANES
#: Keys of a block, whose weights are computed at once.
KEYS = 64
#: Least query heads per key/value head. With fewer, a decoded token, for which keys and values are
#: staged too, is slower than on vectors; a prompt needs the same kernel, for the same bits.
LEAST_GROUP = 8
#: Most keys of a piece.
PIECE = 128
#: Most bytes of a piece of keys and values that is staged.
STAGED = 64 << 10
#: Rows of a workgroup: the most that leave ENOUGH_FOR_MORE workgroups. Staging a piece of keys and
#: values that are not in a cache costs about as much as 40 rows of it.
ROWS, ENOUGH_FOR_MORE = (128, 256, 512), 64
#: Most bytes of all scratch of a workgroup, which is on the stack; the rest is for registers.
MOST_SCRATCH = STACK_BYTES - (22 << 10)
#: Most rows of all heads of a token for one workgroup.
MOST_STATES = 512


@dataclass(frozen=True, kw_only=True)
class TiledAttention(CpuAttention):
    """Sizes of one kernel on tiles."""

    lanes: int = TILE

    @property
    def on_tiles(self) -> bool:
        """True: products are on tiles."""
        return True

    @property
    def steps(self) -> int:
        """Steps of 32 elements of a key; the last may be padded."""
        return -(-self.depth // STEP)

    @property
    def mixed_steps(self) -> int:
        """Steps of 32 elements of a value."""
        return -(-self.mixed // STEP)

    @property
    def piece_keys(self) -> int:
        """Number of keys of a piece, all of which are staged."""
        fit = STAGED // (2 * STEP * (self.steps + self.mixed_steps)) // KEYS * KEYS
        return max(KEYS, min(fit, PIECE))

    @property
    def block_rows(self) -> int:
        """Least rows of a workgroup."""
        return ROWS[0]

    def rows_of_call(self) -> ir.Value:
        """Rows of the workgroups of a call."""
        every, found = value_of(self.tokens) * (self.heads * self.group), index(ROWS[0])
        for rows in ROWS[1:]:
            enough = signed_below(index(rows * ENOUGH_FOR_MORE - 1), every)
            found = arith.select(enough, index(rows), found)
        return found

    @property
    def block_keys(self) -> int:
        """Number of keys of a block."""
        return KEYS

    @property
    def takes_all_heads(self) -> bool:
        """Whether a workgroup processes all heads of a token where each run has one token."""
        return self.heads * self.head_states <= MOST_STATES

    @property
    def head_states(self) -> int:
        """Rows of a token and head: whole tiles."""
        return -(-self.group // TILE) * TILE

    @property
    def row_states(self) -> int:
        """Most rows of a workgroup."""
        return max(ROWS[-1], self.heads * self.head_states if self.takes_all_heads else 0)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all scratch of a workgroup."""
        staged = 2 * self.piece_keys * STEP * (self.steps + self.mixed_steps)
        row = 2 * PLANES * STEP * self.steps + 4 * (2 * self.piece_keys + STEP * self.mixed_steps)
        return staged + TILE * (row + 4 * 4 * TILE + 8) + 8 * self.row_states


T = TypeVar("T", bound=TiledAttention)


def on_tiles(shape: T, bits: int) -> T | Reason:
    """The kernel if tiles compute it, else why not. `bits`: significant bits that queries and
    weights need."""
    if bits > BITS:
        return Reason(f"queries and weights need {bits} significant bits; tiles have {BITS}")
    if shape.group < LEAST_GROUP:
        return Reason(
            f"{shape.group} query heads share a key; with fewer than {LEAST_GROUP} tiles are slower"
        )
    if shape.element != "bf16":
        return Reason(f"keys are {shape.element}; tiles take bf16")
    if shape.depth % TILE or shape.mixed % TILE or shape.scratch_bytes > MOST_SCRATCH:
        return Reason(
            f"keys have {shape.depth} elements, values {shape.mixed}; tiles take multiples of "
            f"{TILE} whose scratch is at most {MOST_SCRATCH >> 10} KiB"
        )
    if shape.page % TILE:
        return Reason(f"pages have {shape.page} positions; tiles take {TILE} at once")
    return shape
