"""Chats as the official client sees them."""

import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from tests.runtime.engine.scripted_model import script_of
from tests.server.running import FINAL, THOUGHT, Running

USER = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}'


def test_an_answer_with_reasoning(scripted: Running) -> None:
    scripted.says(THOUGHT + FINAL + "It is Paris.")
    found = scripted.client().chat.completions.create(model="tiny", messages=USER)
    (choice,) = found.choices
    assert choice.message.content == "It is Paris."
    assert choice.message.reasoning_content == "Let me see."
    assert choice.finish_reason == "stop"
    model = scripted.model
    prompt = model.chat(USER).tokens
    assert found.usage.prompt_tokens == len(prompt)
    assert found.usage.completion_tokens == len(script_of(model).answer)
    assert found.usage.completion_tokens_details.reasoning_tokens == len(
        model.text.encode("Let me see.")
    )


def test_a_stream_is_the_answer_in_pieces(scripted: Running) -> None:
    scripted.says(THOUGHT + FINAL + "It is Paris – schön.")
    stream = scripted.client().chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "It is Paris – schön."
    thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert thought == "Let me see."
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(script_of(scripted.model).answer)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_calls_in_parallel(scripted: Running) -> None:
    scripted.says(f"{CALL}<|end|><|start|>assistant{CALL}<|end|>")
    client, flat = scripted.client(), {"type": "function", "name": "weather"}
    for parallel, count in ((True, 2), (False, 1)):
        found = client.chat.completions.create(
            model="tiny", messages=USER, tools=[WEATHER], parallel_tool_calls=parallel
        )
        (choice,) = found.choices
        assert len(choice.message.tool_calls) == count
        assert choice.finish_reason == "tool_calls"
        answer = client.responses.create(
            model="tiny", input="x", tools=[flat], parallel_tool_calls=parallel
        )
        assert [each.type for each in answer.output] == ["function_call"] * count


def test_calls(scripted: Running) -> None:
    scripted.says(CALL)
    client = scripted.client()
    found = client.chat.completions.create(model="tiny", messages=USER, tools=[WEATHER])
    (choice,) = found.choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "weather",
        {"city": "Paris"},
    )
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    # The client's own accumulation of a stream has the same call.
    with client.chat.completions.stream(model="tiny", messages=USER, tools=[WEATHER]) as stream:
        whole = stream.get_final_completion()
    (streamed,) = whole.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    # And the conversation goes on.
    scripted.says(FINAL + "Sunny.")
    messages = [*USER, choice.message.to_dict()]
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "sun"})
    again = client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER])
    assert again.choices[0].message.content == "Sunny."


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_that_must_be(random: Running, choice: object) -> None:
    properties = {"city": {"enum": ["Paris", "Rome"]}}
    tool = {"type": "object", "properties": properties, "required": ["city"]}
    given = {"type": "function", "function": {"name": "weather", "parameters": tool}}
    ended = 0
    for seed in range(4):
        found = random.client().chat.completions.create(
            model="tiny", messages=USER, tools=[given], tool_choice=choice, seed=seed
        )
        if found.choices[0].finish_reason == "tool_calls":
            ended += 1
            (call,) = found.choices[0].message.tool_calls
            assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    assert ended


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    age: Literal[1, 2]


def test_structured_answers(random: Running) -> None:
    ended = 0
    for seed in range(6):
        try:
            found = random.client().chat.completions.parse(
                model="tiny", messages=USER, response_format=City, seed=seed, max_tokens=200
            )
        except openai.LengthFinishReasonError:
            continue
        ended += isinstance(found.choices[0].message.parsed, City)
    assert ended


