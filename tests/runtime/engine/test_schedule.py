"""The schedule of a step, as a function of numbers of tokens and pages."""

import pytest

from mxc.runtime.engine.schedule import (
    PageLimits,
    RequestChunk,
    RequestWork,
    StepLimits,
    StepSchedule,
    schedule,
)

PAGES = PageLimits(page_size=4, most=(100, 3))


def work(number: int, tokens: int, computed: int = 0, unshared: int = 0) -> RequestWork:
    both = (unshared, min(unshared, 3))
    return RequestWork(
        number=number, tokens=tokens, computed=computed, unshared=both, unused=(0, 0)
    )


def chunks(*each: tuple[int, int]) -> tuple[RequestChunk, ...]:
    return tuple(RequestChunk(*pair) for pair in each)


@pytest.mark.parametrize(("free", "admitted"), [((6, 6), 2), ((5, 6), 1), ((6, 5), 1)])
def test_prompts_are_admitted_while_their_pages_are_free(
    free: tuple[int, int], admitted: int
) -> None:
    """Three pages of each kind for each prompt; the last ones may be used."""
    found = schedule([], [work(1, 12), work(2, 12)], free, PAGES, StepLimits(tokens=64))
    assert found == StepSchedule((), chunks((1, 12), (2, 12))[:admitted])


def test_a_chunk_leaves_pages_for_the_rest_of_its_prompt() -> None:
    limits = StepLimits(tokens=4)
    assert schedule([work(1, 12)], [], (3, 3), PAGES, limits).chunks == chunks((1, 4))
    both = schedule([work(1, 5)], [work(2, 4)], (2, 2), PAGES, StepLimits(tokens=8))
    assert both.chunks == chunks((1, 5))
    both = schedule([work(1, 5)], [work(2, 4)], (3, 3), PAGES, StepLimits(tokens=8))
    assert both.chunks == chunks((1, 5), (2, 3))


def test_who_came_last_is_preempted_first() -> None:
    """Each generates the first token of a new page, and one page is free."""
    running = [work(number, 9, 8, unshared=2) for number in (1, 2, 3)]
    found = schedule(running, [], (1, 1), PAGES, StepLimits())
    assert found == StepSchedule((3,), chunks((1, 1), (2, 1)))
