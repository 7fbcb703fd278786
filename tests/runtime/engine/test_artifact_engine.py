"""The engine over a compiled program: the tokens of each request are those of it alone."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxc.artifact.manifest import ModelRecord, PageRecord, TensorType
from mxc.errors import RequestError
from mxc.runtime import arrays, load
from mxc.runtime.completions import opened
from mxc.runtime.completions.opened import capacity
from mxc.runtime.engine.choice import Choice
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.request import Sampling
from mxc.runtime.engine.schedule import StepLimits
from mxc.runtime.paged_steps import PagedSteps
from mxc.runtime.session import Model
from tests.runtime.engine.test_engine import Heard, no_page_is_used, request


def alone(model: Model, prompt: list[int], count: int, sampling: Sampling) -> list[int]:
    """What a sequence of its own says."""
    record = model.manifest.model
    assert record is not None
    choice, sequence = Choice(sampling, None, record.vocab_size), model.sequence()
    fed, found = prompt, []
    for _ in range(count):
        found.append(choice(sequence.feed(fed, last_only=True)[0]).token)
        fed = found[-1:]
    return found


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_random_arrivals(
    memory_artifact: Path, toy_artifact: Path, seed: int, stateful: bool
) -> None:
    """Arrivals, cancels and preemption; prefixes are shared where there is no state."""
    chance = random.Random(seed)
    model = load(memory_artifact if stateful else toy_artifact)
    record = model.manifest.model
    assert record is not None
    longest = record.max_sequence_length
    pages = [chance.randint(-(-longest // 4), -(-longest // 4) + 12) for _ in record.pages]
    steps = PagedSteps(model, pages, 5)
    limits = StepLimits(tokens=chance.choice([3, 16]), sequences=chance.choice([2, 5]))
    engine = Engine(steps, limits)
    beginnings = [[chance.randrange(7) for _ in range(longest // 3)] for _ in range(2)]
    asked = []
    for number in range(30):
        own = [chance.randrange(7) for _ in range(chance.randint(1, longest // 3))]
        prompt = chance.choice(beginnings)[: chance.randint(0, 20)] + own
        count = chance.randint(1, longest // 3)
        # Logits are whole numbers far apart: a high temperature leaves the draw a choice.
        sampling = Sampling(temperature=chance.choice([0.0, 200.0]), seed=number)
        heard = Heard()
        handle = engine.submit(request(prompt, count, heard, sampling))
        cancelled = chance.random() < 0.2
        if chance.random() < 0.3:
            heard.first.wait(60)
        if cancelled:
            handle.cancel()
        asked.append((prompt, count, sampling, heard))
    for prompt, count, sampling, heard in asked:
        outcome = heard.outcome()
        wanted = alone(model, prompt, count, sampling)
        assert outcome.reason in ("length", "cancelled"), outcome.error
        assert heard.tokens == wanted[: len(heard.tokens)]
        assert len(heard.tokens) == count or outcome.reason == "cancelled"
    assert no_page_is_used(engine)
    counts = engine.counts
    assert (counts.cached_tokens > 0) is not stateful
    engine.close()


def test_preemption(memory_artifact: Path) -> None:
    model = load(memory_artifact)
    engine = Engine(PagedSteps(model, (17, 17), 4), StepLimits(tokens=16, sequences=4))
    prompts = [[number] * 30 for number in range(4)]
    heard = [Heard() for _ in prompts]
    for prompt, listener in zip(prompts, heard, strict=True):
        engine.submit(request(prompt, 30, listener))
    for prompt, listener in zip(prompts, heard, strict=True):
        assert listener.outcome().reason == "length"
        assert listener.tokens == alone(model, prompt, 30, Sampling())
    assert engine.counts.preemptions
    assert no_page_is_used(engine)
    engine.close()


def record(**fields: Any) -> ModelRecord:
    given: dict[str, Any] = {
        "architecture": "x",
        "vocab_size": 7,
        "max_sequence_length": 6400,
        "page_size": 64,
        "pages": (PageRecord(window=None, shape=(1, 64, 1, 4), dtype="f32"),),
        "rows": 64,
    }
    return ModelRecord(**{**given, **fields})


def test_capacity_is_what_sequences_may_fill_or_what_there_is() -> None:
    limits = StepLimits(tokens=128, sequences=10)
    page = 64 * 4 * 4
    assert capacity(record(), limits, 1 << 40) == ((1000,), 0)
    assert capacity(record(), limits, 100 * page + 5) == ((100,), 0)
    assert capacity(record(), limits, 0) == ((1,), 0)
    windowed = PageRecord(window=130, shape=(1, 64, 1, 8), dtype="f32")
    both = record(pages=(*record().pages, windowed))
    # Each sequence sees three pages and two at their ends; a step adds two; twice that.
    assert capacity(both, limits, 1 << 40) == ((1000, 104), 0)
    assert capacity(both, limits, 608 * page) == ((400, 104), 0)
    # Windows, of which a page has twice the bytes, get at most half of the memory.
    assert capacity(both, limits, 200 * page) == ((100, 50), 0)
    stateful = record(states={"s": TensorType(shape=(256,), dtype="f32")}, bytes_per_sequence=1024)
    assert capacity(stateful, limits, 1 << 40) == ((1000,), 10)
    assert capacity(stateful, limits, 8 << 10) == ((4,), 4)
    assert np.prod([64, 4, 4]) == page


def test_a_device_with_less_memory(memory_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes what there is."""
    zeros, asked = arrays.zeros, []

    def short(device: Any, tensor: TensorType, *, lazily: bool) -> Any:
        asked.append(tensor.shape[0])
        if tensor.shape[0] > 100:
            raise MemoryError("no more")
        return zeros(device, tensor, lazily=lazily)

    monkeypatch.setattr(arrays, "zeros", short)
    monkeypatch.setattr(opened, "_LEAST_BYTES", 1)
    model = load(memory_artifact)
    found = opened.open_text_model(model)
    assert 25 <= found.engine.model.kinds[0].pages <= 100
    assert asked[0] > 100
    monkeypatch.setattr(opened, "_LEAST_BYTES", 1 << 60)
    with pytest.raises(RequestError, match="no memory for"):
        opened.open_text_model(model)


def test_an_engine_takes_half_of_the_memory(
    toy_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "available_memory_bytes", lambda: 1000)
    engine = opened.open_engine(load(toy_artifact))
    # A page of toy.mlir has four tokens of four bytes.
    assert engine.model.kinds[0].pages == 500 // 16
    engine.close()
