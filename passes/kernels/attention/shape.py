"""What one attention kernel is: its sizes, its memory, and which keys a token sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.attention import Reach
from mxc.passes.kernels.caches import PIECE_KEYS

#: Registers of keys that a tile takes at once, at most.
KEY_REGISTERS = 2
#: Rows of a workgroup. Staging a block of keys costs about as much as four rows over it.
BLOCK_ROWS = 128
#: Keys are shared out where there are fewer workgroups than this, until there are as many.
ENOUGH_WORKGROUPS = 64
#: Bytes of a workgroup's memory, which is its stack. IREE refuses more than 32 KiB in all: keys of
#: a block in f32, these and values of a block, and maxima and totals of heads that a workgroup has
#: together; those of the tiles of one head, and the weights, are 4 KiB at most.
MOST_STAGED, MOST_COPIED, MOST_STATE = 18432, 28672, 8192


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Sizes of one kernel, all static.

    A key has `depth` elements, a value `mixed`. `keys` and `values` are the shapes of the memrefs
    they are read from, [.., S, V, D], of which a value is the first elements; `element` is their
    type, `sinks` the type of the sinks. Scores are multiplied by `scale`; `width` is the sliding
    window in tokens, or the chunks. `pieces`: how many pieces the keys may come to, or None where a
    workgroup goes over all keys of its rows.
    """

    tokens: int
    heads: int
    group: int
    depth: int
    mixed: int
    keys: tuple[int, ...]
    values: tuple[int, ...]
    element: str
    sinks: str
    scale: float
    width: Reach
    pieces: int | None
    lanes: int

    @property
    def result(self) -> str:
        """Type of the result: who prepares activations rounds them."""
        return "f32"

    @property
    def rows(self) -> int:
        """Rows of a key/value head: its query heads of all tokens."""
        return self.tokens * self.group

    @property
    def tile_rows(self) -> int:
        """Rows of a register tile: 16 sums of the 32 registers of AVX-512, 8 of the 16 of AVX2."""
        return _tile_rows(self.lanes)

    @property
    def block_rows(self) -> int:
        """Rows of a workgroup."""
        return BLOCK_ROWS

    @property
    def blocks(self) -> int:
        """Blocks of rows."""
        return -(-self.rows // self.block_rows)

    @property
    def block_keys(self) -> int:
        """Keys of a block."""
        return self.key_registers * self.lanes

    @property
    def key_registers(self) -> int:
        """Registers of keys that a tile takes at once."""
        return key_registers(self.depth, self.lanes)

    @property
    def copies_values(self) -> bool:
        """Whether values are copied from the cache, where their lines displace each other."""
        copied = self.block_keys * self.mixed * int(self.element_type().width) // 8
        staged = self.block_keys * self.depth * 4
        return self.rows > self.tile_rows and staged + copied <= MOST_COPIED

    @property
    def heads_a_workgroup(self) -> int:
        """Heads of a workgroup: all of a piece where each has one tile, since the cache has the
        heads of a key side by side."""
        state = 2 * 4 * self.heads * self.lanes
        if self.pieces is None or self.rows > self.tile_rows or state > MOST_STATE:
            return 1
        return self.heads

    @property
    def workgroups(self) -> tuple[int | None, ...]:
        """Along heads, blocks of rows and pieces of keys; None: as many as there are."""
        heads = self.heads // self.heads_a_workgroup
        return (heads, self.blocks, 1 if self.pieces is None else None)

    def element_type(self) -> ir.Type:
        """The MLIR type of keys and values."""
        return ir.Type.parse(self.element)

    def result_shape(self) -> list[int]:
        """[T, V, G, D]; or [pieces, V, T * G, D and a register] (see pieces.py)."""
        if self.pieces is None:
            return [self.tokens, self.heads, self.group, self.mixed]
        return [self.pieces, self.heads, self.rows, self.mixed + self.lanes]

    def buffers(self) -> list[ir.Type]:
        """Memrefs of queries, keys, values, sinks and result."""
        f32 = ir.F32Type.get()
        return [
            ir.MemRefType.get([self.tokens, self.heads, self.group, self.depth], f32),
            ir.MemRefType.get(list(self.keys), self.element_type()),
            ir.MemRefType.get(list(self.values), self.element_type()),
            self.sinks_buffer(),
            ir.MemRefType.get(self.result_shape(), f32),
        ]

    def sinks_buffer(self) -> ir.Type:
        """The memref of the sinks, [V, G]."""
        return ir.MemRefType.get([self.heads, self.group], ir.Type.parse(self.sinks))

    @property
    def scalars(self) -> int:
        """Index operands: position, first, size, keys of a piece; places of keys and values."""
        return 4 + len(self.keys) - 3 + len(self.values) - 3


def most_pieces(tokens: int, heads: int, group: int, most_keys: int, lanes: int) -> int | None:
    """Into how many pieces up to `most_keys` keys are cut, or None where they are left whole."""
    rows = tokens * group
    workgroups = heads * -(-rows // BLOCK_ROWS) if rows > _tile_rows(lanes) else 1
    pieces = min(ENOUGH_WORKGROUPS // workgroups, -(-most_keys // PIECE_KEYS))
    return pieces if pieces > 1 else None


def key_registers(depth: int, lanes: int) -> int:
    """Registers of keys that are staged at once: as many as there is room for, 0 for none."""
    return min(KEY_REGISTERS, MOST_STAGED // (4 * depth * lanes))


def _tile_rows(lanes: int) -> int:
    return 8 if lanes >= 16 else 4


@dataclass(frozen=True)
class Source:
    """Keys or values: a memref and the indices before [key, head, d]."""

    memref: ir.Value
    place: Sequence[ir.Value]

    def at(self, key: ir.Value, head: ir.Value, depth: ir.Value) -> list[ir.Value]:
        """The indices of one element."""
        return [*self.place, key, head, depth]
