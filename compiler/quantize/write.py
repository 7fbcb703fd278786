"""The files of a quantised checkpoint: known headers first, then the tensors by several threads.

Shapes are known before anything is read, so every piece has its place in its file, and threads
write where they are done. numpy lets the others run while it works. A piece is some rows: what is
in memory at once does not depend on the size of tensors, files or the checkpoint.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.files.tensors import DTYPES, read_exactly
from mxc.compiler.quantize.calibration import Calibration
from mxc.compiler.quantize.inputs import Inputs
from mxc.compiler.quantize.loss import Loss
from mxc.compiler.quantize.outputs import Parts, Tensor
from mxc.compiler.quantize.plan import Item
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.formats.nvfp4 import Tensor as TensorScale

#: Bytes of a source tensor that one thread works on at a time.
CHUNK = 8 << 20

#: Called with the bytes of the source that are done, and the tensor that was last.
Progress = Callable[[int, str], None]

Job = Callable[[], tuple[int, Loss | None]]


@dataclass(frozen=True)
class _Files:
    """An open source file and the one that is written, with the place of each tensor in it."""

    source: int
    target: int
    offsets: dict[str, int]

    def put(self, tensor: Tensor, at: int, data: NDArray[np.uint8]) -> None:
        """Write bytes at the offset `at` of a tensor."""
        view, offset = np.ascontiguousarray(data).reshape(-1).data, self.offsets[tensor.name]
        while len(view):
            written = os.pwrite(self.target, view, offset + at)
            view, at = view[written:], at + written


class Writer:
    """Writes files of items with `workers` threads; a context, which ends them."""

    def __init__(
        self,
        quantizer: RowQuantizer,
        workers: int,
        progress: Progress,
        calibration: Calibration | None = None,
    ) -> None:
        """`progress` is called by the thread that calls `write`."""
        self._quantizer, self._progress = quantizer, progress
        self._calibration = calibration
        #: Tensors of whose inputs the calibration says nothing.
        self.uncalibrated: list[str] = []
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="quantize")
        self._ahead = 2 * workers
        self._waiting: deque[tuple[Future[tuple[int, Loss | None]], str]] = deque()
        self.losses: dict[str, Loss] = {}

    def __enter__(self) -> Writer:
        """Nothing is to be done."""
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for what runs; what has not begun never will."""
        self._pool.shutdown(cancel_futures=True)

    def write(self, path: Path, items: Sequence[Item], metadata: dict[str, str]) -> int:
        """Write one safetensors file of `items`, all of one source file; its size in bytes.

        Raises CheckpointError where the source ends early, or a number cannot be quantised.
        """
        header, offsets, size = layout([t for item in items for t in item.tensors], metadata)
        source = os.open(items[0].source.file, os.O_RDONLY)
        try:
            target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                os.pwrite(target, header, 0)
                os.truncate(target, size)
                files = _Files(source, target, offsets)
                for item in items:
                    self._queue(item, files)
                self._finish()
            finally:
                # No thread may hold the descriptors when they are closed.
                self._drain()
                os.close(target)
        finally:
            os.close(source)
        return size

    def _queue(self, item: Item, files: _Files) -> None:
        name = item.source.name
        if item.parts is None:
            self._run(self._copies(item, files), name)
            return
        self.losses[name] = Loss()
        whole = None
        if item.parts.tensor_scale is not None:
            whole = self._tensor_scale(item, item.parts.tensor_scale, files)
        self._run(self._pieces(item, item.parts, files, whole), name)

    def _tensor_scale(self, item: Item, tensor: Tensor, files: _Files) -> TensorScale | None:
        peaks: list[np.float32] = []

        def find(start: int, count: int) -> tuple[int, Loss | None]:
            values = _rows(item, files, start, count)
            peaks.append(self._quantizer.largest(values, _place(item), start))
            return 0, None

        self._run((partial(find, *rows) for rows in _row_ranges(item)), item.source.name)
        self._finish()
        whole = self._quantizer.tensor(max(peaks, default=np.float32(0)))
        if whole is not None:
            files.put(tensor, 0, np.atleast_1d(whole.number).view(np.uint8))
        return whole

    def _copies(self, item: Item, files: _Files) -> Iterator[Job]:
        def copy(start: int, count: int) -> tuple[int, Loss | None]:
            data = _bytes(item, files, start, count)
            files.put(item.tensors[0], start, data)
            return count, None

        for start in range(0, item.source.bytes, CHUNK):
            yield partial(copy, start, min(CHUNK, item.source.bytes - start))

    def _pieces(
        self, item: Item, parts: Parts, files: _Files, whole: TensorScale | None
    ) -> Iterator[Job]:
        inputs = None if parts.transposed else self._inputs(item)

        def rows(start: int, count: int) -> tuple[int, Loss | None]:
            values = _rows(item, files, start, count)
            elements, scales, loss = self._quantizer.run(
                values, _place(item), row=start, whole=whole, inputs=inputs
            )
            files.put(parts.elements, start * elements.shape[1], elements)
            files.put(parts.scales, start * scales.shape[1], scales)
            return values.nbytes, loss

        def matrix(index: int, inputs: Inputs | None) -> tuple[int, Loss | None]:
            depth = item.source.shape[-2]
            values = _rows(item, files, index * depth, depth)
            place = f"{_place(item)} (slice {index}, transposed)"
            elements, scales, loss = self._quantizer.run(values.T, place, inputs=inputs)
            files.put(parts.elements, index * elements.nbytes, elements)
            files.put(parts.scales, index * scales.nbytes, scales)
            return values.nbytes, loss

        if parts.transposed:
            for index in range(item.source.shape[0]):
                yield partial(matrix, index, self._inputs(item, index))
        else:
            yield from (partial(rows, *span) for span in _row_ranges(item))

    def _inputs(self, item: Item, expert: int | None = None) -> Inputs | None:
        """What a weight is fed with; one of which that is not known is noted."""
        if self._calibration is None:
            return None
        name = item.source.name
        if self._calibration.feeds_back:
            # Each has a matrix of its inputs: not several at once.
            self._finish()
        found = self._calibration.of(name, expert)
        if found is None:
            self.uncalibrated.append(name if expert is None else f"{name}, expert {expert}")
        return found

    def _run(self, jobs: Iterable[Job], name: str) -> None:
        for job in jobs:
            self._waiting.append((self._pool.submit(job), name))
            while len(self._waiting) > self._ahead:
                self._take()

    def _finish(self) -> None:
        """Wait for all pieces, the results in the order of the files; raise the first refusal."""
        while self._waiting:
            self._take()

    def _drain(self) -> None:
        """Forget what has not begun, wait for what has."""
        for future, _ in self._waiting:
            future.cancel()
        wait([future for future, _ in self._waiting])
        self._waiting.clear()

    def _take(self) -> None:
        future, name = self._waiting.popleft()
        done, loss = future.result()
        if loss is not None:
            self.losses[name].add(loss)
        self._progress(done, name)


