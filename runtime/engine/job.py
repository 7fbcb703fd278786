"""A request on its way through the engine, and the plan of a step over several of them."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.runtime.engine.choice import Choice
from mxc.runtime.engine.request import Request
from mxc.runtime.engine.schedule import Chunk
from mxc.runtime.page_store import SequencePages
from mxc.runtime.plans import Run, plan_of
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
    """One step over some jobs, whose pages hold their places already."""
    runs = []
    for job, chunk in chunks:
        assert job.pages is not None
        end = job.computed + chunk.count
        runs.append(
            Run(
                pages=job.pages,
                tokens=job.tokens[job.computed : end],
                before=job.computed,
                wanted=[chunk.count - 1] if end == len(job.tokens) else [],
            )
        )
    return plan_of(runs, model)
