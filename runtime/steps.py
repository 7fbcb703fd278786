"""One step of a language model: tokens of several sequences in one call, over a pool of pages.

A page holds the keys and values of `page_size` consecutive positions of one sequence, of all
layers of one kind. Layers are of one kind where they see the same positions: all that came before,
or a sliding window. Each kind has a pool of its own, and each sequence a list of pages of each.
The page of position p is entry p // page_size of the list, whatever the kind.

Who calls owns the page numbers: which are free, who shares them, which are copied before one of
their sequences writes to them. The model owns the memory and does what a plan says.
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
    """Pages of the layers of one kind.

    `window`: how many positions a token sees, itself included; None: all before it. `pages`: how
    many the pool has, numbered from 0.
    """

    window: int | None
    pages: int

    def first_seen(self, position: int) -> int:
        """The first position that a token at `position` sees; pages before its own may go."""
        return 0 if self.window is None else max(0, position - self.window + 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepPlan:
    """What one call computes. T rows of S runs, of which R logits are wanted; all int32.

    A run is consecutive tokens of one sequence: a prompt, a part of it, or one decoded token. No
    sequence has two runs in one plan.

    `tokens` [T] are token ids, `positions` [T] where they stand in their sequences.
    `slots` has an array [T] for each kind of pages: the place that the row's keys and values are
    written to, page * page_size + position % page_size. No two rows have the same.
    `runs` [S, 3]: first row, number of rows (at least one), and how many positions of the sequence
    come before them. Runs follow one another without gaps: rows of run s end where those of run
    s + 1 begin, and the last ends at T.
    `pages` has an array [S, P] for each kind: the page list of each run's sequence, those of this
    step's rows included. P is at least what the longest list needs, and the same for all kinds.
    Entries that no row of the run sees are not read, and may be any number of the pool.
    `rows` [R] are the rows whose logits are wanted, in any order.
    `states` [S]: the slot that keeps the recurrent states of the run's sequence; empty where the
    model has none. A run at position 0 begins with zeros, whatever the slot held.
    """

    tokens: Integers
    positions: Integers
    slots: tuple[Integers, ...]
    runs: Integers
    pages: tuple[Integers, ...]
    rows: Integers
    states: Integers


class StepModel(Protocol):
    """A model that computes steps. Not for several threads at a time: calls wait for each other.

    A row's logits do not depend on what the other runs of the step are.
    """

    @property
    def page_size(self) -> int:
        """Positions of a page."""

    @property
    def kinds(self) -> tuple[PageKind, ...]:
        """The kinds of pages, at least one. `slots` and `pages` of a plan are in this order."""

    @property
    def states(self) -> int:
        """How many slots for recurrent states there are; 0 where the model keeps none.

        Where there are some, pages alone do not continue a sequence: they cannot be shared by
        prefix, and a fork copies its state too.
        """

    @property
    def vocabulary(self) -> int:
        """Token ids are 0 .. vocabulary - 1; V of the logits."""

    @property
    def context(self) -> int:
        """The most positions of a sequence."""

    @property
    def rows(self) -> int:
        """The most rows T of a step."""

    def step(self, plan: StepPlan) -> NDArray[np.float32]:
        """Write keys and values of the plan's rows; the logits of its `rows`, float32 [R, V].

        Releases the GIL while it computes. The result is the caller's own. Raises RequestError
        where the plan does not fit; nothing is written then.
        """

    def copy_pages(self, kind: int, source: Integers, target: Integers) -> None:
        """Copy the pages `source` of a kind to `target`, in this order, before the next step."""

    def copy_state(self, source: int, target: int) -> None:
        """Copy the recurrent states of a slot to another, before the next step."""