def layout(
    tensors: Sequence[Tensor], metadata: dict[str, str]
) -> tuple[bytes, dict[str, int], int]:
    """The header of a safetensors file, the offset of each tensor in the file, and its size."""
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


def _bytes(item: Item, files: _Files, start: int, size: int) -> NDArray[np.uint8]:
    """`size` bytes of a tensor from its byte `start` on."""
    if item.read is not None:
        return np.ascontiguousarray(item.read(start, size))
    return read_exactly(files.source, item.source.offset + start, size, _place(item))


def _row_ranges(item: Item) -> Iterator[tuple[int, int]]:
    """(first, count) of rows that are read together."""
    rows = prod(item.source.shape[:-1])
    step = max(1, CHUNK // max(1, item.source.bytes // max(1, rows)))
    step = max(1, rows) if item.at_once else step
    for start in range(0, rows, step):
        yield start, min(step, rows - start)


def _rows(item: Item, files: _Files, start: int, count: int) -> NDArray[Any]:
    """Rows [start, start + count) of a tensor as a matrix, all leading dimensions counted."""
    dtype = DTYPES[item.source.dtype]
    depth = item.source.shape[-1]
    row_bytes = depth * dtype.itemsize
    raw = _bytes(item, files, start * row_bytes, count * row_bytes)
    return raw.view(dtype).reshape(count, depth)
