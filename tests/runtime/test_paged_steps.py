"""Pages of a real program: counts, sharing, growth, what comes back, and plans that do not fit."""

import gc
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxc.errors import RequestError
from mxc.runtime import arrays, load
from mxc.runtime.page_store import PageStore
from mxc.runtime.paged_steps import PagedSteps
from mxc.runtime.plans import Run, plan_of
from mxc.runtime.session import Model
from mxc.runtime.shared_pages import SharedPages
from mxc.runtime.steps import StepPlan

TOKENS = [random.Random(3).randrange(7) for _ in range(64)]


def expected(tokens: list[int]) -> np.ndarray:
    """tests/runtime/memory.mlir in numpy: float32 [n, 7]."""
    x = np.array(tokens, np.int64) + 1
    j = np.arange(len(x))
    every, weighted = np.cumsum((j + 1) * x), np.cumsum((j + 2) * x)
    near = weighted - np.concatenate([np.zeros(6, np.int64), weighted])[: len(x)]
    v = np.arange(7)
    found = every[:, None] + near[:, None] * v + np.cumsum(x * x)[:, None] * (7 - v)
    return (found % 1009).astype(np.float32)


@pytest.fixture
def model(memory_artifact: Path) -> Model:
    return load(memory_artifact)


@pytest.fixture(params=[True, False], ids=["lazily", "filled"])
def either(request: pytest.FixtureRequest, model: Model, monkeypatch: pytest.MonkeyPatch) -> Model:
    """The model with pools as CPUs have them, and as other devices do."""
    monkeypatch.setattr(Model, "runs_on_cpu", request.param)
    return model


def steps_of(model: Model, pages: int = 8, states: int = 3) -> PagedSteps:
    return PagedSteps(model, (pages, pages), states)


def used(shared: SharedPages) -> tuple[int, ...]:
    """Pages of each kind that sequences have."""
    shared._have((0, 0), False)
    return tuple(pages.used for pages in shared._store.counts.pages)


def test_one_step_of_a_prompt_a_part_and_a_token(model: Model) -> None:
    """Runs of three sequences in one call, their wanted rows in any number."""
    steps = steps_of(model, pages=16)
    store = PageStore(steps, 16)
    tokens = [TOKENS[:9], TOKENS[10:20], TOKENS[20:31]]
    pages = [store.open((), 0) for _ in tokens]
    for held, each in zip(pages, tokens, strict=True):
        store.extend(held, len(each))

    def run(number: int, start: int, end: int, wanted: list[int]) -> Run:
        part = tokens[number][start:end]
        return Run(pages=pages[number], tokens=part, before=start, wanted=wanted)

    first = steps.step(plan_of([run(0, 0, 8, []), run(1, 0, 4, [3])], steps))
    np.testing.assert_array_equal(first, expected(tokens[1][:4])[3:])
    second = plan_of([run(2, 0, 9, [8, 2]), run(0, 8, 9, [0]), run(1, 4, 10, [])], steps)
    wanted = expected(tokens[2][:9])[[8, 2]], expected(tokens[0])[8:]
    np.testing.assert_array_equal(steps.step(second), np.concatenate(wanted))
    nothing = steps.step(plan_of([run(2, 9, 11, [])], steps))
    assert nothing.shape == (0, 7)
    squares = [sum((token + 1) ** 2 for token in each) for each in tokens]
    for held, square in zip(pages, squares, strict=True):
        assert held.state is not None
        np.testing.assert_array_equal(steps.read_state(held.state)["squares"], [[square]])


def test_pools_are_updated_in_place(model: Model) -> None:
    steps = steps_of(model)
    store = PageStore(steps, 16)
    held = store.open((), 0)
    store.extend(held, 6)
    under = steps._pools[0][0].under
    steps.step(plan_of([Run(pages=held, tokens=TOKENS[:6], before=0, wanted=[5])], steps))
    start = -under.ctypes.data % 64
    memory = under[start : start + 8 * 16].view(np.float32).reshape(8, 4)
    np.testing.assert_array_equal(
        memory[held.lists[0]].ravel()[:6], np.array(TOKENS[:6], np.float32)
    )


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 0, 4), (4, 4, 4), (8, 8, 8)],
        # What adjoins in one of the two only.
        [(0, 40, 4), (4, 8, 4)],
        [(16, 0, 4), (8, 4, 4), (12, 8, 4)],
    ],
)
def test_ranges_are_copied(model: Model, ranges: list[tuple[int, int, int]]) -> None:
    source, target = np.arange(64, dtype=np.int8), np.zeros(64, np.int8)
    views = [arrays.to_device(model.device, each, "i8") for each in (source, target)]
    arrays.copy_ranges(model.device, views[0], views[1], ranges)
    for start, end, length in ranges:
        target[end : end + length] = source[start : start + length]
    np.testing.assert_array_equal(arrays.to_host(model.device, views[1], "i8"), target)


