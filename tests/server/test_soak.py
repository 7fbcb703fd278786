"""A few turns of benchmarks/soak.py: good and bad clients at once, and nothing left of them."""

import asyncio
from collections.abc import Callable

import pytest
from soak import Soak

from tests.runtime.engine.paged_model import PagedModel
from tests.server.running import Running


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_is_left(start: Callable[..., Running], seed: int) -> None:
    # Pages for one or two of the sequences, and slow steps, so that sequences are preempted.
    model = PagedModel(vocabulary=484, full_pages=52, window_pages=40, context=200, seconds=0.01)
    made = start(model)
    soak = Soak(made.url, seed, tokens=8)
    asyncio.run(soak.run(60.0, 10, turns=12))
    assert soak.problems == []
    assert {"ask", "leave", "reset", "slow", "no_json", "half"} <= set(soak.seen)
    assert made.all_pages_are_free()
    counts = made.model.engine.counts
    assert counts.cached_tokens
    assert counts.preemptions


def test_growth_is_told(start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth of memory, and of the number of open files."""
    made = start(PagedModel(vocabulary=484, full_pages=70, window_pages=40, context=200))
    soak = Soak(made.url, tokens=4)
    monkeypatch.setattr("soak.GROWTH", -(1 << 60))
    asyncio.run(soak.run(1.0, 2))
    assert [problem.split()[:2] for problem in soak.problems] == [["memory", "grew"]]
    soak.problems.clear()
    asyncio.run(soak.settle(0))
    assert "process_open_fds" in soak.problems[0]
