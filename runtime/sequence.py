"""One sequence of tokens over a loaded model, with pages of keys and values, and states of its own.

Tokens are fed in calls of as many rows as the artifact says. What is computed of a token does not
depend on how its sequence was cut into calls, nor on other sequences of the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError
from mxc.runtime.arrays import Array
from mxc.runtime.page_store import SequencePages
from mxc.runtime.paged_steps import language_model
from mxc.runtime.plans import Run

if TYPE_CHECKING:
    from mxc.runtime.session import Model


class Sequence:
    """Tokens fed so far to one model; several sequences over one model do not touch each other."""

    def __init__(self, model: Model) -> None:
        """An empty sequence. Raises RequestError where `model` is not a language model."""
        self._model = model
        self._record = language_model(model)
        self._shared = model.shared_pages()
        self._position = 0
        self._own(self._shared.open())

    def _own(self, pages: SequencePages) -> None:
        self._pages = pages
        self._freed = weakref.finalize(self, self._shared.give_back, pages)
        # The process ends with its memory.
        self._freed.atexit = False

    @property
    def model(self) -> Model:
        """The model that the tokens are fed to."""
        return self._model

    @property
    def position(self) -> int:
        """How many tokens have been fed."""
        return self._position

    @property
    def remaining(self) -> int:
        """How many more tokens can be fed."""
        return self._record.max_sequence_length - self._position

    def feed(self, tokens: Iterable[int], last_only: bool = False) -> NDArray[np.float32]:
        """Append `tokens`; the logits that follow each of them, float32 [n, vocab_size].

        last_only: only the row after the last token, [1, vocab_size], which saves the other rows'
        multiplications. Raises RequestError, and appends nothing, where there is no token, a token
        is outside of the vocabulary, or the sequence would be longer than its maximum.
        """
        ids = self.checked(tokens)
        rows: list[NDArray[np.float32]] = []
        most = self._record.rows
        for start in range(0, len(ids), most):
            piece = ids[start : start + most]
            first = 0
            if last_only:
                first = len(piece) - (start + len(piece) == len(ids))
            rows.append(self._shared.step([self.run(piece, first)]))
            self.appended(len(piece))
        return rows[-1] if last_only else np.concatenate(rows)

    def reset(self) -> None:
        """Forget all tokens."""
        self._freed()
        self._position = 0
        self._own(self._shared.open())

    def fork(self) -> Sequence:
        """A second sequence that continues from here.

        It shares the pages that are full, which are never written again, and has copies of the
        last one and of the states.
        """
        other = Sequence.__new__(Sequence)
        other._model = self._model
        other._record = self._record
        other._shared = self._shared
        other._position = self._position
        other._own(self._shared.fork(self._pages, self._position))
        return other

    def pages(self, kind: int = 0) -> Array:
        """Copies of the pages that it has of a kind: [pages, E, B, V, D], see ModelRecord.

        Those after a window are gone. What is past the last token is of no meaning.
        """
        return self._shared.read_pages(self._pages, kind)

    def states(self) -> dict[str, NDArray[np.float32]]:
        """Copies of its recurrent states, by name: [L, ..]; of no meaning before a token."""
        return self._shared.read_state(self._pages)

    def run(self, tokens: NDArray[np.int32], first: int = 0) -> Run:
        """What appends `tokens`, with the logits of those from number `first`; see SharedPages."""
        wanted = range(first, len(tokens))
        return Run(pages=self._pages, tokens=tokens, before=self._position, wanted=wanted)

    def checked(self, tokens: Iterable[int]) -> NDArray[np.int32]:
        """The tokens as int32, if they can be appended; raises RequestError as `feed` does."""
        # Numbers of Python: for one token arrays would take ten times as long.
        given = tokens.tolist() if isinstance(tokens, np.ndarray) else list(tokens)
        if not given:
            raise RequestError("feed wants at least one token, got none")
        if not all(isinstance(token, int | np.integer) for token in given):
            found = np.asarray(tokens if isinstance(tokens, np.ndarray) else given)
            raise RequestError(
                f"feed wants a sequence of token ids, got {found.dtype} {list(found.shape)}"
            )
        vocabulary = self._record.vocab_size
        if min(given) < 0 or max(given) >= vocabulary:
            at = next(n for n, token in enumerate(given) if not 0 <= token < vocabulary)
            raise RequestError(
                f"token {int(given[at])} (number {at} of those fed) is outside of the vocabulary, "
                f"which is 0 to {vocabulary - 1}"
            )
        longest = self._record.max_sequence_length
        if self._position + len(given) > longest:
            raise RequestError(
                f"the sequence would be {self._position + len(given)} tokens long, the artifact "
                f"holds {longest}; compile it with a larger --max-sequence-length"
            )
        return np.array(given, np.int32)

    def appended(self, count: int) -> None:
        """Note that a call appended `count` tokens."""
        self._position += count
