"""What one attention kernel is: its sizes, its memory, how it is shared out."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.attention import Reach
from mxc.passes.kernels.caches import PIECE_KEYS
from mxc.passes.kernels.gpu.lanes import LANES
from mxc.passes.kernels.vectors import f32

#: Rows, keys or elements of D that a matrix instruction takes: v_mfma_f32_16x16x32_bf16.
TILE = 16
#: Keys of a block, which are its K where weights meet values.
BLOCK_KEYS = 32
#: Elements of a fragment: 16 bytes of bf16.
FRAGMENT = 8
#: Waves that keep the chip busy: keys are shared out until there are as many. An MI350 has 256
#: compute units of four SIMDs.
ENOUGH_WAVES = 1024
#: Bytes of a key of which registers hold a block beside the next one.
HEAD_BYTES = 512
#: Numbers that a piece has behind the values of a row: its maximum and its total, then nothing.
TAIL = 4


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Sizes of one kernel, all static.

    A key has `depth` elements, a value `mixed`. `keys` and `values` are the shapes of the memrefs
    they are read from, [.., S, V, D], of which a value is the first elements; `element` is their
    type, `sinks` the type of the sinks. Scores are multiplied by `scale`; `width` is the sliding
    window in tokens, or the chunks. `most_keys`: that a call may have. `result`: "f32", or "bf16"
    where it is rounded.
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
    most_keys: int
    result: str = "f32"

    @property
    def rows(self) -> int:
        """Rows of a key/value head: its query heads of all tokens."""
        return self.tokens * self.group

    @property
    def tiles(self) -> int:
        """Tiles of rows of a wave. Two share what is read, where registers are enough for them."""
        enough = self.head_bytes <= 128 and self.part_bytes <= 192
        return 2 if self.rows > TILE and enough else 1

    @property
    def waves(self) -> int:
        """Waves that a SIMD is to hold, by registers: one of them waits while another computes.

        A wave was seen to take up to one register for each byte of a key, or 48 and 3/7 for each
        byte of the parts of a key.
        """
        registers = self.head_bytes, 48 + 3 * self.part_bytes // 7
        return max(1, min(4 // self.tiles, *(512 // (each * self.tiles) for each in registers)))

    @property
    def head_bytes(self) -> int:
        """Of a key."""
        return self.depth * int(self.element_type().width) // 8

    @property
    def part_bytes(self) -> int:
        """Of the bf16 that add up to a key."""
        return 2 * self.depth * self.parts

    @property
    def long(self) -> bool:
        """Whether registers have no room for keys of a block while those of another are used."""
        return self.head_bytes > HEAD_BYTES

    @property
    def slices(self) -> int:
        """Waves that share out the values of a row: all compute its scores, each sums a slice."""
        return 2 if self.long and self.mixed % (4 * TILE) == 0 else 1

    @property
    def wave_rows(self) -> int:
        """Rows of a wave."""
        return self.tiles * TILE

    @property
    def blocks(self) -> int:
        """Waves of a head, of one piece of the keys."""
        return -(-self.rows // self.wave_rows)

    @property
    def block_keys(self) -> int:
        """Keys that a wave takes at once."""
        return BLOCK_KEYS

    @property
    def slots(self) -> int:
        """Elements that a lane has of a value."""
        return self.mixed // (TILE * self.slices)

    @property
    def parts(self) -> int:
        """The bf16 that add up to an element of the cache."""
        return {"bf16": 1, "f16": 2, "f32": 3}[self.element]

    @property
    def pieces(self) -> int | None:
        """Into how many pieces the keys are cut at most; None: a wave goes over all keys."""
        heads = self.heads * self.slices
        found = min(ENOUGH_WAVES // (heads * self.blocks), -(-self.most_keys // PIECE_KEYS))
        return found if found > 1 else None

    @property
    def workgroups(self) -> tuple[int | None, ...]:
        """Along slices of heads, blocks of rows and pieces of keys; None: as many as there are."""
        return (self.heads * self.slices, self.blocks, 1 if self.pieces is None else None)

    def element_type(self) -> ir.Type:
        """The MLIR type of keys and values."""
        return ir.Type.parse(self.element)

    def result_shape(self) -> list[int]:
        """[T, V, G, D]; or [pieces, V, T * G, D + TAIL]."""
        if self.pieces is None:
            return [self.tokens, self.heads, self.group, self.mixed]
        return [self.pieces, self.heads, self.rows, self.mixed + TAIL]

    def buffers(self) -> list[ir.Type]:
        """Memrefs of queries, keys, values, sinks and result."""
        return [
            ir.MemRefType.get([self.tokens, self.heads, self.group, self.depth], f32()),
            ir.MemRefType.get(list(self.keys), self.element_type()),
            ir.MemRefType.get(list(self.values), self.element_type()),
            self.sinks_buffer(),
            self._pieces_buffer() if self.pieces is not None else self._result_buffer(),
        ]

    def _pieces_buffer(self) -> ir.Type:
        return ir.MemRefType.get(self.result_shape(), f32())

    def _result_buffer(self) -> ir.Type:
        whole = [self.tokens, self.heads, self.group, self.mixed]
        return ir.MemRefType.get(whole, ir.Type.parse(self.result))

    def sinks_buffer(self) -> ir.Type:
        """The memref of the sinks, [V, G]."""
        return ir.MemRefType.get([self.heads, self.group], ir.Type.parse(self.sinks))

    @property
    def scalars(self) -> int:
        """Index operands: position, first, size, keys of a piece; places of keys and values."""
        return 4 + len(self.keys) - 3 + len(self.values) - 3

    def joined_buffers(self) -> list[ir.Type]:
        """Memrefs of the second kernel: pieces, sinks, result."""
        return [self._pieces_buffer(), self.sinks_buffer(), self._result_buffer()]

    @property
    def joined_workgroups(self) -> tuple[int]:
        """Of the second kernel: a lane has four elements of a row."""
        return (-(-self.heads * self.rows * (self.mixed // 4) // LANES),)
