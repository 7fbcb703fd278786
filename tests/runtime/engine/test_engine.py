"""Tokens do not depend on the company, and no page is lost, whatever comes and goes."""

import gc
import queue
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from mxc.errors import RequestError
from mxc.runtime.engine.choice import Choice
from mxc.runtime.engine.engine import Engine, EngineStopped, QueueFull
from mxc.runtime.engine.request import Outcome, Request, SampledToken, Sampling
from mxc.runtime.engine.schedule import StepLimits
from tests.runtime.engine.paged_model import VOCABULARY, PagedModel, dense_logits


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.tokens: list[int] = []
        self.drawings: list[SampledToken] = []
        self.outcomes: queue.Queue[Outcome] = queue.Queue()
        self.first = threading.Event()
        self.stop_after = stop_after

    def drawn(self, drawn: SampledToken) -> str | None:
        self.tokens.append(drawn.token)
        self.drawings.append(drawn)
        self.first.set()
        return "enough" if len(self.tokens) == self.stop_after else None

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.put(outcome)
        self.first.set()  # nobody waits for a token any more

    def outcome(self) -> Outcome:
        found = self.outcomes.get(timeout=60)
        assert self.outcomes.empty(), "a request ends once"
        return found


def alone(prompt: list[int], count: int, sampling: Sampling) -> list[int]:
    """What the model without pages says."""
    choice, tokens = Choice(sampling, None, VOCABULARY), list(prompt)
    for _ in range(count):
        tokens.append(choice(dense_logits(tokens)).token)
    return tokens[len(prompt) :]


def request(
    prompt: list[int], count: int, heard: Heard, sampling: Sampling | None = None
) -> Request:
    return Request(
        prompt=tuple(prompt), max_tokens=count, listener=heard, sampling=sampling or Sampling()
    )


def no_page_is_used(engine: Engine) -> bool:
    store = engine.counts.store
    return all(pages.used == 0 for pages in store.pages) and store.states_used == 0


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(model: PagedModel | None = None, **limits: int) -> Engine:
        waiting = limits.pop("queue", 1024)
        made.append(Engine(model or PagedModel(), StepLimits(**limits), waiting))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_those_of_the_request_alone(engine: Callable[..., Engine], seed: int) -> None:
    """Random prompts, some with one beginning, random options, arrivals and cancels, few pages."""
    chance = random.Random(seed)
    model = PagedModel(
        full_pages=chance.randint(12, 40), window_pages=chance.randint(9, 30), context=64
    )
    made = engine(model, tokens=chance.choice([3, 8, 64]), sequences=chance.choice([2, 5, 16]))
    beginnings = [[chance.randrange(VOCABULARY) for _ in range(20)] for _ in range(2)]
    asked = []
    for number in range(24):
        own = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 12))]
        prompt = chance.choice(beginnings)[: chance.randint(0, 20)] + own
        sampling = Sampling(
            temperature=chance.choice([0.0, 1.0]),
            top_p=chance.choice([None, 0.9]),
            presence_penalty=chance.choice([0.0, 0.5]),
            frequency_penalty=chance.choice([0.0, 0.3]),
            seed=number,
        )
        heard = Heard()
        count = chance.randint(1, 12)
        handle = made.submit(request(prompt, count, heard, sampling))
        cancel = chance.random() < 0.25
        if chance.random() < 0.5:
            heard.first.wait(60)
        if cancel:
            handle.cancel()
        asked.append((prompt, count, sampling, heard))
    for prompt, count, sampling, heard in asked:
        outcome = heard.outcome()
        expected = alone(prompt, count, sampling)
        assert outcome.reason in ("length", "cancelled"), outcome.error
        if outcome.reason == "length":
            assert heard.tokens == expected
        assert heard.tokens == expected[: len(heard.tokens)]
        assert outcome.generated_tokens == len(heard.tokens)
    assert no_page_is_used(made)


def test_preempted_requests_go_on_where_they_were(engine: Callable[..., Engine]) -> None:
    """Two sequences whose pages together are more than there are."""
    made = engine(PagedModel(full_pages=12, window_pages=8, context=48), tokens=16)
    prompts = [[1] * 20, [2] * 20]
    heard = [Heard(), Heard()]
    for prompt, listener in zip(prompts, heard, strict=True):
        made.submit(request(prompt, 20, listener))
    for prompt, listener in zip(prompts, heard, strict=True):
        assert listener.outcome().reason == "length"
        assert listener.tokens == alone(prompt, 20, Sampling())
    assert made.counts.preemptions
    assert no_page_is_used(made)


def test_a_beginning_is_computed_once(engine: Callable[..., Engine]) -> None:
    model = PagedModel()
    made = engine(model)
    prompt = list(range(20))
    model.gate.clear()
    heard = [Heard() for _ in range(3)]
    for listener in heard:
        made.submit(request(prompt, 3, listener))
    model.gate.set()
    outcomes = [listener.outcome() for listener in heard]
    assert all(listener.tokens == alone(prompt, 3, Sampling()) for listener in heard)
    # Full pages but the last token's: 16 of 20; requests that came together wait for the first.
    assert sorted(outcome.cached_tokens for outcome in outcomes) == [0, 16, 16]
    again = Heard()
    made.submit(request(prompt + heard[0].tokens + [5], 2, again))
    assert again.outcome().cached_tokens == 20, "generated tokens are kept too"
    assert again.tokens == alone(prompt + heard[0].tokens + [5], 2, Sampling())


