"""One turn of a kernel as it is to be issued: matrix instructions, and memory between them.

A matrix core works for many clocks on an instruction, and the wave issues others meanwhile. Where
they stand decides whether the core ever waits. So the order is given, and the compiler's scheduler
is held to it, by sched_group_barrier: n of this kind, then m of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mxc.dialects.amdgpu import no_reordering, scheduled

#: What the scheduler counts: LDS reads, LDS writes, loads from memory.
Kind = Literal["ds_read", "ds_write", "vmem_read"]


@dataclass(frozen=True)
class Work:
    """`issue` builds one instruction of a kind, behind the part `at` (0 to 1) of a turn."""

    at: float
    kind: Kind
    issue: Callable[[], None]


def evenly(
    kind: Kind, issues: Sequence[Callable[[], None]], start: float, stop: float
) -> list[Work]:
    """Work spread over a part of a turn."""
    step = (stop - start) / max(len(issues), 1)
    return [Work(start + step * n, kind, issue) for n, issue in enumerate(issues)]


def interleaved(products: Sequence[Callable[[], None]], works: Sequence[Work], group: int) -> None:
    """Build the products in their order, and the work among them; `group` tells turns apart."""
    left = sorted(_spaced(works), key=lambda work: work.at)
    order: list[tuple[str, int]] = []

    def note(kind: str) -> None:
        if order and order[-1][0] == kind:
            order[-1] = (kind, order[-1][1] + 1)
        else:
            order.append((kind, 1))

    for number, product in enumerate(products):
        while left and left[0].at * len(products) <= number:
            work = left.pop(0)
            work.issue()
            note(work.kind)
        product()
        note("mfma_wmma")
    for work in left:
        work.issue()
        note(work.kind)
    for kind, count in order:
        scheduled(kind, count, group)
    no_reordering()


def _spaced(works: Sequence[Work]) -> list[Work]:
    """Loads from memory at equal distances: several at once would wait for each other."""
    loads = sorted((w for w in works if w.kind == "vmem_read"), key=lambda work: work.at)
    others = [work for work in works if work.kind != "vmem_read"]
    if len(loads) < 2:
        return [*others, *loads]
    first, last = loads[0].at, loads[-1].at
    step = (last - first) / (len(loads) - 1)
    return [*others, *(replace(work, at=first + step * n) for n, work in enumerate(loads))]
