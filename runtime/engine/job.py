"""A request on its way through the engine, and the arrays of a step over several of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.runtime.engine.choice import Choice
from mxc.runtime.engine.request import Request
from mxc.runtime.engine.schedule import Chunk
from mxc.runtime.engine.sequences import SequencePages
from mxc.runtime.steps import StepModel, StepPlan


@dataclass(eq=False)
class Job:
    """What the engine knows of a request.

    tokens: the prompt and what was generated. keys: those of its full pages, as far as they are
    known. computed: how many tokens are in the pages. published: how many pages are known to
    others by their keys. cached: prompt tokens that were in the prefix cache. Times as Outcome.
    """

    number: int
    request: Request
    choice: Choice
    tokens: list[int]
    keys: list[bytes]
    submitted: float
    computed: int = 0
    pages: SequencePages | None = None
    published: int = 0
    generated: int = 0
    cached: int = 0
    started: float | None = None
    first_token: float | None = None
    cancelled: bool = False


def step_plan(chunks: list[tuple[Job, Chunk]], model: StepModel) -> StepPlan:
    """The arrays of one step over some jobs, whose pages hold their places already."""
    size, kinds = model.page_size, range(len(model.kinds))
    longest = max(-(-(job.computed + chunk.count) // size) for job, chunk in chunks)
    tokens: list[int] = []
    positions: list[NDArray[np.int32]] = []
    slots: list[list[NDArray[np.int32]]] = [[] for _ in kinds]
    runs = np.zeros((len(chunks), 3), np.int32)
    pages = [np.zeros((len(chunks), longest), np.int32) for _ in kinds]
    rows: list[int] = []
    states: list[int] = []
    for index, (job, chunk) in enumerate(chunks):
        assert job.pages is not None
        start, end = job.computed, job.computed + chunk.count
        runs[index] = len(tokens), chunk.count, start
        at = np.arange(start, end, dtype=np.int32)
        positions.append(at)
        for kind in kinds:
            held = np.asarray(job.pages.lists[kind], np.int32)
            pages[kind][index, : len(held)] = held
            slots[kind].append(held[at // size] * size + at % size)
        tokens += job.tokens[start:end]
        if job.pages.state is not None:
            states.append(job.pages.state)
        if end == len(job.tokens):
            rows.append(len(tokens) - 1)
    return StepPlan(
        tokens=np.asarray(tokens, np.int32),
        positions=np.concatenate(positions),
        slots=tuple(np.concatenate(each) for each in slots),
        runs=runs,
        pages=tuple(pages),
        rows=np.asarray(rows, np.int32),
        states=np.asarray(states, np.int32),
    )
