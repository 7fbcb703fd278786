"""Batched decoding: one token of each of several sequences, in a call that reads weights once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError
from mxc.runtime.paged_steps import language_model
from mxc.runtime.sequence import Sequence

if TYPE_CHECKING:
    from mxc.runtime.session import Model


class Batch:
    """Decodes sequences of one model together; the set may change from call to call."""

    def __init__(self, model: Model) -> None:
        """Raises RequestError where `model` is not a language model."""
        self._model = model
        self._record = language_model(model)
        self._shared = model.shared_pages()

    def feed(self, sequences: Iterable[Sequence], tokens: Iterable[int]) -> NDArray[np.float32]:
        """Append one token to each sequence; return the logits after it, float32 [n, vocab_size].

        The sequences may have different lengths. The logits of a sequence are those that
        `Sequence.feed` returns; they do not depend on the other sequences. More sequences than a
        call has rows are fed in several calls. Raises RequestError, and appends nothing, for an
        empty list, a sequence that is listed twice or belongs to another model, or a token that
        cannot be appended.
        """
        rows, given = list(sequences), list(tokens)
        self._check(rows, given)
        runs = [
            sequence.run(sequence.checked([token]))
            for sequence, token in zip(rows, given, strict=True)
        ]
        found = []
        for start in range(0, len(runs), self._record.rows):
            some = slice(start, start + self._record.rows)
            found.append(self._shared.step(runs[some]))
            for sequence in rows[some]:
                sequence.appended(1)
        return np.concatenate(found)

    def _check(self, sequences: list[Sequence], tokens: list[int]) -> None:
        if not sequences:
            raise RequestError("got no sequences; feed at least one")
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
