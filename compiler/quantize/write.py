"""Writes the files of a quantized checkpoint: headers first, then the tensors, in pieces.

All shapes are known before anything is read, so every piece has its place in its file. A piece is
read and written a few MiB at a time: the memory needed does not depend on the size of tensors,
files or the checkpoint. The kinds of pieces:

  peak     the largest magnitude of some rows, needed first for the tensor scale of nvfp4
  rows     some rows, quantized
  matrices some matrices of a stack, each transposed and quantized
  copy     some bytes of a tensor that is kept
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.files.safetensors import SINGLE
from mxc.compiler.checkpoints.files.tensors import DTYPES, read_bytes
from mxc.compiler.pieces.piece import CHUNK, Piece, PieceOutput, chunks, ranges
from mxc.compiler.pieces.run import Runner
from mxc.compiler.quantize.calibration import Calibration
from mxc.compiler.quantize.inputs import CalibrationInputs
from mxc.compiler.quantize.loss import Loss
from mxc.compiler.quantize.outputs import Parts, QuantizedTensor
from mxc.compiler.quantize.plan import Item
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.formats.nvfp4 import TensorScaling as TensorScale

#: Called with the number of source bytes done since the last call, and the tensor.
Progress = Callable[[int, str], None]


class QuantizedFiles:
    """The files of `items`, named as the files of the source, and the computation of their
    pieces."""

    def __init__(
        self,
        items: Sequence[Item],
        files: Sequence[Path],
        quantizer: RowQuantizer,
        calibration: Calibration | None,
        metadata: dict[str, str],
    ) -> None:
        """Lay out the files; no tensor is read."""
        self.items, self._quantizer, self._calibration = items, quantizer, calibration
        #: Numbers of the items of each file.
        self.files: dict[str, list[int]] = {}
        self.heads: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self._offsets: dict[str, int] = {}
        self._names = {file: SINGLE if len(files) == 1 else file.name for file in files}
        for file, name in self._names.items():
            here = [number for number, item in enumerate(items) if item.source.file == file]
            tensors = [tensor for number in here for tensor in items[number].tensors]
            self.heads[name], offsets, self.sizes[name] = layout(tensors, metadata)
            self.files[name] = here
            self._offsets |= offsets
        self.losses: dict[str, Loss] = {}
        #: Names of tensors without inputs in the calibration.
        self.uncalibrated: list[str] = []

    def write(self, runner: Runner, progress: Progress, *, remote: bool) -> None:
        """Write all files with `runner`; `progress` is called in this thread.

        Raises CheckpointError if a source is truncated, or a number cannot be quantized.
        """
        for name, numbers in self.files.items():
            runner.create(name, self.sizes[name], self.heads[name])
            peaks: dict[int, float] = {}
            for piece, peak in runner.run(p for number in numbers for p in self._peaks(number)):
                peaks[piece.tensor] = max(peaks.get(piece.tensor, 0.0), peak)
            pieces = [p for number in numbers for p in self._pieces(number, peaks.get(number))]
            feeds_back = self._calibration is not None and self._calibration.feeds_back
            # In one process, the inputs of only one weight are in memory at a time.
            for group in _by_weight(pieces) if feeds_back and not remote else [pieces]:
                for piece, lost in runner.run(group):
                    tensor = self.items[piece.tensor].source.name
                    if lost is not None:
                        self.losses.setdefault(tensor, Loss()).add(Loss(**lost))
                    progress(piece.size, tensor)

    def compute(self, piece: Piece, output: PieceOutput) -> Any:
        """Write a piece and return the largest magnitude of a peak, the fields of a Loss,
        or None."""
        item = self.items[piece.tensor]
        if piece.kind == "copy":
            for start, count in chunks(piece, 1):
                self._put(output, item, item.tensors[0], start, _bytes(item, start, count))
            return None
        if piece.kind == "peak":
            found = [
                self._quantizer.largest(_rows(item, start, count), _place(item), start)
                for start, count in chunks(piece, _row_bytes(item), whole=item.at_once)
            ]
            return float(max(found, default=0.0))
        if item.parts is None:
            raise AssertionError(f"{item.source.name} is kept")
        loss = Loss()
        compute = self._matrix if piece.kind == "matrices" else self._some_rows
        for each in compute(piece, item, item.parts, output):
            loss.add(each)
        return asdict(loss)

    def _some_rows(
        self, piece: Piece, item: Item, parts: Parts, output: PieceOutput
    ) -> Iterator[Loss]:
        whole = None
        if piece.given is not None and parts.tensor_scale is not None:
            whole = self._quantizer.tensor(np.float32(piece.given))
            if whole is not None and piece.start == 0:
                self._put(output, item, parts.tensor_scale, 0, _number(whole))
        inputs = self._inputs(item)
        for start, count in chunks(piece, _row_bytes(item), whole=item.at_once):
            values = _rows(item, start, count)
            elements, scales, loss = self._quantizer.run(
                values, _place(item), row=start, whole=whole, inputs=inputs
            )
            self._put(output, item, parts.elements, start * elements.shape[1], elements)
            self._put(output, item, parts.scales, start * scales.shape[1], scales)
            yield loss

    def _matrix(
        self, piece: Piece, item: Item, parts: Parts, output: PieceOutput
    ) -> Iterator[Loss]:
        depth = item.source.shape[-2]
        for index in range(piece.start, piece.start + piece.count):
            values = _rows(item, index * depth, depth)
            place = f"{_place(item)} (slice {index}, transposed)"
            inputs = self._inputs(item, index)
            elements, scales, loss = self._quantizer.run(values.T, place, inputs=inputs)
            self._put(output, item, parts.elements, index * elements.nbytes, elements)
            self._put(output, item, parts.scales, index * scales.nbytes, scales)
            yield loss

    def _peaks(self, number: int) -> Iterator[Piece]:
        item = self.items[number]
        if item.parts is not None and item.parts.tensor_scale is not None:
            for start, count in self._ranges(item):
                yield Piece("peak", number, start, count)

    def _pieces(self, number: int, peak: float | None) -> Iterator[Piece]:
        item = self.items[number]
        if item.parts is None:
            for start, count in ranges(item.source.bytes, 1):
                yield Piece("copy", number, start, count, count)
        elif item.parts.transposed:
            size = item.source.bytes // max(1, item.source.shape[0])
            for start, count in ranges(item.source.shape[0], size, self._limit):
                for index in range(start, start + count):
                    self._note(item, index)
                yield Piece("matrices", number, start, count, count * size)
        else:
            self._note(item)
            for start, count in self._ranges(item):
                yield Piece("rows", number, start, count, count * _row_bytes(item), peak)

    def _ranges(self, item: Item) -> Iterator[tuple[int, int]]:
        rows = prod(item.source.shape[:-1])
        return iter([(0, rows)]) if item.at_once else ranges(rows, _row_bytes(item), self._limit)

    @property
    def _limit(self) -> int:
        """Source bytes per piece, 0 for the default; smaller with error feedback, which
        takes long."""
        feeds_back = self._calibration is not None and self._calibration.feeds_back
        return CHUNK if feeds_back else 0

    def _note(self, item: Item, expert: int | None = None) -> None:
        name = item.source.name
        if self._calibration is not None and not self._calibration.knows(name, expert):
            self.uncalibrated.append(name if expert is None else f"{name}, expert {expert}")

    def _inputs(self, item: Item, expert: int | None = None) -> CalibrationInputs | None:
        """Return the inputs of a weight, or None."""
        known = self._calibration
        return None if known is None else known.of(item.source.name, expert)

    def _put(
        self,
        output: PieceOutput,
        item: Item,
        tensor: QuantizedTensor,
        at: int,
        data: NDArray[np.uint8],
    ) -> None:
        output.put(self._names[item.source.file], self._offsets[tensor.name] + at, data)


def _by_weight(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces of one weight together; each piece of a stack alone."""
    group: list[Piece] = []
    for piece in pieces:
        if group and (piece.tensor != group[-1].tensor or piece.kind == "matrices"):
            yield group
            group = []
        group.append(piece)
    yield group


