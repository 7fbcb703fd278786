"""What is packed: each tensor of the archive, where it comes from, and the order of its bytes.

    source bytes -> rows, as they are or quantised -> reordered -> panels

Every step is a generator of pieces, so that no tensor is ever whole in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.tensor import StoredPart
from mxc.compiler.checkpoints.files.tensors import DTYPES, TensorRecord, dtype_name
from mxc.compiler.packing.device_share import DeviceShare
from mxc.compiler.packing.panels import panel_bytes, to_panels
from mxc.compiler.packing.quantised import Loss, Quantised, quantised_rows
from mxc.compiler.packing.stacked import Stacked

#: Bytes read, hashed and written at a time. At most five such buffers are alive at once.
CHUNK = 8 << 20

#: Reads of the source: offset and size, in bytes.
Read = Callable[[int, int], NDArray[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class PackItem:
    """One tensor of the archive: `key`, where its bytes come from, and how they are reordered.

    `source` is a tensor of a checkpoint, a part of a canonical one, which is decoded first, several
    below one another, what a device has of them, or an array that the compiler made; with
    `quantised`, one of floats [.., rows, K], of which the elements or the scales are packed.
    `layout` is a key of LAYOUTS;
    `panels`, if given, a key of panels.UNITS, applied to what that gives. `experts` says that the
    first dimension counts experts; `scales` that the source's bytes are E8M0 scales
    [experts, rows, blocks]: a NaN among them is found and named.
    """

    key: str
    source: TensorRecord | StoredPart | Stacked | DeviceShare | NDArray[Any]
    layout: str = "identity"
    panels: str | None = None
    experts: bool = False
    scales: bool = False
    quantised: Quantised | None = None

    @property
    def source_dtype(self) -> str:
        """The safetensors dtype of what is read."""
        if isinstance(self.source, TensorRecord | StoredPart | Stacked | DeviceShare):
            return self.source.dtype
        return dtype_name(self.source.dtype)

    @property
    def record(self) -> TensorRecord | None:
        """The tensor of a file that is read first; None for an array that the compiler made."""
        if isinstance(self.source, StoredPart | Stacked | DeviceShare):
            return self.source.record
        return self.source if isinstance(self.source, TensorRecord) else None

    @property
    def place(self) -> str:
        """The file and the tensor, for messages."""
        if (record := self.record) is not None:
            return f"{record.file}: tensor {record.name}"
        return f"generated: tensor {self.key}"

    @property
    def shape(self) -> tuple[int, ...]:
        """In elements of `dtype`; no layout changes it."""
        shape = tuple(self.source.shape)
        return shape if self.quantised is None else self.quantised.shape(shape)

    @property
    def dtype(self) -> str:
        """A safetensors dtype name."""
        return self.source_dtype if self.quantised is None else "U8"

    @property
    def row_order_bytes(self) -> int:
        """Size before the panels."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """Size in the archive, without padding between tensors."""
        return self.row_order_bytes if self.panels is None else panel_bytes(*self.matrix)

    @property
    def matrix(self) -> tuple[int, int, int]:
        """The tensor as (experts, rows, bytes of a row): of [N, ..], or [E, N, ..] of experts."""
        lead, rest = (self.shape[0], self.shape[1:]) if self.experts else (1, self.shape)
        count = lead * rest[0]
        return lead, rest[0], self.row_order_bytes // count if count else 0

    @property
    def full_layout(self) -> str:
        """The name of the layout: of the rows, then of the panels."""
        steps = [self.layout] if self.layout != "identity" or self.panels is None else []
        return ", ".join([*steps, *([self.panels] if self.panels else [])])


def archive_bytes(item: PackItem, read: Read, loss: Loss) -> Iterator[NDArray[np.uint8]]:
    """The bytes of `item` in the order of the archive; what quantising loses goes to `loss`.

    Raises CheckpointError for numbers that cannot be quantised.
    """
    if item.quantised is None:
        rows = LAYOUTS[item.layout](item, read)
    else:
        rows = quantised_rows(
            read if item.layout == "identity" else _rows_gate_then_up(item, read),
            tuple(item.source.shape),
            DTYPES[item.source_dtype],
            item.quantised,
            loss,
            # In float32, with what is compared to it, a piece is several times as large.
            chunk=CHUNK // 16,
            place=item.place,
        )
    if item.panels is None:
        return rows
    _, count, row_bytes = item.matrix
    return to_panels(rows, count, row_bytes, item.panels)


def _identity(item: PackItem, read: Read) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, item.row_order_bytes, CHUNK):
        yield read(start, min(CHUNK, item.row_order_bytes - start))


def _gate_then_up(item: PackItem, read: Read) -> Iterator[NDArray[np.uint8]]:
    # gpt-oss interleaves the rows of an expert: 0, 2, 4, .. gate and 1, 3, 5, .. up. A program
    # that reads them in two halves needs no strided access. An expert that does not fit in a
    # chunk is read twice, once for each half, so that the archive is still written in order.
    experts, rows, row_bytes = item.matrix
    step = max(2, CHUNK // max(row_bytes, 1) // 2 * 2)
    for expert in range(experts):
        for half in (0, 1):
            for row in range(0, rows, step):
                count = min(step, rows - row)
                chunk = read((expert * rows + row) * row_bytes, count * row_bytes)
                yield np.ascontiguousarray(chunk.reshape(count, row_bytes)[half::2]).reshape(-1)


def _rows_gate_then_up(item: PackItem, read: Read) -> Read:
    """Reads of whole rows of a plain tensor [E, N, K] in the order of _gate_then_up."""
    _, rows, depth = item.source.shape
    half, row_bytes = rows // 2, depth * DTYPES[item.source_dtype].itemsize

    def in_order(start: int, size: int) -> NDArray[np.uint8]:
        found, row, stop = [], start // row_bytes, (start + size) // row_bytes
        while row < stop:
            expert, inside = divmod(row, rows)
            up, first = divmod(inside, half)
            count = min(stop - row, half - first)
            at = (expert * rows + 2 * first) * row_bytes
            pairs = read(at, 2 * count * row_bytes).reshape(count, 2, row_bytes)
            found.append(pairs[:, up])
            row += count
        return np.concatenate(found).reshape(-1)

    return in_order


#: How the bytes of a tensor may be reordered: name -> generator of the bytes in archive order.
LAYOUTS: dict[str, Callable[[PackItem, Read], Iterator[NDArray[np.uint8]]]] = {
    "identity": _identity,
    "gate-then-up": _gate_then_up,
}
