"""The tensors of an archive: where each comes from, and the order of its bytes.

  source bytes -> reordered -> rows, unchanged or quantized -> panels

Any range of units (rows, panels or bytes) can be computed by itself, so that a tensor is written in
pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.tensor import StoredPart
from mxc.compiler.checkpoints.files.tensors import (
    DTYPES,
    TensorRecord,
    dtype_name,
    read_bytes,
)
from mxc.compiler.packing.device_share import DeviceShare
from mxc.compiler.packing.nan_scales import NanCount
from mxc.compiler.packing.panels import panel_bytes, to_panels
from mxc.compiler.packing.quantized import Loss, QuantizedRows, quantized_rows
from mxc.compiler.packing.stacked import Stacked
from mxc.formats.panels import PANEL

#: Function that reads the source, given offset and size in bytes.
Read = Callable[[int, int], NDArray[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class PackItem:
    """One tensor of the archive: its `key`, its source, and the layout of its bytes.

    - `source`: a tensor of a checkpoint; a part of a canonical tensor, which is decoded first;
      several parts stacked along rows; a device's share of one of these; or an array that the
      compiler made.
    - `quantized`: the source is floats [.., rows, K], of which the quantized elements or their
      scales are packed.
    - `layout`: "identity" or "gate-then-up".
    - `panels`: a key of panels.UNITS, applied after `layout` and quantization; or None.
    - `experts`: the first dimension is that of experts.
    - `scales`: the bytes are E8M0 scales [experts, rows, blocks]; a NaN among them is reported.
    """

    key: str
    source: TensorRecord | StoredPart | Stacked | DeviceShare | NDArray[Any]
    layout: str = "identity"
    panels: str | None = None
    experts: bool = False
    scales: bool = False
    quantized: QuantizedRows | None = None

    @property
    def source_dtype(self) -> str:
        """The safetensors dtype of the source."""
        if isinstance(self.source, TensorRecord | StoredPart | Stacked | DeviceShare):
            return self.source.dtype
        return dtype_name(self.source.dtype)

    @property
    def record(self) -> TensorRecord | None:
        """The first file tensor that is read; None for an array that the compiler made."""
        return next(iter(self.records), None)

    @property
    def place(self) -> str:
        """File and tensor, for messages."""
        if (record := self.record) is not None:
            return f"{record.file}: tensor {record.name}"
        return f"generated: tensor {self.key}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in elements of `dtype`; independent of the layout."""
        shape = tuple(self.source.shape)
        return shape if self.quantized is None else self.quantized.shape(shape)

    @property
    def dtype(self) -> str:
        """The safetensors dtype of the packed tensor."""
        return self.source_dtype if self.quantized is None else "U8"

    @property
    def row_order_bytes(self) -> int:
        """Size in bytes in row order, before panels are padded."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """Size in bytes in the archive, without padding between tensors."""
        return self.row_order_bytes if self.panels is None else panel_bytes(*self.matrix)

    @property
    def matrix(self) -> tuple[int, int, int]:
        """The tensor [N, ..], or [E, N, ..] with experts, as (experts, rows, bytes per row)."""
        lead, rest = (self.shape[0], self.shape[1:]) if self.experts else (1, self.shape)
        count = lead * rest[0]
        return lead, rest[0], self.row_order_bytes // count if count else 0

    @property
    def full_layout(self) -> str:
        """The name of the whole layout: that of the rows, then that of the panels."""
        steps = [self.layout] if self.layout != "identity" or self.panels is None else []
        return ", ".join([*steps, *([self.panels] if self.panels else [])])

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""
        if isinstance(self.source, TensorRecord):
            return (self.source,)
        return () if isinstance(self.source, np.ndarray) else self.source.records

    @property
    def units(self) -> tuple[int, int]:
        """Number of units, and bytes of each in the archive.

        A unit is the smallest range that is computed by itself: an expert if its rows are
        reordered; else a panel, a quantized row, or a byte.
        """
        if self.layout == "identity" and self.panels is None and self.quantized is None:
            return self.bytes, 1
        experts, rows, row_bytes = self.matrix
        if self.panels is not None:
            rows, row_bytes = -(-rows // PANEL), PANEL * row_bytes
        if self.layout == "identity":
            return experts * rows, row_bytes
        return experts, rows * row_bytes

    @property
    def source_bytes(self) -> int:
        """Size of the source in bytes."""
        return prod(self.source.shape) * DTYPES[self.source_dtype].itemsize

    def reader(self) -> Read:
        """Return a function that reads the source by offset and size in bytes."""
        if isinstance(self.source, np.ndarray):
            flat = np.ascontiguousarray(self.source).reshape(-1).view(np.uint8)
            return lambda start, size: flat[start : start + size]
        if isinstance(self.source, TensorRecord):
            return partial(read_bytes, self.source)
        return self.source.reader(read_bytes)


@dataclass
class PackingFindings:
    """Findings of packing: NaN scales, and the loss of quantized rows."""

    nan: NanCount = field(default_factory=NanCount)
    loss: Loss = field(default_factory=Loss)


def archive_bytes(
    item: PackItem, read: Read, start: int, count: int, found: PackingFindings
) -> NDArray[np.uint8]:
    """Return units [start, start + count) of an item in the byte order of the archive.

    Findings are added to `found`. Raises CheckpointError for numbers that cannot be quantized.
    """
    if item.layout == "gate-then-up":
        read = _gate_then_up(item, read)
    if item.panels is not None:
        return _panels(item, read, start, count, found)
    if item.quantized is not None:
        rows = item.matrix[1] if item.layout == "gate-then-up" else 1
        return _rows(item, read, start * rows, count * rows, found)
    unit_bytes = item.units[1]
    return _stored(item, read, start * unit_bytes, count * unit_bytes, found)


def _panels(
    item: PackItem, read: Read, start: int, count: int, found: PackingFindings
) -> NDArray[np.uint8]:
    experts, rows, row_bytes = item.matrix
    each, made = -(-rows // PANEL), [np.empty(0, np.uint8)]
    if item.layout == "gate-then-up":
        start, count = start * each, count * each
    elif rows % PANEL == 0:  # whole panels: no panel spans two experts
        rows, each = rows * experts, each * experts
    stop = start + count
    while start < stop:
        expert, inside = divmod(start, each)
        some = min(stop - start, each - inside)
        first = inside * PANEL
        wanted = min(some * PANEL, rows - first)
        data = _rows(item, read, expert * rows + first, wanted, found)
        made.append(to_panels(data, wanted, row_bytes, item.panels or ""))
        start += some
    return made[1] if len(made) == 2 else np.concatenate(made)


def _rows(
    item: PackItem, read: Read, start: int, count: int, found: PackingFindings
) -> NDArray[np.uint8]:
    """Return rows [start, start + count) in row order, before panels."""
    if item.quantized is None:
        row_bytes = item.matrix[2]
        return _stored(item, read, start * row_bytes, count * row_bytes, found)
    depth, dtype = item.source.shape[-1], DTYPES[item.source_dtype]
    size = depth * dtype.itemsize
    values = read(start * size, count * size).view(dtype).reshape(count, depth)
    return quantized_rows(values, item.quantized, found.loss, place=item.place, row=start)


def _stored(
    item: PackItem, read: Read, start: int, size: int, found: PackingFindings
) -> NDArray[np.uint8]:
    data = read(start, size)
    if item.scales:
        _, rows, blocks = item.matrix
        halves = item.layout == "gate-then-up"
        found.nan.look(data, start, rows, blocks, halves=halves)
    return data


def _gate_then_up(item: PackItem, read: Read) -> Read:
    """Return a reader of whole experts of a tensor [E, N, ..] with their even rows before the odd
    ones.

    gpt-oss interleaves the rows of an expert: 0, 2, 4, .. are gate and 1, 3, 5, .. up. A program
    reads the two halves without strided access.
    """
    half = item.source.shape[1] // 2
    row_bytes = item.source_bytes // max(1, prod(item.source.shape[:2]))

    def in_order(start: int, size: int) -> NDArray[np.uint8]:
        pairs = read(start, size).reshape(-1, half, 2, row_bytes)
        return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(-1)

    return in_order