def _number(whole: TensorScale) -> NDArray[np.uint8]:
    return np.atleast_1d(whole.number).view(np.uint8)


def layout(
    tensors: Sequence[QuantizedTensor], metadata: dict[str, str]
) -> tuple[bytes, dict[str, int], int]:
    """Return the header of a safetensors file, the offset of each tensor in the file, and
    its size."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    ends: dict[str, int] = {}
    end = 0
    for tensor in tensors:
        size = prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + size],
        }
        ends[tensor.name] = end
        end += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: start + at for name, at in ends.items()}, start + end


def _place(item: Item) -> str:
    return f"{item.source.file}: tensor {item.source.name}"


def _row_bytes(item: Item) -> int:
    return item.source.shape[-1] * DTYPES[item.source.dtype].itemsize


def _bytes(item: Item, start: int, size: int) -> NDArray[np.uint8]:
    """Return `size` bytes of a tensor from its byte `start` on."""
    if item.read is not None:
        return np.ascontiguousarray(item.read(start, size))
    return read_bytes(item.source, start, size)


def _rows(item: Item, start: int, count: int) -> NDArray[Any]:
    """Return rows [start, start + count) of a tensor as a matrix, leading dimensions flattened."""
    dtype, row_bytes = DTYPES[item.source.dtype], _row_bytes(item)
    raw = _bytes(item, start * row_bytes, count * row_bytes)
    return raw.view(dtype).reshape(count, item.source.shape[-1])
