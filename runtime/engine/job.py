"""The engine's state of a request, and the plan of a step over several requests."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.runtime.engine.choice import Choice
from mxc.runtime.engine.request import Request
from mxc.runtime.engine.schedule import RequestChunk
from mxc.runtime.page_store import SequencePages
from mxc.runtime.plans import Run, plan_of
from mxc.runtime.steps import StepModel, StepPlan


@dataclass(eq=False)
class Job:
    """State of a request in the engine.

    tokens: the prompt and the generated tokens. keys: keys of its full pages, as far as they are
    computed. computed: number of tokens whose keys and values are in the pages. published: number
    of pages that other requests can find by key. cached: number of prompt tokens that the prefix
    cache had. Times: see Outcome.
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


def step_plan(chunks: list[tuple[Job, RequestChunk]], model: StepModel) -> StepPlan:
    """Return the plan of one step over `chunks`; the pages of the jobs are allocated already."""
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