def test_pages_that_were_used_longest_ago_go_first(engine: Callable[..., Engine]) -> None:
    made = engine(PagedModel(full_pages=12, window_pages=12, context=48))
    first, second, third = [1] * 17, [2] * 17, [3] * 17

    def cached(prompt: list[int]) -> int:
        heard = Heard()
        made.submit(request(prompt, 1, heard))
        return heard.outcome().cached_tokens

    # Each leaves four full pages, of which the window's pool of twelve holds three prompts' worth.
    assert [cached(first), cached(second)] == [0, 0]
    assert cached(first) == 16
    assert cached(third) == 0
    assert cached(first) == 16
    assert cached(second) < 16


def test_decoding_goes_before_prompts(engine: Callable[..., Engine]) -> None:
    model = PagedModel()
    made = engine(model, tokens=8)
    talker, reader = Heard(), Heard()
    made.submit(request([1, 2], 40, talker))
    talker.first.wait(60)
    made.submit(request([3] * 40, 1, reader))
    reader.outcome()
    talker.outcome()
    assert sum(len(plan.runs) == 2 for plan in model.steps) >= 5
    assert all(plan.runs[0][1] == 1 for plan in model.steps[1:]), "no step without the talker"
    assert all(len(plan.tokens) <= 8 for plan in model.steps)


def test_refusals(engine: Callable[..., Engine]) -> None:
    model = PagedModel(full_pages=4, window_pages=4, context=64)
    made = engine(model, queue=1)
    for prompt, count, said in (
        ([], 1, "no token"),
        ([VOCABULARY], 1, "outside of the vocabulary"),
        ([1], 0, "at least 1"),
        ([1] * 10, 8, "more than the 16 tokens"),
    ):
        with pytest.raises(RequestError, match=said):
            made.submit(request(prompt, count, Heard()))
    with pytest.raises(RequestError, match="logit_bias names token 99"):
        made.submit(request([1], 1, Heard(), Sampling(logit_bias={99: 1.0})))
    model.gate.clear()
    running, waits = Heard(), Heard()
    made.submit(request([1], 3, running))
    while made.counts.running == 0:
        pass
    made.submit(request([1], 3, waits))
    with pytest.raises(QueueFull):
        made.submit(request([1], 3, Heard()))
    model.gate.set()
    assert running.outcome().reason == waits.outcome().reason == "length"


def test_listeners_stop_and_fail_alone(engine: Callable[..., Engine]) -> None:
    made = engine()
    short, whole = Heard(stop_after=2), Heard()

    class Broken(Heard):
        def drawn(self, drawn: SampledToken) -> str | None:
            raise ValueError("broken listener")

    broken = Broken()
    for listener in (short, broken, whole):
        made.submit(request([4, 5, 6], 8, listener))
    assert (short.outcome().reason, len(short.tokens)) == ("enough", 2)
    assert isinstance(broken.outcome().error, ValueError)
    assert whole.outcome().reason == "length"
    assert whole.tokens == alone([4, 5, 6], 8, Sampling())
    assert no_page_is_used(made)


def test_a_failed_step_ends_everything_with_its_error(engine: Callable[..., Engine]) -> None:
    model = PagedModel()
    made = engine(model)
    heard = Heard()
    model.failure = RuntimeError("the device is gone")
    made.submit(request([1], 4, heard))
    assert heard.outcome().error is model.failure
    assert made.failure is model.failure
    with pytest.raises(EngineStopped):
        made.submit(request([1], 4, Heard()))


def test_closing_answers_everybody(engine: Callable[..., Engine]) -> None:
    model = PagedModel(seconds=0.01)
    made = engine(model, sequences=1)
    heard = [Heard() for _ in range(3)]
    for listener in heard:
        made.submit(request([1, 2, 3], 100, listener))
    heard[0].first.wait(60)
    made.close()
    assert all(isinstance(listener.outcome().error, EngineStopped) for listener in heard)
    assert no_page_is_used(made)


def test_an_engine_that_nobody_uses_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxc.runtime.engine.engine._IDLE_SECONDS", 0.01)
    made = Engine(PagedModel())
    for _ in range(2):  # its thread ends, and the next request starts another
        heard = Heard()
        made.submit(request([1, 2], 2, heard))
        assert heard.outcome().reason == "length"
        while any(thread.name == "mxc-engine" for thread in threading.enumerate()):
            time.sleep(0.01)
    gone = weakref.ref(made.model)
    del made
    gc.collect()
    assert gone() is None


def test_logprobs_are_the_models_own(engine: Callable[..., Engine]) -> None:
    made = engine()
    heard = Heard()
    sampling = Sampling(logit_bias={3: 100.0}, top_logprobs=4, temperature=1.0, seed=1)
    made.submit(request([8, 9], 2, heard, sampling))
    heard.outcome()
    logits = dense_logits([8, 9]).astype(np.float64)
    chances = logits - np.log(np.exp(logits).sum())
    drawn = heard.drawings[0]
    assert drawn.token == 3
    assert drawn.logprob == pytest.approx(chances[3])
    order = np.argsort(-chances)[:4]
    assert [token for token, _ in drawn.top] == order.tolist()
    assert [value for _, value in drawn.top] == pytest.approx(chances[order].tolist())


def test_penalties_and_bias_are_added_to_logits() -> None:
    logits = np.zeros(4, np.float32)
    choice = Choice(
        Sampling(presence_penalty=1.0, frequency_penalty=0.5, logit_bias={2: 3.0}), None, 4
    )
    # 2 is drawn until 1.0 + 0.5 * times reaches its bias; then the first of the others.
    assert [choice(logits).token for _ in range(6)] == [2, 2, 2, 2, 0, 1]
