"""The schedule: a pure function from the state of all requests to the tokens of the next step.

One generated token of every running sequence comes first, so that no sequence waits for a long
prompt. The rest of the token budget goes to prompts, in chunks, first come, first served. Where
pages run out, the request that came last is preempted: it releases its pages and is computed again
later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RequestWork:
    """State of one request, as the schedule needs it.

    tokens: number of known tokens, prompt and generated. computed: number of them in the KV cache;
    for a waiting request, in the prefix cache. unshared: for each kind of pages, how many only this
    request uses, which become available when it is preempted. unused: for a waiting request, how
    many of its pages in the prefix cache have no user and count as available until it is admitted.
    """

    number: int
    tokens: int
    computed: int
    unshared: tuple[int, ...]
    unused: tuple[int, ...]

    @property
    def rest(self) -> int:
        """Number of known tokens that are not computed."""
        return self.tokens - self.computed


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """The most tokens of a step, and the most sequences that run at once."""

    tokens: int = 512
    sequences: int = 64


@dataclass(frozen=True, kw_only=True)
class PageLimits:
    """Sizes of pages.

    page_size: tokens per page. most: for each kind, the most pages that a sequence holds at once.
    For kinds with a sliding window it does not grow with the sequence.
    """

    page_size: int
    most: tuple[int, ...]

    def needed(self, work: RequestWork, count: int) -> int:
        """Number of new pages of each kind that the next `count` tokens need."""
        size = self.page_size
        return -(-(work.computed + count) // size) - -(-work.computed // size)

    def fits(self, work: RequestWork, pages: int) -> int:
        """Number of further tokens that fit with `pages` new pages."""
        size = self.page_size
        return (-(-work.computed // size) + pages) * size - work.computed


@dataclass(frozen=True)
class RequestChunk:
    """The next `count` tokens of request `number`."""

    number: int
    count: int


@dataclass(frozen=True)
class StepSchedule:
    """A step: the requests to preempt first, then the chunks to compute, in order."""

    preempted: tuple[int, ...]
    chunks: tuple[RequestChunk, ...]


def schedule(
    running: Sequence[RequestWork],
    waiting: Iterable[RequestWork],
    available: Sequence[int],
    pages: PageLimits,
    limits: StepLimits,
) -> StepSchedule:
    """Return the next step.

    running, waiting: requests in order of arrival. available: number of pages of each kind that can
    be allocated. A chunk of a waiting request admits it. A step may consist of preemptions only;
    the step after it then has the pages.
    """
    free = list(available)
    active = list(running)
    preempted: list[int] = []
    chunks: dict[int, int] = {}
    left = limits.tokens

    def take(work: RequestWork, count: int) -> None:
        nonlocal left
        for kind in range(len(free)):
            free[kind] -= pages.needed(work, count)
        left -= count
        chunks[work.number] = count

    def preempt_for(work: RequestWork, wanted: int) -> None:
        """Preempt requests that came after `work` until `wanted` pages of each kind are free."""
        while min(free) < wanted and active[-1].number not in {work.number, *chunks}:
            victim = active.pop()
            for kind, count in enumerate(victim.unshared):
                free[kind] += count
            preempted.append(victim.number)

    for generates in (True, False):
        for work in running:
            if (work.rest == 1) is not generates or work.number in preempted or not left:
                continue
            count = min(work.rest, left)
            preempt_for(work, pages.needed(work, count))
            count = min(count, pages.fits(work, max(0, min(free))))
            if count:
                take(work, count)

    if not preempted:
        # Pages for the rest of admitted prompts are reserved before new requests are admitted.
        for work in active:
            _claim(free, work, pages, chunks.get(work.number, 0))
        for work in waiting:
            for kind, count in enumerate(work.unused):
                free[kind] -= count
            whole = pages.needed(work, work.rest)
            short = any(
                min(whole, most) > count for most, count in zip(pages.most, free, strict=True)
            )
            if not left or len(active) >= limits.sequences or short:
                break
            active.append(work)
            take(work, min(work.rest, left))
            _claim(free, work, pages, chunks[work.number])
    return StepSchedule(tuple(preempted), tuple(RequestChunk(*each) for each in chunks.items()))


def _claim(free: list[int], work: RequestWork, pages: PageLimits, taken: int) -> None:
    """Reserve in `free` the pages for the known tokens of `work` beyond the next `taken` ones."""
    whole, now = pages.needed(work, work.rest), pages.needed(work, taken)
    for kind, most in enumerate(pages.most):
        free[kind] -= max(0, min(whole, most) - now)