def test_what_the_program_gives_back_is_what_it_gets(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of a program that does not update it in place."""
    invoke = model.invoke

    def elsewhere(name: str, arguments: list[Any]) -> list[Any]:
        memory = [
            arrays.to_device(model.device, arrays.to_host(model.device, each, "f32"), "f32")
            for each in arguments[-3:]
        ]
        return invoke(name, [*arguments[:-3], *memory])

    monkeypatch.setattr(model, "invoke", elsewhere)
    seq = model.sequence()
    for start in range(0, 20, 5):
        got = seq.feed(TOKENS[start : start + 5])
        np.testing.assert_array_equal(got, expected(TOKENS[: start + 5])[start:])


def test_copies_of_pages_and_states(model: Model) -> None:
    steps = steps_of(model)
    store = PageStore(steps, 16)
    held = store.open((), 0)
    store.extend(held, 12)
    steps.step(plan_of([Run(pages=held, tokens=TOKENS[:12], before=0, wanted=[])], steps))
    source = np.array(held.lists[1], np.int32)
    target = np.array([page for page in range(8) if page not in held.lists[1]][:3], np.int32)
    steps.copy_pages(1, source, target)
    np.testing.assert_array_equal(steps.read_pages(1, target), steps.read_pages(1, source))
    assert steps.read_pages(1, target)[2, 0, 3, 1, 1] == TOKENS[11]
    # In this order: what is copied first is copied on.
    chain = np.array([target[0], target[1]], np.int32), np.array([target[1], target[2]], np.int32)
    steps.copy_pages(1, *chain)
    every = steps.read_pages(1, target)
    np.testing.assert_array_equal(every[2], every[0])
    assert held.state is not None
    other = (held.state + 1) % 3
    steps.copy_state(held.state, other)
    assert steps.read_state(other) == steps.read_state(held.state)
    assert steps.read_state(other)["squares"].any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokens": np.array([7, 1, 1], np.int32)}, "token 7 is not one of 0 to 6"),
        ({"tokens": np.array([1, 1, 1], np.int64)}, r"tokens: wants int32 \[3\], got int64"),
        ({"positions": np.array([4, 5, 7], np.int32)}, "positions are not those of the runs"),
        ({"runs": np.array([[0, 2, 4]], np.int32)}, "runs of 2 rows, of 3"),
        ({"runs": np.array([[1, 2, 4]], np.int32)}, "runs do not follow one another"),
        ({"rows": np.array([3], np.int32)}, "row 3 is not one of 0 to 2"),
        ({"states": np.array([3], np.int32)}, "state slot 3 is not one of 0 to 2"),
        ({"states": np.array([], np.int32)}, r"states: wants int32 \[1\], got int32 \[0\]"),
        ({"slots": (np.array([4, 5, 5], np.int32),) * 2}, "two rows have one slot"),
        ({"slots": (np.array([8, 9, 10], np.int32),) * 2}, "slots are not where the lists"),
        ({"slots": (np.array([4, 5, 6], np.int32),)}, "1 slots and 2 lists of pages of 2 kinds"),
        ({"pages": (np.array([[0, 8]], np.int32),) * 2}, "page 8 is not one of 0 to 7"),
        ({"pages": (np.array([[0]], np.int32),) * 2}, "lists of pages hold 4"),
    ],
)
def test_a_plan_that_does_not_fit_writes_nothing(
    model: Model, change: dict[str, Any], said: str
) -> None:
    steps = steps_of(model)
    lists = np.array([[0, 1]], np.int32)
    good = StepPlan(
        tokens=np.array([1, 2, 3], np.int32),
        positions=np.array([4, 5, 6], np.int32),
        slots=(np.array([4, 5, 6], np.int32),) * 2,
        runs=np.array([[0, 3, 4]], np.int32),
        pages=(lists, lists),
        rows=np.array([2], np.int32),
        states=np.array([0], np.int32),
    )
    with pytest.raises(RequestError, match=said):
        steps.step(replace(good, **change))
    assert not steps.read_pages(0, np.arange(8, dtype=np.int32)).any()
    assert not steps.read_state(0)["squares"].any()
    steps.step(good)
    assert steps.read_pages(0, np.arange(8, dtype=np.int32)).any()


def test_pages_are_counted_and_come_back(model: Model) -> None:
    seq = model.sequence()
    shared = model.shared_pages()
    assert used(shared) == (0, 0)
    seq.feed(TOKENS[:14])
    # Of the window, what a token at 14 sees.
    assert used(shared) == (4, 2)
    twin = seq.fork()
    # Three full pages are shared, of the window one; the last ones are copies.
    assert used(shared) == (5, 3)
    seq.reset()
    assert used(shared) == (4, 2)
    np.testing.assert_array_equal(twin.feed(TOKENS[14:20]), expected(TOKENS[:20])[14:])
    assert used(shared) == (5, 2)
    del twin
    gc.collect()
    assert used(shared) == (0, 0)
    assert shared._store.counts.states_used == 1  # that of `seq`


@pytest.mark.parametrize("count", range(1, 13))
def test_forks_write_pages_of_their_own(either: Model, count: int) -> None:
    seq = either.sequence()
    seq.feed(TOKENS[:count])
    twins = [seq.fork() for _ in range(3)]
    for number, each in enumerate((seq, *twins)):
        own = [(token + number) % 7 for token in TOKENS[:9]]
        want = expected(TOKENS[:count] + own)[count:]
        np.testing.assert_array_equal(each.feed(own[:2]), want[:2])
        np.testing.assert_array_equal(each.feed(own[2:]), want[2:])


def test_a_fork_of_nothing(model: Model) -> None:
    seq = model.sequence()
    np.testing.assert_array_equal(seq.fork().feed(TOKENS[:5]), expected(TOKENS[:5]))
    np.testing.assert_array_equal(seq.feed(TOKENS[5:9]), expected(TOKENS[5:9]))


def test_pools_grow_with_what_is_in_them(either: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = either
    monkeypatch.setattr("mxc.runtime.shared_pages._FIRST_BYTES_LAZILY", 1)
    monkeypatch.setattr("mxc.runtime.shared_pages._FIRST_BYTES", 1)
    monkeypatch.setattr("mxc.runtime.shared_pages._FIRST_STATES", 1)
    sequences = [model.sequence()]
    shared = model.shared_pages()
    assert [kind.pages for kind in shared._steps.kinds] == [1, 1]
    for start in range(0, 60, 3):
        if start % 12 == 0:
            sequences += [model.sequence(), sequences[0].fork()]
        for number, each in enumerate(sequences):
            before = each.position
            own = [(token + number * (before % 5)) % 7 for token in TOKENS[start : start + 3]]
            known = each.__dict__.setdefault("known", [])
            if before and not known:  # a fork
                known += sequences[0].__dict__["known"][:before]
            known += own
            np.testing.assert_array_equal(each.feed(own), expected(known)[before:])
    assert shared._steps.kinds[0].pages > 64
    assert shared._steps.states >= len(sequences)


def test_memory_goes_with_the_last_sequence(model: Model) -> None:
    first = model.sequence()
    second = model.sequence()
    shared = model.shared_pages()
    assert second._shared is first._shared is shared
    del shared, first, second
    gc.collect()
    assert model._shared_pages is not None
    assert model._shared_pages() is None


def test_memory_that_is_not_there(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise MemoryError("cannot allocate")

    seq = model.sequence()
    seq.feed(TOKENS[:3])
    shared = model.shared_pages()
    monkeypatch.setattr("mxc.runtime.arrays.zeros", none_left)
    with pytest.raises(RequestError, match=r"no memory for .* of 16 bytes .*cannot allocate"):
        shared._have((100, 1000), False)
    monkeypatch.undo()
    np.testing.assert_array_equal(seq.feed(TOKENS[3:9]), expected(TOKENS[:9])[3:])


def test_threads_with_sequences_of_their_own(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxc.runtime.shared_pages._FIRST_BYTES_LAZILY", 1)
    wrong: list[int] = []

    def work(number: int) -> None:
        own = [(token + number) % 7 for token in TOKENS]
        for _ in range(5):
            seq = model.sequence()
            got = np.concatenate([seq.feed(own[start : start + 5]) for start in range(0, 60, 5)])
            if not np.array_equal(got, expected(own[:60])):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_sequences_decoded_together(model: Model) -> None:
    """More of them than a call has rows, of different lengths."""
    sequences = [model.sequence() for _ in range(20)]
    for number, each in enumerate(sequences):
        each.feed(TOKENS[number : 2 * number + 1])
    together = model.batch()
    for step in range(4):
        got = together.feed(sequences, [(number + step) % 7 for number in range(20)])
        for number, row in enumerate(got):
            own = [(number + each) % 7 for each in range(step + 1)]
            known = TOKENS[number : 2 * number + 1] + own
            np.testing.assert_array_equal(row, expected(known)[-1])


def test_what_cannot_be_decoded_together(model: Model, toy_artifact: Path) -> None:
    together, seq, other = model.batch(), model.sequence(), load(toy_artifact).sequence()
    full = model.sequence()
    full.feed(TOKENS)
    for sequences, tokens, said in (
        ([], [], "got no sequences"),
        ([seq], [1, 2], "one token for each of 1 sequences, got 2"),
        ([seq, seq], [1, 2], "a sequence is there twice"),
        ([seq, other], [1, 2], r"sequence 1 is of .*toy\.mxc, loaded apart from"),
        ([seq, model.sequence()], [1, 7], "outside of the vocabulary"),
        ([seq, full], [1, 1], "would be 65 tokens long"),
    ):
        with pytest.raises(RequestError, match=said):
            together.feed(sequences, tokens)
        assert seq.position == 0
