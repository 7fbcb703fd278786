"""Step plans: builds the arrays of a step from runs of sequences, and checks them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mxc.runtime.page_store import SequencePages
from mxc.runtime.steps import Integers, StepModel, StepPlan

#: For each run: its first row, its number of rows, and the number of positions before them.
_Runs: TypeAlias = Sequence[tuple[int, int, int]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Consecutive tokens of one sequence, which has `before` earlier tokens and pages for all.

    `wanted`: indices of the tokens whose logits are computed.
    """

    pages: SequencePages
    tokens: Sequence[int] | Integers
    before: int
    wanted: Sequence[int]


def plan_of(runs: Sequence[Run], model: StepModel) -> StepPlan:
    """Build the plan of one step over some runs, in order."""
    size, kinds = model.page_size, range(len(model.kinds))
    described: list[tuple[int, int, int]] = []
    rows: list[int] = []
    first = 0
    for run in runs:
        count = len(run.tokens)
        described.append((first, count, run.before))
        rows += [first + row for row in run.wanted]
        first += count
    longest = -(-max(before + count for _, count, before in described) // size)
    lists = [[run.pages.lists[kind] for run in runs] for kind in kinds]
    return StepPlan(
        tokens=np.concatenate([np.asarray(run.tokens, np.int32) for run in runs]),
        positions=np.array(_positions(described), np.int32),
        slots=tuple(np.array(_slots(described, held, size), np.int32) for held in lists),
        runs=np.array(described, np.int32),
        pages=tuple(_table(held, longest) for held in lists),
        rows=np.array(rows, np.int32),
        states=np.array([run.pages.state for run in runs if run.pages.state is not None], np.int32),
    )


def misfit(plan: StepPlan, model: StepModel) -> str | None:
    """Return why a model cannot compute a plan; None where it can."""
    rows, count = len(plan.tokens), len(plan.runs)
    kinds, size = model.kinds, model.page_size
    lists = plan.pages[0].shape[-1] if plan.pages else 0
    for name, each, shape in (
        ("tokens", plan.tokens, (rows,)),
        ("positions", plan.positions, (rows,)),
        ("runs", plan.runs, (count, 3)),
        ("rows", plan.rows, (len(plan.rows),)),
        ("states", plan.states, (count if model.states else 0,)),
        *((f"slots of kind {n}", slots, (rows,)) for n, slots in enumerate(plan.slots)),
        *((f"pages of kind {n}", pages, (count, lists)) for n, pages in enumerate(plan.pages)),
    ):
        if each.dtype != np.int32 or each.shape != shape:
            return f"{name}: wants int32 {list(shape)}, got {each.dtype} {list(each.shape)}"
    if len(plan.slots) != len(kinds) or len(plan.pages) != len(kinds):
        return f"{len(plan.slots)} slots and {len(plan.pages)} lists of pages of {len(kinds)} kinds"
    if not 1 <= rows <= model.rows:
        return f"{rows} rows; the model takes 1 to {model.rows}"
    # Python integers, because arrays would be slower for a few rows.
    runs, row, longest = plan.runs.tolist(), 0, 0
    for first, many, before in runs:
        if many < 1 or before < 0 or first != row:
            return "runs do not follow one another"
        row += many
        longest = max(longest, before + many)
    if row != rows:
        return f"runs of {row} rows, of {rows}"
    if plan.positions.tolist() != _positions(runs):
        return "positions are not those of the runs"
    if longest > min(model.context, lists * size):
        return (
            f"a sequence of {longest} positions; the model takes {model.context}, "
            f"the lists of pages hold {lists * size}"
        )
    for what, each, bound in (
        ("token", plan.tokens, model.vocabulary),
        ("row", plan.rows, rows),
        ("state slot", plan.states, model.states),
        *(("page", pages, kind.pages) for pages, kind in zip(plan.pages, kinds, strict=True)),
    ):
        if (outside := _outside(each, bound)) is not None:
            return f"{what} {outside} is not one of 0 to {bound - 1}"
    for each in (*plan.slots, plan.states):
        if len(set(each.tolist())) < len(each):
            return "two rows have one slot, or two runs one state"
    for slots, pages in zip(plan.slots, plan.pages, strict=True):
        if slots.tolist() != _slots(runs, pages, size):
            return "slots are not where the lists of pages say"
    return None


def _positions(runs: _Runs) -> list[int]:
    """Return the position of each row in its sequence."""
    found: list[int] = []
    for _, count, before in runs:
        found += range(before, before + count)
    return found


def _slots(runs: _Runs, lists: Iterable[Any], size: int) -> list[int]:
    """Return the slot of each row (page * size + offset), from the page list of its run."""
    found: list[int] = []
    for (_, count, before), pages in zip(runs, lists, strict=True):
        at, end = before, before + count
        while at < end:
            page, rest = divmod(at, size)
            start = int(pages[page]) * size
            some = min(size, end - page * size)
            found += range(start + rest, start + some)
            at += some - rest
    return found


def _outside(numbers: Integers, bound: int) -> int | None:
    """Return the first number that is not in 0 .. bound - 1, or None."""
    # As uint32 a negative number is a large one.
    if numbers.size == 0 or numbers.view(np.uint32).max() < bound:
        return None
    return int(numbers[(numbers < 0) | (numbers >= bound)][0])


def _table(lists: Sequence[array[int]], longest: int) -> Integers:
    """Return the page lists as an array [S, longest], padded with zeros."""
    pages = np.zeros((len(lists), longest), np.int32)
    for row, held in zip(pages, lists, strict=True):
        row[: len(held)] = held[:longest]
    return pages
