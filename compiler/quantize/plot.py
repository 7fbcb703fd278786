"""Plots the error of every tensor: signal-to-noise ratio over layers, one colour per kind of
weight.

The PNG is written here, with points, lines and letters of 5 x 7, so that no plotting library is
needed. Format: https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.quantize.letters import GLYPHS, HEIGHT, WIDTH
from mxc.compiler.quantize.loss import Loss

Image = NDArray[np.uint8]
Colour = tuple[int, int, int]

_BLACK: Colour = (30, 30, 30)
_GREY: Colour = (225, 225, 225)
#: Distinguishable for the colour-blind: https://jfly.uni-koeln.de/color/ (Okabe and Ito).
_COLOURS: tuple[Colour, ...] = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (120, 120, 120),
    (150, 90, 40),
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 200, 34, 40
_LAYER = re.compile(r"(?<![^.])(\d+)(?![^.])")


def plot(losses: Mapping[str, Loss], title: str, path: Path) -> None:
    """Write a PNG: signal-to-noise ratio in dB by layer, with tensors of the same kind joined.

    A tensor without noise is left out; one without a layer number is at 0. Raises OSError.
    """
    path.write_bytes(png(draw(losses, title)))


def series(losses: Mapping[str, Loss]) -> dict[str, list[tuple[int, float]]]:
    """Return points (layer, dB) by kind of weight: the name without its layer and ".weight"."""
    found: dict[str, list[tuple[int, float]]] = {}
    for name, loss in losses.items():
        if loss.sqnr is None:
            continue
        layer = _LAYER.search(name)
        kind = _LAYER.sub("*", name).removesuffix(".weight")
        kind = ".".join(part for part in kind.split(".")[-3:] if part != "*")
        found.setdefault(kind, []).append((int(layer[1]) if layer else 0, loss.sqnr))
    return found


def draw(losses: Mapping[str, Loss], title: str) -> Image:
    """Return the image: uint8 [height, width, 3]."""
    lines = series(losses)
    points = [point for line in lines.values() for point in line] or [(0, 0.0)]
    last = max(1, max(layer for layer, _ in points))
    low, high = _range([value for _, value in points])
    height = max(420, _TOP + _BOTTOM + 14 * len(lines))
    image = np.full((height, 900, 3), 255, np.uint8)
    right, bottom = 900 - _RIGHT, height - _BOTTOM

    def place(layer: float, value: float) -> tuple[int, int]:
        across = _LEFT + (right - _LEFT) * layer / last
        return round(across), round(bottom - (bottom - _TOP) * (value - low) / (high - low))

    _write(image, (_LEFT, 12), title)
    _write(image, (4, _TOP - 16), "dB")
    step = max(1, -(-(high - low) // 10))
    for value in range(low, high + 1, step):
        _line(image, place(0, value), place(last, value), _GREY)
        _write(image, (_LEFT - 34, place(0, value)[1] - 3), f"{value:4d}")
    for layer in range(0, last + 1, max(1, -(-last // 16))):
        _write(image, (place(layer, low)[0] - 6, bottom + 8), str(layer))
    _write(image, ((_LEFT + right) // 2 - 15, bottom + 22), "layer")
    for number, (kind, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        ordered = [place(*point) for point in sorted(line)]
        for start, end in pairwise(ordered):
            _line(image, start, end, colour)
        for across, down in ordered:
            image[down - 2 : down + 3, across - 2 : across + 3] = colour
        top = _TOP + 14 * number
        image[top : top + 7, right + 12 : right + 19] = colour
        _write(image, (right + 24, top), kind[-27:])
    return image


def png(image: Image) -> bytes:
    """Encode an image uint8 [height, width, 3] as PNG."""
    height, width, _ = image.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = image.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _range(values: Sequence[float]) -> tuple[int, int]:
    low, high = int(np.floor(min(values))), int(np.ceil(max(values)))
    return (low - 1, high + 1) if low == high else (low, high)


def _line(image: Image, start: tuple[int, int], end: tuple[int, int], colour: Colour) -> None:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    across = np.rint(np.linspace(start[0], end[0], steps + 1)).astype(int)
    down = np.rint(np.linspace(start[1], end[1], steps + 1)).astype(int)
    image[down, across] = colour


def _write(image: Image, at: tuple[int, int], text: str) -> None:
    left, top = at
    for character in text:
        glyph = GLYPHS.get(character, GLYPHS.get(character.lower(), GLYPHS["?"]))
        cell = image[top : top + HEIGHT, left : left + WIDTH]
        cell[glyph[: cell.shape[0], : cell.shape[1]]] = _BLACK
        left += WIDTH + 1
