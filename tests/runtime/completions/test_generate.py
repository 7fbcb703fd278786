"""model.generate: text, tokens, chats; whole, streamed, awaited; several prompts."""

import asyncio
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import mxc
from mxc.errors import ArtifactError, RequestError
from mxc.runtime.session import Model


@pytest.fixture
def model(toy_artifact: Path) -> Model:
    return mxc.load(toy_artifact)


def greedy(model: Model, prompt: list[int], count: int) -> list[int]:
    sequence, tokens = model.sequence(), list(prompt)
    fed: list[int] = prompt
    for _ in range(count):
        tokens.append(int(np.argmax(sequence.feed(fed, last_only=True))))
        fed = tokens[-1:]
    return tokens[len(prompt) :]


def test_tokens_and_text(model: Model) -> None:
    expected = greedy(model, [1, 2, 3], 4)
    found = model.generate([1, 2, 3], max_new_tokens=4)
    assert found.tokens == expected
    assert found.finish_reason == "length"
    text = model.generate("w1 w2 w3", max_new_tokens=4)
    assert text.tokens == expected
    assert text.text.split() == [f"w{token}" for token in expected]


def test_several_prompts(model: Model) -> None:
    prompts = [[1, 2, 3], [4], [5, 6, 0, 1, 2]]
    found = model.generate(prompts, max_new_tokens=3)
    assert isinstance(found, list)
    assert [each.tokens for each in found] == [greedy(model, prompt, 3) for prompt in prompts]
    texts = model.generate(["w1 w2 w3", "w4"], max_new_tokens=3)
    assert [each.tokens for each in texts] == [each.tokens for each in found[:2]]


def test_streams(model: Model) -> None:
    stream = model.generate([1, 2, 3], stream=True, max_new_tokens=4, logprobs=2)
    drawn = [piece.drawn for piece in stream if piece.drawn is not None]
    assert [each.token for each in drawn] == greedy(model, [1, 2, 3], 4)
    assert all(len(each.top) == 2 for each in drawn)
    assert all(each.logprob is not None and each.logprob <= 0 for each in drawn)

    async def read() -> list[int]:
        stream = model.generate([1, 2, 3], stream=True, max_new_tokens=4)
        async for _ in stream:
            pass
        whole = model.generate([4], stream=True, max_new_tokens=2)
        return [*stream.completion.tokens, *(await whole.complete()).tokens]

    assert asyncio.run(read()) == greedy(model, [1, 2, 3], 4) + greedy(model, [4], 2)


def test_stop_strings(model: Model) -> None:
    whole = model.generate([1, 2, 3], max_new_tokens=6)
    stop = f"w{whole.tokens[2]}"
    found = model.generate([1, 2, 3], max_new_tokens=6, stop=stop)
    assert found.finish_reason == "stop"
    assert found.text == whole.text[: whole.text.index(stop)]


def test_as_many_as_fit(model: Model) -> None:
    # The last of sixteen positions gives one more token, which is never fed.
    assert len(model.generate([1, 2, 3]).tokens) == 14


def test_refusals(model: Model, plain_artifact: Path) -> None:
    with pytest.raises(RequestError, match="no option of that name"):
        model.generate([1], heat=3)
    with pytest.raises(RequestError, match="empty list"):
        model.generate([])
    with pytest.raises(RequestError, match="text, token ids, messages"):
        model.generate(cast(Any, [1.5]))
    with pytest.raises(RequestError, match="temperature must be"):
        model.generate([1], temperature=-1)
    with pytest.raises(ArtifactError, match="no chat template"):
        model.generate([{"role": "user", "content": "w1"}])
    with pytest.raises(RequestError, match="not a language model"):
        mxc.load(plain_artifact).generate([1])
