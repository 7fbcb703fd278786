"""Responses as the official client sees them."""

import json

import openai
import pytest

from tests.runtime.engine.scripted_model import script_of
from tests.server.running import FINAL, THOUGHT, Running

WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<|channel|>commentary to=functions.weather<|message|>{"city": "Paris"}'


def test_text(scripted: Running) -> None:
    scripted.says(THOUGHT + FINAL + "It is Paris.")
    found = scripted.client().responses.create(
        model="tiny", input="What is it?", instructions="Be brief.", reasoning={"effort": "low"}
    )
    assert found.output_text == "It is Paris."
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.output[0].content[0].text == "Let me see."
    assert found.status == "completed"
    assert found.usage.output_tokens == len(script_of(scripted.model).answer)
    assert found.usage.input_tokens_details.cached_tokens == 0


def test_a_stream(scripted: Running) -> None:
    scripted.says(THOUGHT + FINAL + "It is Paris.")
    client = scripted.client()
    events = list(client.responses.create(model="tiny", input="What is it?", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "It is Paris."
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "It is Paris."
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in last.response.output]
    # The client puts the events together by their indices.
    with client.responses.stream(model="tiny", input="What is it?") as stream:
        assert stream.get_final_response().output_text == "It is Paris."


def test_a_loop_of_calls(scripted: Running) -> None:
    scripted.says(CALL)
    client = scripted.client()
    items = [{"role": "user", "content": "How is the weather?"}]
    for stream in (False, True):
        if stream:
            with client.responses.stream(model="tiny", input=items, tools=[WEATHER]) as events:
                found = events.get_final_response()
        else:
            found = client.responses.create(model="tiny", input=items, tools=[WEATHER])
        (call,) = found.output
        assert (call.type, call.name) == ("function_call", "weather")
        assert json.loads(call.arguments) == {"city": "Paris"}
    scripted.says(FINAL + "Sunny.")
    items += [call.model_dump(exclude_none=True, exclude={"parsed_arguments"})]
    items += [{"type": "function_call_output", "call_id": call.call_id, "output": "sun"}]
    again = client.responses.create(model="tiny", input=items, tools=[WEATHER])
    assert again.output_text == "Sunny."
    expected = scripted.model.chat(
        [
            {"role": "user", "content": "How is the weather?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}],
            },
            {"role": "tool", "content": "sun"},
        ],
        tools=[{"type": "function", "function": {"name": "weather", "description": "",
                "parameters": WEATHER["parameters"]}}],
    )  # fmt: skip
    assert again.usage.input_tokens == len(expected.tokens)


def test_a_schema_and_a_limit(random: Running) -> None:
    properties = {"a": {"type": "integer", "maximum": 9, "minimum": 0}}
    schema = {"type": "object", "properties": properties, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    found = [
        random.client().responses.create(
            model="tiny", input=f"x{number}", text=text, max_output_tokens=120
        )
        for number in range(10)
    ]
    whole = [each for each in found if each.status == "completed"]
    assert whole
    assert all(0 <= json.loads(each.output_text)["a"] <= 9 for each in whole)
    # Without the schema the model may say the end token first: it draws at random.
    cut = random.client().responses.create(model="tiny", input="x", text=text, max_output_tokens=2)
    assert cut.status == "incomplete"
    assert cut.incomplete_details.reason == "max_output_tokens"
    (message,) = cut.output
    assert message.status == "incomplete"


@pytest.mark.parametrize(
    ("answer", "words", "expected"),
    [
        (FINAL + "It is Paris.", 1, [("message", "completed")]),
        (FINAL + "It is Paris.", -2, [("message", "incomplete")]),
        (THOUGHT + FINAL + "Paris.", -2, [("reasoning", "completed"), ("message", "incomplete")]),
        ("<|channel|>analysis<|message|>Let me see.", -2, [("reasoning", "incomplete")]),
        (CALL, -2, [("function_call", "incomplete")]),
    ],
)
def test_the_item_that_is_cut_off_is_incomplete(
    scripted: Running, answer: str, words: int, expected: list[tuple[str, str]]
) -> None:
    scripted.says(answer)
    most = len(script_of(scripted.model).answer) + words
    client = scripted.client()
    asked = {"model": "tiny", "input": "x", "tools": [WEATHER], "max_output_tokens": most}
    found = client.responses.create(**asked)
    assert [(item.type, item.status) for item in found.output] == expected
    events = list(client.responses.create(**asked, stream=True))
    last = events[-1]
    assert last.type == f"response.{expected[-1][1]}"
    assert [(item.type, item.status) for item in last.response.output] == expected
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.type, item.status) for item in done] == expected


def test_the_request_is_echoed(scripted: Running) -> None:
    scripted.says(FINAL + "Yes.")
    create = scripted.client().responses.create
    plain = create(model="tiny", input="x")
    assert (plain.instructions, plain.metadata, plain.tool_choice) == (None, {}, "auto")
    assert plain.parallel_tool_calls is True
    asked = {
        "model": "tiny",
        "input": "x",
        "instructions": "Be brief.",
        "metadata": {"run": "7"},
        "tools": [WEATHER],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "truncation": "disabled",
        "include": ["reasoning.encrypted_content"],
    }
    events = list(create(**asked, stream=True))
    for found in (create(**asked), events[0].response, events[-1].response):
        assert found.instructions == "Be brief."
        assert found.metadata == {"run": "7"}
        assert found.tool_choice == "none"
        assert found.parallel_tool_calls is False
        assert [tool.name for tool in found.tools] == ["weather"]


def test_a_choice_of_a_function_is_echoed(random: Running) -> None:
    choice = {"type": "function", "name": "weather"}
    found = random.client().responses.create(
        model="tiny", input="x", tools=[WEATHER], tool_choice=choice, max_output_tokens=2
    )
    assert found.tool_choice.model_dump() == choice


@pytest.mark.parametrize(
    ("fields", "said", "param"),
    [
        ({"include": ["message.output_text.logprobs"]}, "not supported", "include"),
        ({"include": [3]}, "not supported", "include"),
        ({"include": "x"}, "must be a list", "include"),
        ({"truncation": "auto"}, "not supported", "truncation"),
        ({"metadata": 3}, "must be an object", "metadata"),
        ({"parallel_tool_calls": 3}, "true or false", "parallel_tool_calls"),
        (
            {
                "text": {"format": {"type": "json_object"}},
                "tools": [WEATHER],
                "tool_choice": "required",
            },
            "cannot be combined",
            "text.format",
        ),
    ],
)
def test_what_is_refused(
    scripted: Running, fields: dict[str, object], said: str, param: str
) -> None:
    scripted.says(FINAL + "Yes.")
    with pytest.raises(openai.BadRequestError, match=said) as refused:
        scripted.client().responses.create(model="tiny", input="x", extra_body=fields)
    assert refused.value.param == param
