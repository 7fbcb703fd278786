"""A bitmap font for plots, 5 pixels wide and 7 high: five bits per row, from the top."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 5, 7

_ROWS = {
    " ": "00 00 00 00 00 00 00",
    "0": "0e 11 13 15 19 11 0e",
    "1": "04 0c 04 04 04 04 0e",
    "2": "0e 11 01 02 04 08 1f",
    "3": "1f 02 04 02 01 11 0e",
    "4": "02 06 0a 12 1f 02 02",
    "5": "1f 10 1e 01 01 11 0e",
    "6": "06 08 10 1e 11 11 0e",
    "7": "1f 01 02 04 08 08 08",
    "8": "0e 11 11 0e 11 11 0e",
    "9": "0e 11 11 0f 01 02 0c",
    "a": "00 00 0e 01 0f 11 0f",
    "b": "10 10 16 19 11 11 1e",
    "B": "1e 11 11 1e 11 11 1e",
    "c": "00 00 0e 10 10 11 0e",
    "d": "01 01 0d 13 11 11 0f",
    "e": "00 00 0e 11 1f 10 0e",
    "f": "06 09 08 1c 08 08 08",
    "g": "00 0f 11 11 0f 01 0e",
    "h": "10 10 16 19 11 11 11",
    "i": "04 00 0c 04 04 04 0e",
    "j": "02 00 06 02 02 12 0c",
    "k": "10 10 12 14 18 14 12",
    "l": "0c 04 04 04 04 04 0e",
    "m": "00 00 1a 15 15 11 11",
    "n": "00 00 16 19 11 11 11",
    "o": "00 00 0e 11 11 11 0e",
    "p": "00 00 1e 11 1e 10 10",
    "q": "00 00 0d 13 0f 01 01",
    "r": "00 00 16 19 10 10 10",
    "s": "00 00 0e 10 0e 01 1e",
    "t": "08 08 1c 08 08 09 06",
    "u": "00 00 11 11 11 13 0d",
    "v": "00 00 11 11 11 0a 04",
    "w": "00 00 11 11 15 15 0a",
    "x": "00 00 11 0a 04 0a 11",
    "y": "00 00 11 11 0f 01 0e",
    "z": "00 00 1f 02 04 08 1f",
    ".": "00 00 00 00 00 0c 0c",
    ",": "00 00 00 00 0c 04 08",
    ":": "00 0c 0c 00 0c 0c 00",
    "-": "00 00 00 1f 00 00 00",
    "_": "00 00 00 00 00 00 1f",
    "%": "18 19 02 04 08 13 03",
    "/": "00 01 02 04 08 10 00",
    "*": "00 04 15 0e 15 04 00",
    "?": "0e 11 01 02 04 00 04",
}


def _glyph(rows: str) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(rows), np.uint8)[:, None], axis=1)
    return bits[:, 8 - WIDTH :].astype(np.bool_)


#: bool [HEIGHT, WIDTH] of each available character: digits, small letters, some signs.
GLYPHS: Mapping[str, NDArray[np.bool_]] = {name: _glyph(rows) for name, rows in _ROWS.items()}
