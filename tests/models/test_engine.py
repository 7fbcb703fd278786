"""Requests of a compiled model together: each gets the tokens that it gets alone."""

import queue
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions
from mxc.runtime import Model
from mxc.runtime.engine.choice import Choice
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.request import Outcome, Request, SampledToken, Sampling
from mxc.runtime.engine.schedule import StepLimits
from mxc.runtime.paged_steps import PagedSteps
from tests.models.conftest import Compiled

CASES: dict[str, dict[str, Any]] = {
    activations: {
        "options": GptOssOptions(
            hidden_size=96,
            num_hidden_layers=2,
            num_local_experts=6,
            num_experts_per_tok=3,
            vocab_size=1009,
        ),
        "activations": activations,
        "length": 320,
    }
    for activations in ("f32", "bf16")
}
CASES["devices"] = CASES["f32"] | {
    "options": replace(CASES["f32"]["options"], vocab_size=1010, intermediate_size=128),
    "devices": 2,
}


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.outcomes: queue.Queue[Outcome] = queue.Queue()

    def drawn(self, drawn: SampledToken) -> str | None:
        self.tokens.append(drawn.token)
        return None

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.put(outcome)


def _alone(model: Model, prompt: list[int], count: int, sampling: Sampling) -> list[int]:
    record = model.manifest.model
    assert record is not None
    choice, sequence = Choice(sampling, None, record.vocab_size), model.sequence()
    fed, found = prompt, []
    for _ in range(count):
        found.append(choice(sequence.feed(fed, last_only=True)[0]).token)
        fed = found[-1:]
    return found


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_tokens_are_those_of_each_alone(
    case: dict[str, Any], compiled: Callable[[dict[str, Any]], Compiled]
) -> None:
    """Prompts with common beginnings, arrivals, cancels, and too few pages for all of them."""
    built, chance = compiled(case), random.Random(5)
    model = built.model
    record = model.manifest.model
    steps = PagedSteps(model, [9] * len(record.pages), 6)
    engine = Engine(steps, StepLimits(tokens=96, sequences=6))
    asked = []
    for number in range(16):
        beginning = built.tokens[: chance.choice([0, 64, 130])]
        own = [chance.randrange(1009) for _ in range(chance.randint(1, 70))]
        prompt, count = beginning + own, chance.randint(1, 40)
        sampling, heard = Sampling(temperature=chance.choice([0.0, 1.0]), seed=number), Heard()
        request = Request(prompt=tuple(prompt), max_tokens=count, listener=heard, sampling=sampling)
        handle = engine.submit(request)
        if number % 5 == 4:
            handle.cancel()
        asked.append((prompt, count, sampling, heard))
    for prompt, count, sampling, heard in asked:
        outcome = heard.outcomes.get(timeout=120)
        assert outcome.reason in ("length", "cancelled"), outcome.error
        wanted = _alone(model, prompt, count, sampling)
        assert heard.tokens == wanted[: len(heard.tokens)]
        assert len(heard.tokens) == count or outcome.reason == "cancelled"
    counts = engine.counts
    assert counts.cached_tokens
    assert counts.preemptions
    assert all(pages.used == 0 for pages in counts.store.pages)
    engine.close()