def test_logprobs(random: Running) -> None:
    request = {"model": "tiny", "messages": USER, "max_tokens": 20, "seed": 3, "logprobs": True}
    client = random.client()
    found = client.chat.completions.create(**request, top_logprobs=3)
    listed = found.choices[0].logprobs.content
    for entry in listed:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob <= 0
        assert entry.top_logprobs[0].logprob >= entry.logprob
        assert bytes(entry.bytes).decode(errors="replace") == entry.token
    streamed = list(client.chat.completions.create(**request, top_logprobs=3, stream=True))
    entries = [
        entry
        for chunk in streamed
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert entries == listed


def test_several_choices_and_seeds(random: Running) -> None:
    client = random.client()
    request = {"model": "tiny", "messages": USER, "max_tokens": 12, "seed": 5}
    found = client.chat.completions.create(**request, n=3)
    texts = [choice.message.content for choice in found.choices]
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    again = client.chat.completions.create(**request, n=3)
    assert [choice.message.content for choice in again.choices] == texts
    one = client.chat.completions.create(**request)
    assert one.choices[0].message.content == texts[0]
    assert found.usage.completion_tokens <= 36
    assert found.usage.prompt_tokens == one.usage.prompt_tokens


def test_stop_bias_and_length(scripted: Running) -> None:
    scripted.says(FINAL + "one two three four")
    client = scripted.client()
    create = client.chat.completions.create
    found = create(model="tiny", messages=USER, stop=["three", "four"])
    assert found.choices[0].message.content == "one two "
    assert found.choices[0].finish_reason == "stop"
    short = create(model="tiny", messages=USER, max_completion_tokens=4)
    assert short.choices[0].finish_reason == "length"
    assert short.usage.completion_tokens == 4
    first = str(script_of(scripted.model).answer[0])
    biased = create(
        model="tiny", messages=USER, logit_bias={first: -100}, max_tokens=1, temperature=0
    )
    assert biased.choices[0].message.content != found.choices[0].message.content


def test_parts_roles_and_effort(scripted: Running) -> None:
    scripted.says(FINAL + "yes")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = scripted.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}],
        reasoning_effort="low",
    )
    text = "<|start|>developer<|message|>be brief<|end|><|start|>user<|message|>ab<|end|>effort low"
    expected = scripted.model.text.encode(text + "<|start|>assistant")
    assert found.usage.prompt_tokens == len(expected)


def test_a_second_turn_is_not_computed_again(scripted: Running) -> None:
    scripted.says(FINAL + "yes")
    long = [{"role": "user", "content": "word " * 200}]
    create = scripted.client().chat.completions.create
    create(model="tiny", messages=long)
    found = create(model="tiny", messages=[*long, {"role": "user", "content": "more"}])
    size = scripted.model.engine.model.page_size
    most = found.usage.prompt_tokens
    assert most - 4 * size < found.usage.prompt_tokens_details.cached_tokens < most


@pytest.mark.parametrize("answer", ["", "no channel at all", "<|message|>", "<|start|>" * 5,
    "<|channel|>commentary to=functions.<|message|>{{{", 
    "<|constrain|><|channel|>x<|call|>"])  # fmt: skip
@pytest.mark.parametrize("stream", [True, False])
def test_no_answer_of_a_model_is_an_error(scripted: Running, answer: str, stream: bool) -> None:
    scripted.says(answer)
    found = scripted.client().chat.completions.create(
        model="tiny", messages=USER, tools=[WEATHER], stream=stream, max_tokens=30
    )
    if stream:
        assert list(found)[-1].choices[0].finish_reason in ("stop", "length", "tool_calls")
    else:
        assert found.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_two_clients_at_once(random: Running) -> None:
    """An answer is the same in company: asked one by one, then all together."""
    import concurrent.futures

    def ask(number: int) -> str:
        found = random.client().chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": f"Count to {number}" * (number + 1)}],
            max_tokens=16,
            seed=number,
        )
        message = found.choices[0].message
        return (message.content or "") + getattr(message, "reasoning_content", "")

    alone = [ask(number) for number in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == alone
    assert random.all_pages_are_free()
