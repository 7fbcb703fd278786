"""The arrays of a step: made of the runs of some sequences, and checked against their model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.runtime.page_store import SequencePages
from mxc.runtime.steps import Integers, StepModel, StepPlan


@dataclass(frozen=True, kw_only=True)
class Run:
    """Consecutive tokens of a sequence that has `before` others, and pages for all of them.

    `wanted`: which of the tokens have the logits behind them computed, by number.
    """

    pages: SequencePages
    tokens: Sequence[int] | Integers
    before: int
    wanted: Sequence[int]


def plan_of(runs: Sequence[Run], model: StepModel) -> StepPlan:
    """The arrays of one step over some runs, in their order."""
    size, kinds = model.page_size, range(len(model.kinds))
    counts = np.array([len(run.tokens) for run in runs])
    firsts = np.cumsum(counts) - counts
    before = np.array([run.before for run in runs])
    longest = int((-(-(before + counts) // size)).max())
    positions: list[Integers] = []
    slots: list[list[Integers]] = [[] for _ in kinds]
    pages = [np.zeros((len(runs), longest), np.int32) for _ in kinds]
    for index, run in enumerate(runs):
        at = np.arange(run.before, run.before + len(run.tokens), dtype=np.int32)
        positions.append(at)
        for kind in kinds:
            held = np.asarray(run.pages.lists[kind][:longest], np.int32)
            pages[kind][index, : len(held)] = held
            slots[kind].append(held[at // size] * size + at % size)
    rows = [
        first + row for first, run in zip(firsts.tolist(), runs, strict=True) for row in run.wanted
    ]
    return StepPlan(
        tokens=np.concatenate([np.asarray(run.tokens, np.int32) for run in runs]),
        positions=np.concatenate(positions),
        slots=tuple(np.concatenate(each) for each in slots),
        runs=np.stack([firsts, counts, before], axis=1).astype(np.int32),
        pages=tuple(pages),
        rows=np.array(rows, np.int32),
        states=np.array([run.pages.state for run in runs if run.pages.state is not None], np.int32),
    )


def misfit(plan: StepPlan, model: StepModel) -> str | None:
    """Why a model cannot compute a plan; None where it can."""
    rows, count = len(plan.tokens), len(plan.runs)
    kinds, size = model.kinds, model.page_size
    lists = plan.pages[0].shape[-1] if plan.pages else 0
    for name, array, shape in (
        ("tokens", plan.tokens, (rows,)),
        ("positions", plan.positions, (rows,)),
        ("runs", plan.runs, (count, 3)),
        ("rows", plan.rows, (len(plan.rows),)),
        ("states", plan.states, (count if model.states else 0,)),
        *((f"slots of kind {n}", each, (rows,)) for n, each in enumerate(plan.slots)),
        *((f"pages of kind {n}", each, (count, lists)) for n, each in enumerate(plan.pages)),
    ):
        if array.dtype != np.int32 or array.shape != shape:
            return f"{name}: wants int32 {list(shape)}, got {array.dtype} {list(array.shape)}"
    if len(plan.slots) != len(kinds) or len(plan.pages) != len(kinds):
        return f"{len(plan.slots)} slots and {len(plan.pages)} lists of pages of {len(kinds)} kinds"
    if not 1 <= rows <= model.rows:
        return f"{rows} rows; the model takes 1 to {model.rows}"
    first, counts, before = plan.runs.T.astype(np.int64)
    if (counts < 1).any() or (before < 0).any() or (first != np.cumsum(counts) - counts).any():
        return "runs do not follow one another"
    if counts.sum() != rows:
        return f"runs of {counts.sum()} rows, of {rows}"
    expected = np.repeat(before - first, counts) + np.arange(rows)
    if (plan.positions != expected).any():
        return "positions are not those of the runs"
    if (before + counts).max() > min(model.context, lists * size):
        return (
            f"a sequence of {(before + counts).max()} positions; the model takes {model.context}, "
            f"the lists of pages hold {lists * size}"
        )
    bounds = [
        ("token", plan.tokens, model.vocabulary),
        ("row", plan.rows, rows),
        ("state slot", plan.states, model.states),
        *(("page", each, kind.pages) for each, kind in zip(plan.pages, kinds, strict=True)),
        *(("slot", each, kind.pages * size) for each, kind in zip(plan.slots, kinds, strict=True)),
    ]
    for what, array, bound in bounds:
        if (outside := _outside(array, bound)) is not None:
            return f"{what} {outside} is not one of 0 to {bound - 1}"
    if any(len(np.unique(each)) < len(each) for each in (*plan.slots, plan.states)):
        return "two rows have one slot, or two runs one state"
    owners = np.repeat(np.arange(count), counts)
    for slots, pages in zip(plan.slots, plan.pages, strict=True):
        place = pages[owners, plan.positions // size] * size + plan.positions % size
        if (place != slots).any():
            return "slots are not where the lists of pages say"
    return None


def _outside(array: NDArray[np.int32], bound: int) -> int | None:
    found = array[(array < 0) | (array >= bound)]
    return int(found[0]) if found.size else None
