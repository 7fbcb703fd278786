"""How rows of packed bytes lie in files, and how they become canonical rows.

A canonical row is what dialects/packing.py says: elements along the block axis, the even one in
the low nibble; a row of scales is one byte a block. Rows whose bytes lie apart only together
(a tile of scales, say) are a group; a codec takes whole groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Codec:
    """A way in which rows are stored. `name` is what messages and `mxc inspect` call it.

    `group` rows lie together in `stored_bytes(r)` bytes, where r is the bytes of a canonical row.
    `decode(stored, r)`: uint8 [groups, stored_bytes(r)] -> uint8 [groups * group, r].
    """

    name: str
    group: int
    stored_bytes: Callable[[int], int]
    decode: Callable[[Bytes, int], Bytes]


#: The bytes are canonical as they lie.
PLAIN = Codec("plain", 1, lambda row: row, lambda stored, row: stored)


def tiles(rows: int, columns: int) -> Codec:
    """Scale bytes of tiles `rows` high, each good for `columns` blocks of a row.

    The last tile of a row or column may be cut.
    """

    def decode(stored: Bytes, row: int) -> Bytes:
        wide = np.repeat(stored, columns, axis=1)[:, :row]
        return np.repeat(wide, rows, axis=0)

    return Codec(f"tiles {rows}x{columns}", rows, lambda row: -(-row // columns), decode)
