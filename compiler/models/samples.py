"""Sample calls of `step`, for which a report states figures."""

from __future__ import annotations

from collections.abc import Sequence

from mxc.artifact.manifest import STEP
from mxc.compiler.models.options import STEP_ROWS
from mxc.dialects.samples import Sample


def samples_of_step(
    page: int,
    longest: int,
    pools: Sequence[Sequence[int]],
    states: Sequence[Sequence[int]],
    devices: int,
) -> list[Sample]:
    """Return three samples: a token of a sequence with one page of `page` positions, the last token
    of a sequence of `longest` positions, and the rows of a prompt.

    pools: shapes of the pools of pages on a device, one per kind. states: shapes of the pools of
    states. Each sample has one run, and pools of the size that the run uses.
    """

    def sample(name: str, rows: int, positions: int) -> Sample:
        pages = -(-positions // page)
        lists = [shape for _ in pools for shape in ((rows,), (1, pages))]
        places = [(1,)] * bool(states)
        memory = [(pages, *pool[1:]) for pool in pools] + [(1, *state[1:]) for state in states]
        return Sample(
            name=name,
            function=STEP,
            rows=rows,
            positions=positions,
            sizes=((rows,), (rows,), (1, 3), (1,), *lists, *places, *memory * devices),
        )

    rows = min(STEP_ROWS, longest)
    return [
        sample("token", 1, min(page, longest)),
        sample("last token", 1, longest),
        sample("prompt", rows, rows),
    ]
