"""Sorts on GPUs: the order of a stable sort of numpy, of rows in shared memory and of longer ones.

They run on the simulator, as users compile them, watched for races.
"""

from collections.abc import Callable
from typing import Any

import pytest

from tests.passes.sort_cases import CASES, SortCase

#: 12 bytes an element: more than shared memory has.
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
