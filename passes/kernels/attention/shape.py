"""The shape of an attention kernel: its sizes, its memory, and how work is split into
workgroups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.generic import constant
from mxc.dialects.quantize import BLOCK
from mxc.passes.kernels.attention.rows import row_lanes
from mxc.passes.kernels.extents import Size, plus, product, quotient_up, value_of
from mxc.passes.kernels.paged_attention import PagedAttention
from mxc.passes.kernels.runs import (
    DynamicReach,
    KernelRun,
    first_seen,
    most_blocks,
    most_pieces,
)
from mxc.passes.kernels.vectors import equal, i1, index, signed_below

#: Most registers of keys that a tile processes at once.
KEY_REGISTERS = 2
#: Rows of a tile whose sums hide the latency of a multiply-add.
ENOUGH_ROWS = 4
#: Independent sums that hide most of the latency of a multiply-add.
CHAINS = 4
#: Most rows of a workgroup. Staging a block of keys costs about as much as processing it for four.
MOST_ROWS = 128
#: Keys of a piece. Adding a piece to the earlier ones costs a row about as much as two keys.
PIECE_KEYS = 256
#: Each piece gets its own workgroup if there are fewer than ENOUGH_WORKGROUPS otherwise, and if the
#: partial results have at most MOST_PARTS bytes. If each workgroup has one token, the limit is
#: ENOUGH_TOKENS, because some tokens may have many more keys than others.
ENOUGH_WORKGROUPS, ENOUGH_TOKENS, MOST_PARTS = 32, 64, 1 << 26
#: Most bytes of staged keys in f32, and of all scratch of a workgroup, which is to stay in an L1
#: cache of 32 KiB.
MOST_STAGED, MOST_SCRATCH = 18432, 32256


@dataclass(frozen=True, kw_only=True)
class CpuAttention(PagedAttention):
    """Sizes of one kernel, of registers of `lanes` f32."""

    lanes: int

    @property
    def most_tile_rows(self) -> int:
        """Most rows of a tile: 16 sums in the 32 registers of AVX-512, 8 in the 16 of AVX2."""
        return 8 if self.lanes >= 16 else 4

    @property
    def tile_rows(self) -> int:
        """Rows of a tile: those of several tokens if a token has few, else an equal part of those
        of a token, if that is not too small."""
        most, group = self.most_tile_rows, self.group
        if 2 * group <= most:
            return most // group * group
        part = max(n for n in range(1, most + 1) if group % n == 0)
        return part if part >= ENOUGH_ROWS else most

    @property
    def block_rows(self) -> int:
        """Least rows of a workgroup: whole tiles."""
        return MOST_ROWS // self.tile_rows * self.tile_rows

    def rows_of_call(self) -> ir.Value:
        """Rows of the workgroups of a call, a multiple of `block_rows`. The bits of a row do not
        depend on it."""
        return index(self.block_rows)

    @property
    def block_keys(self) -> int:
        """Number of keys of a block."""
        return self.key_registers * self.lanes

    @property
    def key_registers(self) -> int:
        """Registers of keys that are staged, and that a tile takes, at once: as many as there is
        room for, 0 for none."""
        return min(KEY_REGISTERS, MOST_STAGED // (4 * self.depth * self.lanes))

    @property
    def piece_keys(self) -> int:
        """Number of keys of a piece."""
        return PIECE_KEYS

    def position(self, run: KernelRun, token: ir.Value) -> ir.Value:
        """The last position that a token of a run attends to."""
        if not self.causal:
            return run.before
        position = run.before + token
        return arith.minui(position, value_of(self.positions) - 1) if self.dense else position

    def first_seen(self, position: ir.Value) -> ir.Value:
        """The first key that a token at `position` attends to."""
        return first_seen(self._reach, position)

    @property
    def _reach(self) -> DynamicReach:
        return self.window if isinstance(self.window, ir.Value) else self.reach

    @property
    def chains(self) -> int:
        """Chains of multiply-adds per score: enough to hide the latency for one token's rows."""
        sums = min(self.group, self.most_tile_rows) * self.key_registers
        return max(1, CHAINS // sums)

    @property
    def tiles(self) -> int:
        """Most tiles of a workgroup."""
        return max(self._tiles_of_one_head, self.heads if self.takes_all_heads else 0)

    @property
    def _tiles_of_one_head(self) -> int:
        """Full tiles, and one for the remainder of a token's rows."""
        return self.block_rows // self.tile_rows + 1

    @property
    def takes_all_heads(self) -> bool:
        """Whether a workgroup processes all heads of a token where each run has one token. Then the
        heads of a key, which are adjacent in the pool, are read together. Each head must fit in one
        tile, and the state of all heads in scratch."""
        tiles = max(self._tiles_of_one_head, self.heads)
        return self.group <= self.tile_rows and self._scratch(tiles) <= MOST_SCRATCH

    @property
    def copies_values(self) -> bool:
        """Whether a workgroup with one head copies values out of the pool, where their cache lines
        would evict each other."""
        return self._scratch(self.tiles) + self._copied <= MOST_SCRATCH

    @property
    def scratch_bytes(self) -> int:
        """Bytes of all scratch of a workgroup."""
        return self._scratch(self.tiles) + (self._copied if self.copies_values else 0)

    @property
    def _copied(self) -> int:
        """Bytes of a block of copied values."""
        return self.block_keys * self.mixed * int(self.value_type().width) // 8

    def _scratch(self, tiles: int) -> int:
        """Bytes of staged keys, weights, scales of values, and the maxima and totals of tiles for
        the current piece and for all before it."""
        rows = self.depth + self.tile_rows + 1
        rows += self.mixed // BLOCK if self.scaled else 0
        return 4 * self.block_keys * rows + 4 * 4 * tiles * self.states

    @property
    def states(self) -> int:
        """Elements of the memory for one number per row of a tile."""
        return self.lanes // row_lanes(self.tile_rows, self.lanes)

    def value_type(self) -> ir.Type:
        """The MLIR type of copied values: bf16 for packed values, which it holds exactly."""
        return ir.BF16Type.get() if self.packed is not None else self.pool_type

    @property
    def parts(self) -> list[Size]:
        """Sizes of the partial results, [rows, V, G, mixed]: pieces * T rows of values, followed by
        maxima and totals, see `state_of`. Without a workgroup per piece: the sums of all pieces
        before the current one."""
        rows = product(self.pieces, self.tokens)
        states = quotient_up(product(rows, 2), self.mixed)
        return [plus(rows, states), self.heads, self.group, self.mixed]

    def state_of(self, row: Sequence[ir.Value], number: int) -> list[ir.Value]:
        """The indices in the partial results of the maximum (0) or the total (1) of a row [piece *
        T + t, v, g]: they lie in pairs after the values."""
        first, head, member = row
        each = first * self.heads + head
        each = each * self.group + member
        at = each * 2 + number
        indices = []
        for size in (self.mixed, self.group, self.heads):
            indices.append(at % size)
            at = at // size
        rows = value_of(product(self.pieces, self.tokens))
        return [rows + at, *reversed(indices)]

    def all_heads(self) -> ir.Value:
        """Whether the workgroups of a call process all heads."""
        if not self.takes_all_heads:
            return constant(0, i1())
        return equal(value_of(self.tokens), value_of(self.runs))

    def blocks(self) -> ir.Value:
        """Most blocks of rows of a call."""
        tokens, runs = value_of(self.tokens), value_of(self.runs)
        rows, unit = self.rows_of_call(), self.block_rows
        return most_blocks(tokens, runs, group=self.group, rows=rows, unit=unit)

    @property
    def pieces_apart(self) -> ir.Value:
        """Number of pieces with their own workgroup; 1 if one workgroup processes all keys."""
        found = most_pieces(
            value_of(self.pages) * value_of(self.positions),
            reach=self._reach,
            group=self.group,
            rows=self.rows_of_call(),
            piece_keys=self.piece_keys,
        )
        enough = arith.select(self.all_heads(), index(ENOUGH_TOKENS), index(ENOUGH_WORKGROUPS))
        few = signed_below(self._workgroups(), enough)
        size = index(4 * self.heads * self.group * self.mixed)
        parts = value_of(self.tokens) * found * size
        apart = few & signed_below(parts, index(MOST_PARTS + 1))
        return arith.select(apart, arith.maxui(found, index(1)), index(1))

    def _workgroups(self) -> ir.Value:
        return self._columns() * self.blocks()

    def _columns(self) -> ir.Value:
        """Number of workgroups per block of rows."""
        return arith.select(self.all_heads(), index(1), index(self.heads))

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups along heads, blocks of rows and pieces."""
        return [self._columns(), self.blocks(), self.pieces]

    @property
    def merge_workgroups(self) -> list[Size]:
        """Number of workgroups along heads and tokens; a single one, which does nothing, without a
        workgroup per piece."""
        apart = is_apart(self)
        return [
            arith.select(apart, index(self.heads), index(1)),
            arith.select(apart, value_of(self.tokens), index(1)),
        ]


def is_apart(kernel: CpuAttention) -> ir.Value:
    """Whether each piece has its own workgroup."""
    return signed_below(index(1), value_of(kernel.pieces))
