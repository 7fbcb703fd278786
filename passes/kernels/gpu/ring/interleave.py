"""The order of issue of products (matrix instructions) and the other work of a main loop.

A matrix core works for many clocks on an instruction, and the wave issues others meanwhile. Where
they stand decides whether the core ever waits. So the order is decided here, and the compiler's
scheduler is held to it: `interleaved` uses sched_group_barrier (n instructions of this kind, then m
of that), `interleaved_within` makes each product a scheduling region of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mxc.dialects.amdgpu import no_reordering, scheduled

#: Builds instructions at the insertion point.
Issue = Callable[[], None]
#: Kinds of instructions in sched_group_barrier: LDS reads, LDS writes, loads from memory (also
#: those to LDS), vector arithmetic.
Kind = Literal["ds_read", "ds_write", "vmem_read", "valu"]


@dataclass(frozen=True)
class InterleavedWork:
    """Instructions that are issued among products.

    `at`: when they are due, as a share (0 to 1) of the products; `issue`: builds them; `count`:
    their number; `sequence`: works of one sequence keep their order. If one does not fit behind a
    product, those of other sequences may go before it.
    """

    at: float
    kind: Kind
    issue: Callable[[], object]
    count: int = 1
    sequence: str = ""


@dataclass(frozen=True)
class IssueBudget:
    """How many `instructions` a wave issues while a product is computed.

    `beside`: so many instructions that are no vector arithmetic do not count; they are issued
    first. `over`: so many more may follow one product; the next one then has as many fewer.
    """

    instructions: int
    beside: int = 0
    over: int = 0


def evenly(
    kind: Kind, issues: Sequence[Issue], start: float, stop: float, count: int = 1
) -> list[InterleavedWork]:
    """Return works at equal distances from `start` to `stop`, each of `count` instructions."""
    step = (stop - start) / max(len(issues), 1)
    return [InterleavedWork(start + step * n, kind, issue, count) for n, issue in enumerate(issues)]


def interleaved(products: Sequence[Issue], works: Sequence[InterleavedWork], group: int) -> None:
    """Build the products in their order, and each work where it is due.

    `group`: the sync ID of this call's sched_group_barriers, which tells them from those of others.
    """
    left = sorted(_spaced(works), key=lambda work: work.at)
    order: list[tuple[str, int]] = []

    def note(kind: str, count: int = 1) -> None:
        if order and order[-1][0] == kind:
            order[-1] = (kind, order[-1][1] + count)
        else:
            order.append((kind, count))

    for number, product in enumerate(products):
        while left and left[0].at * len(products) <= number:
            work = left.pop(0)
            work.issue()
            note(work.kind, work.count)
        product()
        note("mfma_wmma")
    for work in left:
        work.issue()
        note(work.kind, work.count)
    for kind, count in order:
        scheduled(kind, count, group)
    no_reordering()


def _spaced(works: Sequence[InterleavedWork]) -> list[InterleavedWork]:
    """Move loads from memory to equal distances: several at once would wait for each other.

    The first and the last one stay where they are. Returns all works.
    """
    loads = sorted((w for w in works if w.kind == "vmem_read"), key=lambda work: work.at)
    others = [work for work in works if work.kind != "vmem_read"]
    if len(loads) < 2:
        return [*others, *loads]
    first, last = loads[0].at, loads[-1].at
    step = (last - first) / (len(loads) - 1)
    return [*others, *(replace(work, at=first + step * n) for n, work in enumerate(loads))]


def interleaved_within(
    products: Sequence[Issue],
    works: Sequence[InterleavedWork],
    budget: IssueBudget,
    *,
    waits: bool,
    product_first: bool = False,
    leaves: Collection[Kind] = (),
) -> list[InterleavedWork]:
    """Build the products in their order, and after each as much of the work that is due as fits.

    Work that does not fit goes behind the next product; what is left at the end follows at once.

    `waits`: a barrier follows, so what is left is issued before the last product, not after it.
    `product_first`: the first product is issued before anything else, because a barrier may precede
    it. `leaves`: kinds of work that are returned if they do not fit, for products that follow.

    Each product is a region of its own for the compiler's scheduler. In a larger region held by
    counts alone, the scheduler would take address arithmetic for conversions: both are `valu`.
    """
    left, owed = sorted(works, key=lambda work: work.at), 0
    for number, product in enumerate(products, start=1):
        if waits and number == len(products):
            left = _issue([work for work in left if work.kind not in leaves], left)
            no_reordering()
        product()
        if product_first and number == 1:
            no_reordering()
        due = [work for work in left if work.at * len(products) < number]
        fitting, owed = _fitting(due, budget, owed)
        left = _issue(fitting, left)
        no_reordering()
    left = _issue([work for work in left if work.kind not in leaves], left)
    no_reordering()
    return left


def _issue(
    works: Sequence[InterleavedWork], left: Sequence[InterleavedWork]
) -> list[InterleavedWork]:
    """Build `works`, and return the others of those that are `left`."""
    for work in works:
        work.issue()
    return [work for work in left if all(work is not each for each in works)]


def _fitting(
    due: Sequence[InterleavedWork], budget: IssueBudget, owed: int
) -> tuple[list[InterleavedWork], int]:
    """Return the works that are issued behind a product, and the `owed` of the next product.

    `due`: all that may be issued, of which as many as fit are, and at least one; `owed`: the number
    of instructions by which earlier products exceeded the budget.
    """
    free = budget.instructions - owed
    beside, full = budget.beside, set[str]()
    # First the works that may be free because they are no vector arithmetic.
    others = [at for at, work in enumerate(due) if work.kind != "valu"][:beside]
    order = sorted(range(len(due)), key=lambda at: (at not in others, at))
    fitting: list[InterleavedWork] = []
    for work in (due[at] for at in order):
        count = work.count
        if work.kind != "valu":
            taken = min(beside, count)
            count, beside = count - taken, beside - taken
        if work.sequence in full or (fitting and count > free + budget.over):
            full.add(work.sequence)
            continue
        fitting.append(work)
        free -= count
    return fitting, max(0, -free) if budget.over else 0
