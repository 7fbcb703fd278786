"""Steps over the sequences of an artifact whose functions know no pages.

Each run has a sequence of its own, in the slot that a model with recurrent states would use, so
that nothing is shared between requests; sequences are computed one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError
from mxc.runtime.steps import Integers, PageKind, StepPlan

if TYPE_CHECKING:
    from mxc.runtime.sequence import Sequence
    from mxc.runtime.session import Model

#: Tokens of a page: nothing lies in them, they only count what a sequence may have.
_PAGE = 64


class SequenceSteps:
    """A StepModel of up to `sequences` sequences."""

    def __init__(self, model: Model, sequences: int) -> None:
        """Raises RequestError where `model` is not a language model."""
        record = model.manifest.model
        if record is None:
            raise RequestError(f"{model.path}: not a language model: it generates no text")
        self._model = model
        self._sequences: dict[int, Sequence] = {}
        self.page_size = _PAGE
        self.context = self.rows = record.max_sequence_length
        self.vocabulary = record.vocab_size
        self.states = sequences
        pages = sequences * (-(-self.context // _PAGE) + 1)
        self.kinds = (PageKind(window=None, pages=pages, bytes_per_page=0),)

    def step(self, plan: StepPlan) -> NDArray[np.float32]:
        """Feed each run to its sequence; the logits of the wanted rows."""
        found = {}
        for (start, count, before), slot in zip(plan.runs, plan.states.tolist(), strict=True):
            if before == 0:
                self._sequences[slot] = self._model.sequence()
            tokens = plan.tokens[start : start + count].tolist()
            found[start + count - 1] = self._sequences[slot].feed(tokens, last_only=True)[0]
        if not len(plan.rows):
            return np.zeros((0, self.vocabulary), np.float32)
        return np.stack([found[row] for row in plan.rows.tolist()])

    def copy_pages(self, kind: int, source: Integers, target: Integers) -> None:
        """Never asked for: nothing is shared."""
        raise NotImplementedError

    def copy_state(self, source: int, target: int) -> None:
        """Never asked for: nothing is shared."""
        raise NotImplementedError
