"""Calibration: statistics of the inputs of linear layers over a text, used to quantize their
weights.

A model compiled with `observe_inputs` runs on a text and returns these inputs. Sums are kept in
memory. Rounding with error feedback also needs the inputs themselves, which are written to a folder
in bfloat16, so that memory does not grow with the text.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import EXPERTS, INPUTS
from mxc.compiler.models.model import BoundModel
from mxc.compiler.quantize.feedback import Feedback
from mxc.compiler.quantize.inputs import CalibrationInputs

Floats = NDArray[np.float32]

#: Approximate number of inputs, spread over the text, on which errors of outputs are measured.
_SAMPLE = 64
#: Number of inputs that are read at a time.
_ROWS = 2048
#: Number of Feedback objects that are kept: the query, key and value weights of a layer share their
#: inputs, and the output weight may lie between them in a file.
_KEPT = 2
#: Held while a Feedback is computed, because each needs much memory.
_ONE = threading.Lock()

_EXPERT = re.compile(r"(?P<stem>.*\bexperts)\.(?P<number>\d+)\.(?P<part>\w+?)(\.weight)?")


@dataclass
class _Stream:
    """Statistics of the inputs of one weight, or of one expert: sums of squares, count and
    samples."""

    squares: NDArray[np.float64]
    count: int = 0
    sample: list[Floats] = field(default_factory=list)


class Calibration:
    """The inputs of the linear layers of `model` over a text of `tokens` tokens.

    `folder` receives the inputs; None disables error feedback. `said` is the description that
    quantized files record.
    """

    def __init__(
        self, model: BoundModel, tokens: int, folder: Path | None, said: Mapping[str, Any]
    ) -> None:
        """Start without inputs."""
        self.said = dict(said)
        self._folder = folder
        self._stride = max(1, tokens // _SAMPLE)
        self._keys = dict(_tensors(model))
        self._same: dict[str, str] = {}
        self._streams: dict[tuple[str, int | None], _Stream] = {}
        self._feedback: OrderedDict[tuple[str, int | None], Feedback] = OrderedDict()

    @property
    def feeds_back(self) -> bool:
        """Whether inputs are kept, so that error feedback is possible."""
        return self._folder is not None

    def add(self, results: Mapping[str, NDArray[Any]]) -> None:
        """Add the inputs of some tokens, and the experts they are routed to, by names of the
        results."""
        for name, values in results.items():
            if not name.startswith(INPUTS):
                continue
            listed = name.removeprefix(INPUTS)
            key, *others = listed.split(", ")
            # The first name represents all weights with the same inputs.
            self._same |= dict.fromkeys(others, key)
            rows = values.reshape(-1, values.shape[-1])
            chosen = results.get(EXPERTS + listed)
            if chosen is None:
                self._add((key, None), rows)
                continue
            flat = chosen.reshape(-1)
            # There is a row per token, or one per token and selected expert.
            pairs = np.arange(len(flat)) * len(values) // len(flat)
            for expert in np.unique(flat).tolist():
                self._add((key, expert), rows[pairs[flat == expert]])

    def _add(self, stream: tuple[str, int | None], rows: Floats) -> None:
        found = self._streams.setdefault(stream, _Stream(np.zeros(rows.shape[1])))
        found.squares += np.einsum("nk,nk->k", rows, rows, dtype=np.float64)
        first = -found.count % self._stride
        found.sample.append(rows[first :: self._stride].copy())
        found.count += len(rows)
        if self._folder is not None:
            with self._file(stream).open("ab") as file:
                file.write(rows.astype(ml_dtypes.bfloat16).tobytes())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for other processes, which compute Feedback objects themselves."""
        return {**self.__dict__, "_feedback": OrderedDict()}

    def digest(self) -> str:
        """Return a digest of everything that quantization depends on."""
        whole = hashlib.sha256(repr((self.said, self.feeds_back, self._same)).encode())
        for stream, found in self._streams.items():
            whole.update(repr((stream, found.count)).encode() + found.squares.tobytes())
            for rows in found.sample:
                whole.update(rows.tobytes())
        return whole.hexdigest()

    def knows(self, tensor: str, expert: int | None = None) -> bool:
        """Return whether the text reached the weight `tensor`, or one expert of a stack."""
        return self._stream(tensor, expert) is not None

    def of(self, tensor: str, expert: int | None = None) -> CalibrationInputs | None:
        """Return the inputs of the weight `tensor` of the checkpoint, or of one expert of a stack.

        None if the model does not use the weight, or the text did not reach it. Threads may call
        it.
        """
        stream = self._stream(tensor, expert)
        if stream is None:
            return None
        found, feedback = self._streams[stream], None
        if self._folder is not None:
            with _ONE:
                if stream not in self._feedback:
                    while len(self._feedback) >= _KEPT:
                        self._feedback.popitem(last=False)
                    self._feedback[stream] = Feedback.of(self._gram(stream, found), found.count)
                feedback = self._feedback[stream]
        squares = (found.squares / found.count).astype(np.float32)
        return CalibrationInputs(squares, np.concatenate(found.sample), feedback)

    def _stream(self, tensor: str, expert: int | None) -> tuple[str, int | None] | None:
        place = self._place(tensor, expert)
        if place is None:
            return None
        stream = (self._same.get(place[0], place[0]), place[1])
        found = self._streams.get(stream)
        return None if found is None or not found.squares.any() else stream

    def _place(self, tensor: str, expert: int | None) -> tuple[str, int | None] | None:
        """Return the key of the weight that a tensor is part of, and the expert; None if
        unknown."""
        if tensor in self._keys:
            key, number = self._keys[tensor]
            return key, number if expert is None else expert
        # A weight that was split off the stack of all experts.
        if (match := _EXPERT.fullmatch(tensor)) is not None:
            part = match["part"]
            for name in (part, "gate_up_proj"):
                for ending in ("", ".weight"):
                    if (stack := f"{match['stem']}.{name}{ending}") in self._keys:
                        return self._keys[stack][0], int(match["number"])
        return None

    def _gram(self, stream: tuple[str, int | None], found: _Stream) -> NDArray[np.float64]:
        depth = len(found.squares)
        rows = np.memmap(self._file(stream), ml_dtypes.bfloat16, "r", shape=(found.count, depth))
        total = np.zeros((depth, depth))
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS].astype(np.float32)
            total += part.T @ part
        total /= found.count
        return total

    def _file(self, stream: tuple[str, int | None]) -> Path:
        assert self._folder is not None
        number = list(self._streams).index(stream)
        return self._folder / f"{number}.bf16"


def _tensors(model: BoundModel) -> Iterator[tuple[str, tuple[str, int | None]]]:
    """Yield (name of a checkpoint tensor, (key of its weight, expert)) for the matrices of
    a model."""
    for each in model.bound:
        if not each.parameter.matrix:
            continue
        sources = zip(each.tensors, each.parameter.rows, strict=True)
        for tensor, rows in sources:
            match = _EXPERT.fullmatch(rows.tensor) if each.parameter.experts else None
            expert = None if match is None else int(match["number"])
            for name in {rows.tensor, *(record.name for record in tensor.records)}:
                yield name, (each.key, expert)
