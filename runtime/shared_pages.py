"""The pages of all Sequences of one loaded model: one pool of each kind, which grows with them.

Pages come back when a Sequence is freed, and all memory goes with the last one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mxc.runtime.arrays import Array
from mxc.runtime.page_store import PageStore, SequencePages
from mxc.runtime.paged_steps import PagedSteps, language_model, page_bytes
from mxc.runtime.plans import Run, plan_of

if TYPE_CHECKING:
    from mxc.runtime.session import Model

#: The most bytes of a pool before any sequence needs them. On CPUs they are committed when they
#: are written to; a pool that is large enough is never copied to a larger one.
_FIRST_BYTES_LAZILY = 1 << 30
_FIRST_BYTES = 64 << 20
#: State slots at first.
_FIRST_STATES = 4


class SharedPages:
    """Computes runs of sequences. Threads wait for each other."""

    def __init__(self, model: Model) -> None:
        """Raises RequestError where `model` is not a language model."""
        record = language_model(model)
        size, budget = record.page_size, _FIRST_BYTES
        if model.runs_on_cpu:
            budget = _FIRST_BYTES_LAZILY
        pages = []
        for kind, page in zip(record.pages, page_bytes(record), strict=True):
            seen = record.max_sequence_length
            if kind.window is not None:
                seen = min(seen, kind.window + record.rows)
            pages.append(max(1, min(-(-seen // size) + 1, budget // page)))
        self._steps = PagedSteps(model, pages, _FIRST_STATES)
        self._store = PageStore(self._steps, record.rows)
        self._lock = threading.Lock()
        #: Pages of sequences that were freed: a finalizer may run at any time, in this class too.
        self._returned: deque[SequencePages] = deque()

    def open(self) -> SequencePages:
        """An empty sequence."""
        with self._lock:
            self._have((0,) * len(self._steps.kinds), bool(self._steps.states))
            return self._store.open((), 0)

    def give_back(self, pages: SequencePages) -> None:
        """Take back everything that a sequence has, sometime."""
        self._returned.append(pages)

    def step(self, runs: Sequence[Run]) -> NDArray[np.float32]:
        """The wanted logits of some runs of different sequences, f32 [R, V], in one call.

        Their tokens are checked, and fit into the context and into the rows of a call.
        """
        with self._lock:
            ends = [run.before + len(run.tokens) for run in runs]
            needed = sum(
                self._store.needed(run.pages, end) for run, end in zip(runs, ends, strict=True)
            )
            self._have((needed,) * len(self._steps.kinds), False)
            for run, end in zip(runs, ends, strict=True):
                self._store.extend(run.pages, end)
            logits = self._steps.compute(plan_of(runs, self._steps))
            for run, end in zip(runs, ends, strict=True):
                self._store.trim(run.pages, end)
            return logits

    def fork(self, pages: SequencePages, tokens: int) -> SequencePages:
        """A second sequence with the `tokens` tokens of one."""
        with self._lock:
            full, partial = divmod(tokens, self._steps.page_size)
            self._have((int(partial > 0),) * len(self._steps.kinds), bool(self._steps.states))
            other = self._store.fork(pages, tokens)
            for kind, (held, own) in enumerate(zip(pages.lists, other.lists, strict=True)):
                if partial:
                    source, target = np.array([[held[full]], [own[full]]], np.int32)
                    self._steps.copy_pages(kind, source, target)
            if pages.state is not None and other.state is not None:
                self._steps.copy_state(pages.state, other.state)
            return other

    def read_pages(self, pages: SequencePages, kind: int) -> Array:
        """What a sequence's pages of a kind hold: [pages that it has, E, B, V, D]."""
        with self._lock:
            return self._steps.read_pages(kind, np.array(pages.held(kind), np.int32))

    def read_state(self, pages: SequencePages) -> dict[str, NDArray[np.float32]]:
        """A sequence's states, by name: [L, ..]."""
        with self._lock:
            return {} if pages.state is None else self._steps.read_state(pages.state)

    def _have(self, pages: Sequence[int], state: bool) -> None:
        """Take back what was returned; grow until so many pages are free, and a state slot."""
        while self._returned:
            self._store.close(self._returned.popleft())
        counts = [
            _doubled(kind.pages, wanted - free)
            for kind, wanted, free in zip(
                self._steps.kinds, pages, self._store.available, strict=True
            )
        ]
        states = _doubled(self._steps.states, int(state) - self._store.free_states)
        if counts != [kind.pages for kind in self._steps.kinds] or states != self._steps.states:
            self._steps.grow(counts, states, self._store.used)
            self._store.grow()


def _doubled(count: int, missing: int) -> int:
    """`count`, or where some are missing, twice as many or what is needed."""
    return count if missing <= 0 else max(2 * count, count + missing)
