"""Codecs: how rows of packed bytes are stored in files, and their decoding into canonical rows.

A canonical row is as in formats/packing.py: elements along the block axis, the even one in the low
nibble; a row of scales has one byte per block. Rows whose bytes are stored together (those of a
tile of scales, for instance) are a group, and a codec decodes whole groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.formats.packing import pack_elements

#: Formats of four and of six bits: packing depends on the number of bits only.
_FOUR, _SIX = "mxfp4", "mxfp6e2m3"

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Codec:
    """A way of storing rows. `name` is used in messages and by `mxc inspect`.

    `group` rows are stored together. Every `unit` bytes of a canonical row take `stored` bytes in
    the group; the last unit may be incomplete. `decode(stored, r)`: uint8 [groups, stored_bytes(r)]
    -> uint8 [groups * group, r]. It is a function of a module or a `partial` of one, so that codecs
    pickle.
    """

    name: str
    group: int
    unit: int
    stored: int
    decode: Callable[[Bytes, int], Bytes] = field(repr=False)

    def stored_bytes(self, row: int) -> int:
        """Return the stored size of a group whose canonical rows have `row` bytes each."""
        return -(-row // self.unit) * self.stored


def _as_stored(stored: Bytes, row: int) -> Bytes:
    return stored


#: The stored bytes are canonical.
PLAIN = Codec("plain", 1, 1, 1, _as_stored)


def _of_tiles(stored: Bytes, row: int, *, rows: int, columns: int) -> Bytes:
    wide = np.repeat(stored, columns, axis=1)[:, :row]
    return np.repeat(wide, rows, axis=0)


def tiles(rows: int, columns: int) -> Codec:
    """Return the codec of scale bytes for tiles of `rows` rows and `columns` blocks.

    Tiles at the end of rows and columns may be partial.
    """
    decode = partial(_of_tiles, rows=rows, columns=columns)
    return Codec(f"tiles {rows}x{columns}", rows, columns, 1, decode)


def _blocks(stored: Bytes, size: int) -> Bytes:
    """Return rows of blocks of `size` bytes: uint8 [rows, blocks, size]."""
    return stored.reshape(len(stored), -1, size)


def _split_six(three: Bytes) -> Bytes:
    """Pack four 6-bit codes from three bytes, uint8 [rows, .., 3]: high two bits, then low four.

    The first code has the highest of the high bits, and the high nibble of the second byte.
    """
    high, ab, cd = three[..., 0], three[..., 1], three[..., 2]
    low = (ab >> 4, ab & 15, cd >> 4, cd & 15)
    codes = np.stack([(high >> (6 - 2 * i) & 3) << 4 | low[i] for i in range(4)], axis=-1)
    return pack_elements(codes.reshape(len(three), -1), _SIX)


def _of_quark_mx(stored: Bytes, row: int, *, bits: int, first: int) -> Bytes:
    blocks = _blocks(stored, 4 * bits + first)[:, :, first:]
    if bits == 6:
        return _split_six(blocks.reshape(len(stored), -1, 3))
    return blocks.reshape(len(stored), row)


def quark_mx(bits: int, *, scale: bool) -> Codec:
    """Return the codec of 4- or 6-bit elements of Quark's `dtype: "mx"`.

    `scale`: a byte of scale precedes each block. 4-bit elements are stored canonically; for 6-bit
    ones see _split_six.
    """
    size, first = 4 * bits, int(scale)
    name = f"quark mx, {size + first} bytes a block"
    return Codec(name, 1, size, size + first, partial(_of_quark_mx, bits=bits, first=first))


def _of_logarithms(stored: Bytes, row: int, *, every: int) -> Bytes:
    scales: Bytes = _blocks(stored, every)[:, :, 0] + np.uint8(127)
    return scales


def quark_log2(every: int) -> Codec:
    """Return the codec of scales of Quark's `dtype: "mx"`: int8 binary logarithms.

    The first of each `every` bytes is a scale. Adding the bias of E8M0 turns -128, which has no
    E8M0 value, into NaN (0xFF).
    """
    return Codec(f"int8 logarithm in {every} bytes", 1, 1, every,
                 partial(_of_logarithms, every=every))  # fmt: skip


def _halves(stored: Bytes, row: int, *, size: int, start: int, block: int) -> Bytes:
    """Pack codes of blocks that have their first half in the low nibbles, the second in the high
    ones."""
    low = _blocks(stored, size)[:, :, start:].reshape(len(stored), -1, block // 2)
    codes = np.concatenate((low & 15, low >> 4), axis=-1)
    return pack_elements(codes.reshape(len(stored), -1), _FOUR)


def _slice_of_blocks(stored: Bytes, row: int, *, size: int, start: int, stop: int) -> Bytes:
    """Return bytes [start, stop) of each block of `size` bytes."""
    return _blocks(stored, size)[:, :, start:stop].reshape(len(stored), row)


def _ue4m3(stored: Bytes, row: int) -> Bytes:
    scales = _blocks(stored, 36)[:, :, :4].reshape(len(stored), row)
    if (wrong := scales[scales >= 0x7F]).size:
        raise ValueError(f"found the byte {wrong[0]:#04x}, which is no scale of NVFP4")
    return scales


#: ggml's block_mxfp4: the scale, then 16 bytes with elements 0..15 low and 16..31 high.
GGML_MXFP4 = Codec("block_mxfp4", 1, 16, 17, partial(_halves, size=17, start=1, block=32))
GGML_MXFP4_SCALES = Codec(
    "block_mxfp4", 1, 1, 17, partial(_slice_of_blocks, size=17, start=0, stop=1)
)

#: ggml's block_nvfp4 of 64 elements: 4 scales, then 4 times 8 bytes with elements 0..7 low and
#: 8..15 high.
GGML_NVFP4 = Codec("block_nvfp4", 1, 32, 36, partial(_halves, size=36, start=4, block=16))
GGML_NVFP4_SCALES = Codec("block_nvfp4", 1, 4, 36, _ue4m3)

#: ggml's block_q8_0: an f16 scale, then 32 int8.
GGML_Q8_0 = Codec("block_q8_0", 1, 32, 34, partial(_slice_of_blocks, size=34, start=2, stop=34))
GGML_Q8_0_SCALES = Codec(
    "block_q8_0", 1, 2, 34, partial(_slice_of_blocks, size=34, start=0, stop=2)
)


def _swizzled(stored: Bytes, row: int) -> Bytes:
    tiles = stored.reshape(len(stored), -1, 32, 4, 4)
    wide = tiles.transpose(0, 3, 2, 1, 4).reshape(len(stored) * 128, -1)
    return wide[:, :row]


#: Scales in the order of NVIDIA's matrix instructions: tiles of 128 rows and 4 blocks, with row r
#: of a tile at byte 16 * (r % 32) + 4 * (r // 32). Rows and blocks are padded to whole tiles.
SWIZZLED = Codec("swizzled 128x4", 128, 4, 512, _swizzled)


def _one_a_byte(stored: Bytes, row: int) -> Bytes:
    if (wrong := stored[stored > 63]).size:
        raise ValueError(f"found the byte {wrong[0]:#04x} where six bits were wanted")
    return pack_elements(stored, _SIX)


#: 6-bit codes, one per byte.
SIX_IN_EIGHT = Codec("six bits a byte", 1, 3, 4, _one_a_byte)


def _of_int32(stored: Bytes, row: int, *, bits: int) -> Bytes:
    if bits == 8:
        return stored[:, :row] ^ np.uint8(0x80)
    codes = np.stack((stored & 15, stored >> 4), axis=-1).reshape(len(stored), -1)
    integers: Bytes = codes[:, :row] - np.uint8(8)
    return integers


def packed_integers(bits: int) -> Codec:
    """Return the codec of signed 4- or 8-bit integers, offset by half their range, in int32 words
    from the lowest bits on."""
    return Codec(f"int{bits} in int32", 1, 32 // bits, 4, partial(_of_int32, bits=bits))


def _narrow(stored: Bytes, row: int, *, dtype: np.dtype[Any]) -> Bytes:
    wide = stored.reshape(-1).view("<f4")
    # A number that 16 bits cannot hold is found by the comparison below, also an overflow.
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
    if not np.array_equal(narrow.astype(np.float32), wide, equal_nan=True):
        raise ValueError(f"a number is wider than {dtype}, which it is said to have been")
    return narrow.view(np.uint8).reshape(len(stored), row)


def narrowed(dtype: np.dtype[Any]) -> Codec:
    """Return the codec of 16-bit numbers `dtype` that are stored widened to f32."""
    return Codec(f"{dtype} in f32", 1, 1, 2, partial(_narrow, dtype=dtype))
