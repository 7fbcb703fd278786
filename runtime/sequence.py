"""One sequence of tokens over a loaded model, with its pages of keys and values and its states.

Tokens are fed in calls of at most as many rows as the artifact takes. The logits of a token do not
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
    """The tokens fed so far to one model. Sequences over one model are independent."""

    def __init__(self, model: Model) -> None:
        """Create an empty sequence; RequestError where `model` is not a language model."""
        self._model = model
        self._record = language_model(model)
        self._shared = model.shared_pages()
        self._position = 0
        self._own(self._shared.open())

    def _own(self, pages: SequencePages) -> None:
        self._pages = pages
        self._freed = weakref.finalize(self, self._shared.give_back, pages)
        # At exit nothing needs to be returned.
        self._freed.atexit = False

    @property
    def model(self) -> Model:
        """The model that the tokens are fed to."""
        return self._model

    @property
    def position(self) -> int:
        """Number of tokens that have been fed."""
        return self._position

    @property
    def remaining(self) -> int:
        """Number of further tokens that can be fed."""
        return self._record.max_sequence_length - self._position

    def feed(self, tokens: Iterable[int], last_only: bool = False) -> NDArray[np.float32]:
        """Append `tokens`; return the logits after each of them, float32 [n, vocab_size].

        last_only: return only the row after the last token, [1, vocab_size]; the logits of the
        other rows are not computed. Raises RequestError, and appends nothing, where there is no
        token, a token is outside of the vocabulary, or the sequence would become too long.
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
        """Remove all tokens."""
        self._freed()
        self._position = 0
        self._own(self._shared.open())

    def fork(self) -> Sequence:
        """Return a second sequence with the same tokens, which continues independently.

        It shares the full pages, which are never written again, and has copies of the partial last
        page and of the states.
        """
        other = Sequence.__new__(Sequence)
        other._model = self._model
        other._record = self._record
        other._shared = self._shared
        other._position = self._position
        other._own(self._shared.fork(self._pages, self._position))
        return other

    def pages(self, kind: int = 0) -> Array:
        """Return copies of its pages of a kind: [pages, E, B, V, D], see ModelRecord.

        Pages before the window are released already. Rows after the last token are undefined.
        """
        return self._shared.read_pages(self._pages, kind)

    def states(self) -> dict[str, NDArray[np.float32]]:
        """Copies of its recurrent states, by name: [L, ..]; of no meaning before a token. On
        several devices each has those of its heads, as `device.0.` and the name."""
        return self._shared.read_state(self._pages)

    def run(self, tokens: NDArray[np.int32], first: int = 0) -> Run:
        """Return the Run that appends `tokens`, with the logits of `tokens[first:]`."""
        wanted = range(first, len(tokens))
        return Run(pages=self._pages, tokens=tokens, before=self._position, wanted=wanted)

    def checked(self, tokens: Iterable[int]) -> NDArray[np.int32]:
        """Return the tokens as int32 if they can be appended; raises RequestError as `feed`."""
        # Python integers, because for one token arrays would take ten times as long.
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
        """Advance the position by `count` tokens, which a call has appended."""
        self._position += count
