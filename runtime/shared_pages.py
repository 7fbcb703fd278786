"""The pages of all Sequences of one loaded model: one pool per kind, which grows on demand.

The pages of a Sequence are released when it is freed; all memory is freed with the last Sequence.
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

#: The most initial bytes of a pool. On CPUs memory is committed when it is first written, so that
#: the pool can be large, which avoids copying it to a larger one later.
_FIRST_BYTES_LAZILY = 1 << 30
_FIRST_BYTES = 64 << 20
#: Initial number of state slots.
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
        #: Pages of freed sequences. A finalizer may run at any time, also while the lock is held.
        self._returned: deque[SequencePages] = deque()

    def open(self) -> SequencePages:
        """Open an empty sequence."""
        with self._lock:
            self._have((0,) * len(self._steps.kinds), bool(self._steps.states))
            return self._store.open((), 0)

    def give_back(self, pages: SequencePages) -> None:
        """Queue the pages and the state of a freed sequence for release by a later call."""
        self._returned.append(pages)

    def step(self, runs: Sequence[Run]) -> NDArray[np.float32]:
        """Compute runs of different sequences in one call; return the wanted logits, f32 [R, V].

        The caller has checked the tokens, and that they fit into the context and the rows of a
        call.
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
        """Open a copy of a sequence, which has `tokens` tokens."""
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
        """Return copies of the pages of a kind that a sequence holds: [pages, E, B, V, D]."""
        with self._lock:
            return self._steps.read_pages(kind, np.array(pages.held(kind), np.int32))

    def read_state(self, pages: SequencePages) -> dict[str, NDArray[np.float32]]:
        """Return copies of a sequence's states, by name: [L, ..]."""
        with self._lock:
            return {} if pages.state is None else self._steps.read_state(pages.state)

    def _have(self, pages: Sequence[int], state: bool) -> None:
        """Release the pages of freed sequences; grow until `pages` and a state slot are free."""
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
    """Return `count` if `missing` <= 0, else the larger of 2 * count and count + missing."""
    return count if missing <= 0 else max(2 * count, count + missing)
