"""The order of the instructions of a k-step, and the calls that make LLVM's scheduler keep it."""

from collections.abc import Callable
from functools import partial

import pytest

from mxc.passes.kernels.gpu.ring import interleave
from mxc.passes.kernels.gpu.ring.interleave import (
    InterleavedWork,
    IssueBudget,
    Kind,
    evenly,
    interleaved,
    interleaved_within,
)

Events = list[str | tuple[str, int, int]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """Return a list to which everything that is built is added, in order.

    "|" is a boundary across which LLVM's scheduler moves nothing.
    """
    found: Events = []
    monkeypatch.setattr(interleave, "no_reordering", lambda: found.append("|"))
    monkeypatch.setattr(interleave, "scheduled", lambda *given: found.append(given))
    return found


def products(events: Events, count: int) -> list[Callable[[], None]]:
    return [partial(events.append, f"product {n}") for n in range(count)]


def work(
    events: Events, at: float, kind: Kind = "valu", count: int = 1, sequence: str = ""
) -> InterleavedWork:
    return InterleavedWork(at, kind, partial(events.append, f"{kind} {at}"), count, sequence)


def test_evenly() -> None:
    first, second = (lambda: None), (lambda: None)
    assert evenly("ds_read", [first, second], 0.25, 0.75, 3) == [
        InterleavedWork(0.25, "ds_read", first, 3),
        InterleavedWork(0.5, "ds_read", second, 3),
    ]
    assert evenly("ds_read", [], 0.0, 1.0) == []


def test_the_scheduler_is_told_the_order(events: Events) -> None:
    works = [
        work(events, 1.0, "ds_write"),
        work(events, 0.5, "ds_read", 3),
        work(events, 0.5, "ds_read"),
        work(events, 0.0, "ds_read"),
        # Loads come at equal distances: 0.25, 0.5, 0.75.
        work(events, 0.75, "vmem_read"),
        work(events, 0.3, "vmem_read"),
        work(events, 0.25, "vmem_read"),
    ]
    interleaved(products(events, 4), works, 7)
    assert events == [
        *("ds_read 0.0", "product 0", "vmem_read 0.25", "product 1"),
        *("ds_read 0.5", "ds_read 0.5", "vmem_read 0.3", "product 2"),
        *("vmem_read 0.75", "product 3", "ds_write 1.0"),
        *(("ds_read", 1, 7), ("mfma_wmma", 1, 7), ("vmem_read", 1, 7), ("mfma_wmma", 1, 7)),
        *(("ds_read", 4, 7), ("vmem_read", 1, 7), ("mfma_wmma", 1, 7)),
        *(("vmem_read", 1, 7), ("mfma_wmma", 1, 7)),
        *(("ds_write", 1, 7), "|"),
    ]


def test_one_load_stays_where_it_is(events: Events) -> None:
    interleaved(products(events, 2), [work(events, 0.5, "vmem_read")], 0)
    assert events[:3] == ["product 0", "vmem_read 0.5", "product 1"]


@pytest.mark.parametrize("waits", [False, True])
def test_a_product_hides_so_many_instructions(events: Events, waits: bool) -> None:
    works = [
        work(events, 0.0, count=3),
        work(events, 0.01),
        work(events, 0.1, count=9),  # more than the budget: alone
        work(events, 0.2, count=3),
        work(events, 0.75),  # due after the last of four
        work(events, 0.8, count=4),
    ]
    interleaved_within(products(events, 4), works, IssueBudget(4), waits=waits)
    middle = ["valu 0.2", "|"]
    end = ["product 3", "valu 0.75", "|", "valu 0.8", "|"]
    if waits:
        end = ["valu 0.75", "valu 0.8", "|", "product 3", "|", "|"]
    assert events == [
        *("product 0", "valu 0.0", "valu 0.01", "|"),
        *("product 1", "valu 0.1", "|"),
        *("product 2", *middle),
        *end,
    ]


def test_the_first_product_may_be_issued_before_anything_else(events: Events) -> None:
    works = [work(events, 0.0), work(events, 0.6)]
    interleaved_within(products(events, 2), works, IssueBudget(4), waits=False, product_first=True)
    assert events == ["product 0", "|", "valu 0.0", "|", "product 1", "valu 0.6", "|", "|"]


def test_work_of_another_sequence_passes_what_does_not_fit(events: Events) -> None:
    works = [
        work(events, 0.0, count=3, sequence="a"),
        work(events, 0.1, count=3, sequence="a"),
        work(events, 0.2, count=1, sequence="a"),  # stays behind the one before it
        work(events, 0.3, count=1, sequence="b"),
    ]
    interleaved_within(products(events, 2), works, IssueBudget(4), waits=False)
    assert events == [
        *("product 0", "valu 0.0", "valu 0.3", "|"),
        *("product 1", "valu 0.1", "valu 0.2", "|", "|"),
    ]


def test_other_instructions_have_a_place_beside_the_budget(events: Events) -> None:
    works = [
        work(events, 0.0, count=4),
        work(events, 0.1, "ds_read"),
        work(events, 0.2, "ds_read"),
    ]
    interleaved_within(products(events, 2), works, IssueBudget(4, beside=1), waits=False)
    assert events == [
        *("product 0", "ds_read 0.1", "valu 0.0", "|"),
        *("product 1", "ds_read 0.2", "|", "|"),
    ]


def test_the_next_product_owes_what_one_has_too_much(events: Events) -> None:
    works = [work(events, at, count=3) for at in (0.0, 0.1, 0.2, 0.3)]
    interleaved_within(products(events, 3), works, IssueBudget(4, over=2), waits=False)
    assert events == [
        # 6 instructions within a budget of 4, then 3 within 4 - 2, then 3 within 4 - 1.
        *("product 0", "valu 0.0", "valu 0.1", "|"),
        *("product 1", "valu 0.2", "|"),
        *("product 2", "valu 0.3", "|", "|"),
    ]


def test_arithmetic_is_left_for_behind_a_wait(events: Events) -> None:
    works = [
        work(events, 0.0, count=4),
        work(events, 0.1, count=4),
        work(events, 0.2, "vmem_read"),
        work(events, 0.3, count=2),
    ]
    left = interleaved_within(
        products(events, 2), works, IssueBudget(4), waits=True, leaves=["valu"]
    )
    assert events == [
        "product 0",
        "valu 0.0",
        "|",
        "vmem_read 0.2",
        "|",
        "product 1",
        "valu 0.1",
        "|",
        "|",
    ]
    assert left == [works[3]]
