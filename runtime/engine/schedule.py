"""Which tokens the next step computes: a function of what is known of each request.

One generated token of every sequence comes first, so that none waits for somebody's long prompt;
the rest of the budget goes to prompts, in chunks, first come, first served. Where no page is left,
the request that came last gives its pages back and computes them again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the schedule knows of one request.

    tokens: those that are known, prompt and generated ones. computed: how many of them are in the
    cache; of a request that waits, how many the prefix cache has. unshared: of each kind of pages,
    how many it has that nobody else uses; they become available when it gives all back. unused: of
    a request that waits, how many of the pages that the prefix cache has of it count as available.
    """

    number: int
    tokens: int
    computed: int
    unshared: tuple[int, ...]
    unused: tuple[int, ...]

    @property
    def rest(self) -> int:
        """How many known tokens are not computed."""
        return self.tokens - self.computed


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """The most tokens of a step, and the most sequences that run at once."""

    tokens: int = 512
    sequences: int = 64


@dataclass(frozen=True, kw_only=True)
class PageLimits:
    """How pages are counted.

    page_size: tokens of a page. most: of each kind, the most pages that a sequence has at once,
    which where layers see a window does not grow with the sequence.
    """

    page_size: int
    most: tuple[int, ...]

    def needed(self, work: Work, count: int) -> int:
        """New pages, of each kind, for the next `count` tokens."""
        size = self.page_size
        return -(-(work.computed + count) // size) - -(-work.computed // size)

    def fits(self, work: Work, pages: int) -> int:
        """How many more tokens `pages` new pages take."""
        size = self.page_size
        return (-(-work.computed // size) + pages) * size - work.computed


@dataclass(frozen=True)
class Chunk:
    """The next `count` tokens of request `number`."""

    number: int
    count: int


@dataclass(frozen=True)
class Schedule:
    """Requests that give their pages back first, then what is computed, in this order."""

    preempted: tuple[int, ...]
    chunks: tuple[Chunk, ...]


def schedule(
    running: Sequence[Work],
    waiting: Iterable[Work],
    available: Sequence[int],
    pages: PageLimits,
    limits: StepLimits,
) -> Schedule:
    """The next step.

    running, waiting: in the order in which the requests came. available: pages that can be had, of
    each kind. A chunk of a waiting request admits it. Nothing is computed where all that is
    possible is to preempt; the step after it then has the pages.
    """
    free = list(available)
    active = list(running)
    preempted: list[int] = []
    chunks: dict[int, int] = {}
    left = limits.tokens

    def take(work: Work, count: int) -> None:
        nonlocal left
        for kind in range(len(free)):
            free[kind] -= pages.needed(work, count)
        left -= count
        chunks[work.number] = count

    def preempt_for(work: Work, wanted: int) -> None:
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
        # The rest of a prompt that is being read has the first claim on pages.
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
    return Schedule(tuple(preempted), tuple(Chunk(*each) for each in chunks.items()))


def _claim(free: list[int], work: Work, pages: PageLimits, taken: int) -> None:
    """Take from `free` what the known tokens of `work` will need, beyond the next `taken`."""
    whole, now = pages.needed(work, work.rest), pages.needed(work, taken)
    for kind, most in enumerate(pages.most):
        free[kind] -= max(0, min(whole, most) - now)
