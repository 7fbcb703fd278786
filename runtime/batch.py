"""Several sequences decoded together: a token of each, in one call that reads the weights once.

An artifact that was compiled for this has a function for each of its sizes. A call takes the
smallest that is large enough, and rows that no sequence fills are of scratch ones, which stay
empty: they cost arithmetic, and weights of the experts that they happen to choose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import ModelRecord, batch_function
from mxc.errors import RequestError
from mxc.runtime import arrays
from mxc.runtime.sequence import Sequence

if TYPE_CHECKING:
    from mxc.runtime.session import Model


class Batch:
    """Decodes sequences of one model together; which they are may change from call to call.

    Not for several threads at a time: it has scratch sequences of its own.
    """

    def __init__(self, model: Model) -> None:
        """Raises RequestError where `model` was not compiled to decode sequences together."""
        record = model.manifest.model
        if record is None or not record.batches:
            raise RequestError(
                f"{model.path}: was not compiled to decode sequences together; compile the "
                "checkpoint with --batch"
            )
        self._model = model
        self._record: ModelRecord = record
        self._scratch: list[Sequence] = []

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows that a call may have, ascending; the last is the most sequences."""
        return self._record.batches

    def feed(self, sequences: Iterable[Sequence], tokens: Iterable[int]) -> NDArray[np.float32]:
        """Append one token to each sequence; the logits that follow it, float32 [n, vocab_size].

        The sequences may be of different lengths. Logits of one do not depend on what the others
        hold; they differ from those of `Sequence.feed` in the order of f32 sums. Raises
        RequestError, and appends nothing, where there are no sequences or too many, one is there
        twice or is of another model, or a token cannot be appended.
        """
        rows, given = list(sequences), list(tokens)
        self._check(rows, given)
        ids = [
            int(sequence.checked([token])[0]) for sequence, token in zip(rows, given, strict=True)
        ]
        size = next(size for size in self.sizes if size >= len(rows))
        empty = size - len(rows)
        while len(self._scratch) < empty:
            self._scratch.append(Sequence(self._model))
        padded = np.array(ids + [0] * empty, np.int32)
        every = [*rows, *self._scratch[:empty]]
        memory = [buffer for sequence in every for buffer in sequence.memory]
        positions = [sequence.position for sequence in every]
        fed = arrays.to_device(self._model.device, padded, "i32")
        logits, *memory = self._model.invoke(batch_function(size), [fed, *positions, *memory])
        kept = len(memory) // size
        for number, sequence in enumerate(every):
            # A row that no sequence fills stays at its first token.
            written = 1 if number < len(rows) else 0
            sequence.appended(written, memory[number * kept : (number + 1) * kept])
        return arrays.to_host(self._model.device, logits, "f32")[: len(rows)]

    def _check(self, sequences: list[Sequence], tokens: list[int]) -> None:
        most = self.sizes[-1]
        if not 1 <= len(sequences) <= most:
            raise RequestError(
                f"got {len(sequences)} sequences, the artifact decodes 1 to {most} together; "
                "feed fewer at a time, or compile with a larger --batch"
            )
        if len(tokens) != len(sequences):
            raise RequestError(
                f"wants one token for each of {len(sequences)} sequences, got {len(tokens)}"
            )
        if len({id(sequence) for sequence in sequences}) != len(sequences):
            raise RequestError(
                "a sequence is there twice: its second token would need the first; "
                "feed it again, or a fork of it"
            )
        for number, sequence in enumerate(sequences):
            if sequence.model is not self._model:
                raise RequestError(
                    f"sequence {number} is of {sequence.model.path}, loaded apart from "
                    f"{self._model.path}; feed sequences of one loaded model"
                )
