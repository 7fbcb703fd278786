"""Completions of text as the official client sees them."""

import pytest

from mxc.runtime.engine.request import SampledToken
from mxc.server.logprobs import CompletionLogprobs
from mxc.server.served import ServedModel
from tests.server.running import Running


def test_text_tokens_and_lists(scripted: Running) -> None:
    scripted.says(" upon a time")
    create = scripted.client().completions.create
    tokens = scripted.model.text.encode("Once")
    for prompt in ("Once", tokens, [tokens], ["Once"]):
        found = create(model="tiny", prompt=prompt)
        assert [choice.text for choice in found.choices] == [" upon a time"]
        assert found.choices[0].finish_reason == "stop"
        assert found.usage.prompt_tokens == len(tokens)
    several = create(model="tiny", prompt=["Once", "And once"], n=2, echo=True)
    texts = [choice.text for choice in several.choices]
    assert texts == ["Once upon a time"] * 2 + ["And once upon a time"] * 2
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]


def test_an_answer_goes_on_behind_its_end_where_asked(scripted: Running) -> None:
    scripted.says(" upon a time")
    length = len(scripted.model.text.encode(" upon a time")) + 1
    found = scripted.client().completions.create(
        model="tiny", prompt="Once", max_tokens=2 * length, extra_body={"ignore_eos": True}
    )
    assert found.choices[0].text == " upon a time" * 2
    assert found.choices[0].finish_reason == "length"


def test_sixteen_tokens_are_the_default(random: Running) -> None:
    found = random.client().completions.create(model="tiny", prompt="x", seed=1)
    assert found.usage.completion_tokens == 16
    assert found.choices[0].finish_reason == "length"


def test_streams_and_logprobs(random: Running) -> None:
    request = {"model": "tiny", "prompt": "x", "seed": 1, "logprobs": 2, "max_tokens": 8}
    create = random.client().completions.create
    found = create(**request)
    listed = found.choices[0].logprobs
    assert len(listed.tokens) == len(listed.token_logprobs) == len(listed.text_offset) == 8
    assert all(len(top) in (2, 3) for top in listed.top_logprobs)
    chunks = list(create(**request, stream=True, stream_options={"include_usage": True}))
    pieces = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in pieces) == found.choices[0].text
    streamed = [choice.logprobs for choice in pieces if choice.logprobs]
    assert [each.tokens[0] for each in streamed] == listed.tokens
    assert [each.text_offset[0] for each in streamed] == listed.text_offset
    assert pieces[-1].finish_reason == "length"
    assert chunks[-1].usage == found.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )


def test_names_and_places_of_tokens(scripted: Running) -> None:
    said = "aé – 😀b"
    scripted.says(said)
    create = scripted.client().completions.create
    request = {"model": "tiny", "prompt": "x", "logprobs": 20}
    found = create(**request).choices[0]
    listed = found.logprobs
    assert found.text == said
    assert [len(top) for top in listed.top_logprobs] == [20] * len(listed.tokens)
    assert listed.tokens[0] == "a"
    assert "bytes:\\xf0" in listed.tokens
    assert all(name in top for name, top in zip(listed.tokens, listed.top_logprobs, strict=True))
    data = scripted.model.text.encode(said)
    assert len(listed.text_offset) == len(data) + 1
    places = dict(zip(listed.tokens, listed.text_offset, strict=True))
    assert places["bytes:\\xf0"] == said.index("😀")
    assert places["b"] == said.index("b")
    assert places["<|return|>"] == len(said)
    streamed = [c.choices[0].logprobs for c in create(**request, stream=True)]
    assert [each.text_offset[0] for each in streamed if each] == listed.text_offset


def test_places_end_with_the_text_before_a_stop_string(scripted: Running) -> None:
    scripted.says("abcxyz")
    create = scripted.client().completions.create
    request = {"model": "tiny", "prompt": "x", "logprobs": 1, "stop": ["bcxy"]}
    found = create(**request).choices[0]
    assert found.text == "a"
    assert max(found.logprobs.text_offset) == 1
    streamed = [c.choices[0].logprobs for c in create(**request, stream=True)]
    assert max(each.text_offset[0] for each in streamed if each) == 1


def test_tokens_of_one_text_are_all_listed(
    scripted: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = ServedModel("tiny", scripted.model)
    monkeypatch.setattr(ServedModel, "token_bytes", lambda served, token: b"same")
    drawn = SampledToken(70, -3.0, ((71, -1.0), (72, -2.0)))
    (top,) = CompletionLogprobs(served).take([drawn], 0)["top_logprobs"]
    assert top == {"token_id:71": -1.0, "token_id:72": -2.0, "same": -3.0}


def test_greedy_is_repeatable_and_seeds_differ(random: Running) -> None:
    create = random.client().completions.create
    greedy = [create(model="tiny", prompt="x", temperature=0).choices[0].text for _ in range(2)]
    assert greedy[0] == greedy[1]
    texts = {create(model="tiny", prompt="x", seed=seed).choices[0].text for seed in range(4)}
    assert len(texts) == 4


@pytest.mark.parametrize("format", [{"type": "regex", "regex": "[ab]{4}"}])
def test_an_expression(random: Running, format: dict[str, str]) -> None:
    found = random.client().completions.create(
        model="tiny", prompt="x", extra_body={"response_format": format}
    )
    assert set(found.choices[0].text) <= {"a", "b"}
    assert len(found.choices[0].text) == 4
    assert found.choices[0].finish_reason == "stop"
