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


def test_tokens_of_numpy(model: Model) -> None:
    expected = [greedy(model, [1, 2, 3], 3), greedy(model, [1, 2, 4], 3)]
    one: Any = [1, np.int64(2), np.uint8(3)]
    ones: list[Any] = [one, np.array([1, 2, 3]), np.array([1, 2, 3], np.uint16)]
    for prompt in ones:
        assert model.generate(prompt, max_new_tokens=3).tokens == expected[0]
        stream = model.generate(prompt, stream=True, max_new_tokens=3)
        assert [piece.drawn.token for piece in stream if piece.drawn] == expected[0]
    several: Any = [one, np.array([1, 2, 4])]
    for prompts in (several, np.array([[1, 2, 3], [1, 2, 4]])):
        found = cast(Any, model.generate(cast(Any, prompts), max_new_tokens=3))
        assert [each.tokens for each in found] == expected


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([1, 2.0, 3], "found 2.0 among the token ids of one prompt"),
        ([[1, 2, 3], [1, 2.0, 3]], "found 2.0 among the token ids of one prompt"),
        ([[1, "w2", 3]], "found 'w2' among the token ids of one prompt"),
        ([[1, True, 3]], "found True among the token ids of one prompt"),
        (np.array([1.0, 2.0]), r"messages, or a list of these, found .*1\.0"),
        (np.array([[1.0, 2.0]]), r"found .*1\.0.* among the token ids of one prompt"),
        ([{"role": "user", "content": "w1"}, "w2"], "found 'w2' among the messages of one prompt"),
        ([[{"role": "user", "content": "w1"}, "w2"]], "found 'w2' among the messages of one pro"),
        ({"role": "user", "content": "w1"}, "or a list of these, found {'role'"),
        (["w1", None], "or a list of these, found None"),
        (5, "or a list of these, found 5"),
    ],
)
def test_nothing_of_a_prompt_is_left_out(model: Model, prompt: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        model.generate(prompt, max_new_tokens=2)
    assert "\n" not in str(caught.value)


def test_a_stream_is_of_one_prompt(model: Model) -> None:
    with pytest.raises(RequestError, match="found 'w1' among the token ids of one prompt"):
        model.generate(cast(Any, ["w1", "w2"]), stream=True)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"max_new_tokens": 2.5}, "the number of new tokens must be a whole number, got 2.5"),
        ({"max_new_tokens": True}, "the number of new tokens must be a whole number, got True"),
        ({"max_new_tokens": 0}, "the number of new tokens must be at least 1, got 0"),
        ({"top_k": 2.5}, "top-k must be a whole number, got 2.5"),
        ({"top_p": "0.5"}, "top-p must be a number, got '0.5'"),
        ({"temperature": None}, "temperature must be a number, got None"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"presence_penalty": "x"}, "presence_penalty must be a number, got 'x'"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty must be finite, got inf"),
        ({"logit_bias": {"5": 1}}, "logit_bias must have token numbers as keys, got '5'"),
        ({"logit_bias": {5: float("nan")}}, "logit_bias of token 5 must be finite, got nan"),
        ({"logit_bias": {5: "x"}}, "logit_bias of token 5 must be a number, got 'x'"),
        ({"logit_bias": [5]}, r"logit_bias must be amounts by token, got \[5\]"),
        ({"logprobs": -1}, "logprobs must be at least 0, got -1"),
        ({"logprobs": 1.5}, "logprobs must be a whole number, got 1.5"),
        ({"stop": 5}, "stop must be a text or a list of texts, got 5"),
        ({"regex": 5}, "regex must be a text, got 5"),
        ({"json_schema": {}, "regex": "a"}, "json_schema or regex, found both"),
        ({"tools": [TOOL]}, "tools are for the messages of a chat, and the prompt is text"),
        ({"tools": "f"}, "tools must be a list of objects in OpenAI's format, got 'f'"),
        ({"template": {"thinks": False}}, "template is for the messages of a chat, and the prom"),
        ({"template": 5}, "template must be variables by name, got 5"),
    ],
)
def test_options_of_other_kinds(model: Model, option: dict[str, Any], said: str) -> None:
    for prompt in ("w1 w2", [1, 2]):
        with pytest.raises(RequestError, match=said) as caught:
            model.generate(prompt, **option)
        assert "\n" not in str(caught.value)
    assert len(model.generate([1, 2], max_new_tokens=np.int64(2)).tokens) == 2


def test_options_of_numpy(model: Model) -> None:
    plain: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "seed": 2, "logprobs": 1}
    numbers: dict[str, Any] = {key: np.asarray(value)[()] for key, value in plain.items()}
    numbers["logit_bias"] = {np.int64(5): np.float32(-np.inf)}
    expected = model.generate([1], max_new_tokens=4, **plain, logit_bias={5: -float("inf")})
    assert model.generate([1], max_new_tokens=4, **numbers).tokens == expected.tokens
    assert 5 not in expected.tokens
