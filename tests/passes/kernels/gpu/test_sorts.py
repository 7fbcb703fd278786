"""Sorts on GPUs, of rows that fit in LDS and of longer ones, against a stable sort of numpy.

They run on the simulator, compiled as users do, and are watched for races.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.passes.sort_cases import CASES, SortCase

#: A row of 12 bytes an element, 66,000 in all: more than the 64 KiB of LDS.
LONG = SortCase("f32", (1, 5500), 1)
TARGETS = ["gfx950", "gfx942"]


@pytest.fixture(scope="module", params=TARGETS)
def sorts(request: pytest.FixtureRequest, watched: Callable[..., Any]) -> Any:
    every = {case.text for case in (*CASES, LONG)}
    return watched("\n".join(sorted(every)), target=request.param)


@pytest.mark.parametrize("case", [*CASES, LONG], ids=lambda case: case.name)
def test_sorted_rows(sorts: Any, case: SortCase) -> None:
    x, places = case.operands()
    case.check(sorts.call(case.name, x, places, kernels=case.dynamic or x.size > 0))
