"""One k-step of a kernel as it is to be issued: matrix instructions, and memory between them.

A matrix core works for many clocks on an instruction, and the wave issues others meanwhile. Where
they stand decides whether the core ever waits. So the order is given, and the compiler's scheduler
is held to it, by sched_group_barrier: n of this kind, then m of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mxc.dialects.amdgpu import no_reordering, scheduled

#: What the scheduler counts: LDS reads, LDS writes, loads from memory, vector arithmetic.
Kind = Literal["ds_read", "ds_write", "vmem_read", "valu"]


@dataclass(frozen=True)
class InterleavedWork:
    """`issue` builds `count` instructions of a kind, after the part `at` (0 to 1) of a k-step.

    Works of one `sequence` keep their order. One that does not fit behind a product lets works of
    other sequences pass.
    """

    at: float
    kind: Kind
    issue: Callable[[], object]
    count: int = 1
    sequence: str = ""


@dataclass(frozen=True)
class IssueBudget:
    """Instructions that a wave issues while a product is computed.

    `beside`: so many others than vector arithmetic take nothing of it, where they come first.
    `over`: one product may have so many more, which the next one has less.
    """

    instructions: int
    beside: int = 0
    over: int = 0


def evenly(
    kind: Kind, issues: Sequence[Callable[[], None]], start: float, stop: float, count: int = 1
) -> list[InterleavedWork]:
    """Work spread over a part of a k-step, each of `count` instructions."""
    step = (stop - start) / max(len(issues), 1)
    return [InterleavedWork(start + step * n, kind, issue, count) for n, issue in enumerate(issues)]


def interleaved(
    products: Sequence[Callable[[], None]], works: Sequence[InterleavedWork], group: int
) -> None:
    """Build the products in their order, and the work among them; `group` tells k-steps apart."""
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
    """Loads from memory at equal distances: several at once would wait for each other."""
    loads = sorted((w for w in works if w.kind == "vmem_read"), key=lambda work: work.at)
    others = [work for work in works if work.kind != "vmem_read"]
    if len(loads) < 2:
        return [*others, *loads]
    first, last = loads[0].at, loads[-1].at
    step = (last - first) / (len(loads) - 1)
    return [*others, *(replace(work, at=first + step * n) for n, work in enumerate(loads))]


def interleaved_within(
    products: Sequence[Callable[[], None]],
    works: Sequence[InterleavedWork],
    budget: IssueBudget,
    *,
    waits: bool,
    product_first: bool = False,
    leaves: Collection[Kind] = (),
) -> list[InterleavedWork]:
    """Build the products in their order, and after each the work that is due.

    Of that as much as fits while a product is computed; the rest goes behind the next one. `waits`:
    something follows for which all waves wait, so that the last product has nothing after it.
    `product_first`: the first product is issued before anything else, as where waves may have
    waited for each other before it. `leaves`: kinds of work of which those that did not fit are
    returned, for what follows. Each product is a region of its own to the compiler's scheduler: by
    counts alone it would take addresses for conversions.
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
    """Build some works of those that are left; returns the others."""
    for work in works:
        work.issue()
    return [work for work in left if all(work is not each for each in works)]


def _fitting(
    due: Sequence[InterleavedWork], budget: IssueBudget, owed: int
) -> tuple[list[InterleavedWork], int]:
    """Works that are due, as many as fit, one in any case; and what the next product owes. `owed`:
    instructions by which products before exceeded the budget."""
    free = budget.instructions - owed
    beside, full = budget.beside, set[str]()
    # Work for which there is a place beside the budget comes first.
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
