"""One step of a language model: tokens of several sequences in one call, over pools of KV pages.

A page holds the keys and values of `page_size` consecutive positions of one sequence, for all
layers of one kind. Layers are of one kind where they see the same positions: all earlier ones, or a
sliding window. Each kind has its own pool, and each sequence has one list of pages per kind. The
page of position p is entry p // page_size of the list, for every kind.

The caller manages the page numbers: which pages are free, which are shared, and which are copied
before a sequence writes to them. The model owns the memory and executes the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

#: int32 arrays of a plan.
Integers = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class PageKind:
    """The pages of the layers of one kind.

    `window`: number of positions that a token sees, itself included; None for all earlier ones.
    `pages`: number of pages in the pool, numbered from 0.
    """

    window: int | None
    pages: int

    def first_seen(self, position: int) -> int:
        """Return the first position that a token at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepPlan:
    """The arrays of one call: T rows in S runs, and R rows whose logits are wanted; all int32.

    A run is consecutive tokens of one sequence: a prompt, a part of it, or one decoded token. No
    sequence has two runs in one plan.

    `tokens` [T]: token ids. `positions` [T]: their positions in their sequences.
    `slots`: an array [T] for each kind of pages, the slot where the row's keys and values are
    written, page * page_size + position % page_size. No two rows have the same slot.
    `runs` [S, 3]: first row, number of rows (at least one), and number of earlier positions of the
    sequence. Runs follow one another without gaps: the rows of run s end where the rows of run
    s + 1 begin, and the last run ends at T.
    `pages`: an array [S, P] for each kind, the page list of each run's sequence, including the
    pages of this step's rows. P is at least the length of the longest list, and the same for all
    kinds. Entries that no row of the run sees are not read; they may be any page of the pool.
    `rows` [R]: the rows whose logits are wanted, in any order.
    `states` [S]: the slot of the recurrent states of the run's sequence; empty where the model has
    none. A run at position 0 begins with zero states, whatever the slot holds.
    """

    tokens: Integers
    positions: Integers
    slots: tuple[Integers, ...]
    runs: Integers
    pages: tuple[Integers, ...]
    rows: Integers
    states: Integers


class StepModel(Protocol):
    """A model that computes steps. Calls from several threads wait for each other.

    The logits of a row do not depend on the other runs of the step.
    """

    @property
    def page_size(self) -> int:
        """Number of positions per page."""

    @property
    def kinds(self) -> tuple[PageKind, ...]:
        """The kinds of pages, at least one. `slots` and `pages` of a plan are in this order."""

    @property
    def states(self) -> int:
        """Number of slots for recurrent states; 0 where the model has none.

        Pages alone do not restore a sequence with recurrent states: they cannot be shared by
        prefix, and a fork copies the state too.
        """

    @property
    def vocabulary(self) -> int:
        """Number V of token ids, 0 .. V - 1, and of logits per row."""

    @property
    def context(self) -> int:
        """The most positions of a sequence."""

    @property
    def rows(self) -> int:
        """The most rows T of a step."""

    def step(self, plan: StepPlan) -> NDArray[np.float32]:
        """Write keys and values of the plan's rows; return logits of `plan.rows`, float32 [R, V].

        Releases the GIL while it computes. The result is a copy. Raises RequestError, and writes
        nothing, where the plan does not fit the model.
        """

    def copy_pages(self, kind: int, source: Integers, target: Integers) -> None:
        """Copy the pages `source` of a kind to `target`, in order, before the next step."""

    def copy_state(self, source: int, target: int) -> None:
        """Copy the recurrent states of a slot to another, before the next step."""
