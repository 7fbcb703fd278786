"""Layouts of fragments: the matrix element that each lane holds, for all matrix instructions.

Source: AMD CDNA4 instruction set architecture, sections 7.1.4 to 7.1.6.

With M rows, B blocks and K_L = K / (64 / (M * B)) elements of a row per lane, lane
i + M * (b + B * g) holds A[b, i, g * K_L ..]. Only f8 of the f8f6f4 forms differs: its 32 elements
are two runs of 16, which begin at g * 16 and K / 2 + g * 16. The scale in a lane belongs to
K = g * 32 .. g * 32 + 31 in every format.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError

_LANE = np.arange(64)


def held_rows(lanes: Array, rows: int, blocks: int) -> Array:
    """uint32 [waves, 64, words of a lane] -> [waves, blocks, rows, words], in the order of K."""
    waves, _, words = lanes.shape
    by_group = lanes.reshape(waves, 64 // (rows * blocks), blocks, rows, words)
    ordered = np.ascontiguousarray(by_group.transpose(0, 2, 3, 1, 4))
    return ordered.reshape(waves, blocks, rows, -1)


def two_runs(lanes: Array, rows: int) -> Array:
    """`held_rows` for f8 of the f8f6f4 forms, with two runs of 16: [waves, rows, words]."""
    waves = len(lanes)
    by_run = lanes.reshape(waves, 64 // rows, rows, 2, 4)
    return np.ascontiguousarray(by_run.transpose(0, 2, 3, 1, 4)).reshape(waves, rows, -1)


def arrange(product: Array, height: int) -> Array:
    """Results [waves, blocks, rows, columns] -> [waves, 64, items], as lanes hold them.

    height: number of consecutive rows that a lane holds, 1 for float64, else 4.
    """
    waves, blocks, rows, _ = product.shape
    if blocks == 1 and height == 4 and rows == 16:
        # [waves, row group, r, column] -> [waves, lane = group * 16 + column, r]
        moved = product.reshape(waves, 4, 4, 16).transpose(0, 1, 3, 2)
    elif blocks == 1 and height == 4 and rows == 32:
        moved = product.reshape(waves, 4, 2, 4, 32).transpose(0, 2, 4, 1, 3)
    else:
        moved = product.reshape(waves, -1)[:, _places(rows, blocks, height)]
    return moved.reshape(waves, 64, -1)


@cache
def _places(rows: int, blocks: int, height: int) -> Array:
    """Return for each lane and item the flat index of its element in [blocks, rows, columns]."""
    together = -(-64 // (rows * rows // height))
    high = 64 // together // rows
    groups = rows // (height * high)
    b, i, j = np.indices((blocks, rows, rows))
    item = i % height + height * (i // (height * high) + groups * (b // together))
    lane = j + rows * (i // height % high + high * (b % together))
    places = np.zeros((64, blocks * rows * rows // 64), np.int64)
    places[lane, item] = np.arange(blocks * rows * rows).reshape(b.shape)
    return places


def broadcast_first(size: int, block: int, blocks: int) -> Array | None:
    """CBSZ and ABID: return the lane from which each lane takes its part of A; None for its own."""
    if not size and not block:
        return None
    if 1 << size > blocks or block >= 1 << size:
        raise SimulationError(
            f"cbsz:{size} abid:{block} is not defined for {blocks} block{'s' * (blocks > 1)}"
        )
    width = 64 >> size
    return _LANE % width + width * block


def broadcast_second(code: int) -> Array | None:
    """BLGP: return the lane from which each lane takes its part of B; None for its own."""
    if code == 0:
        return None
    if code < 3:
        return _LANE % 32 + 32 * (code - 1)
    return (_LANE + 16) % 64 if code == 3 else _LANE % 16 + 16 * (code - 4)
