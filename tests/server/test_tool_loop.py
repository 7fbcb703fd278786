"""A framework's loop over tools: the model asks, the client computes, the model answers.

By LangChain's client, on `mxc serve` over a compiled model with random weights. Grammars make its
call a call and its answer an answer.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

import mxc
from mxc.artifact.manifest import CHAT_TEMPLATE
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.runtime.text import Text
from tests.server.running import FINAL, TEMPLATE, Running

QUESTION = "How is the weather in Paris?"


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """Weather of a city."""
    return f"It rains in {city}."


class Answer(BaseModel):
    """What the model says at last."""

    umbrella: Literal["yes", "no"]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools")
    write_gpt_oss(folder / "checkpoint", GptOssOptions(num_hidden_layers=2, vocab_size=484))
    (folder / "checkpoint" / CHAT_TEMPLATE).write_text(TEMPLATE)
    mxc.compile(folder / "checkpoint", "cpu", folder / "tiny.mxc", max_sequence_length=1024)
    return folder / "tiny.mxc"


@pytest.fixture(scope="module")
def url(artifact: Path) -> Iterator[str]:
    """Address of `mxc serve`."""
    words = [sys.executable, "-m", "mxc", "serve", str(artifact), "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found = re.search(r"http://\S+", process.stderr.readline())
    assert found, process.stderr.read()
    yield f"{found[0]}/v1"
    process.terminate()
    process.communicate(timeout=60)


def client(url: str, seed: int) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=url,
        api_key="none",
        model="tiny",
        seed=seed,
        temperature=1.0,
        max_tokens=300,
        max_retries=0,
    )


def called(url: str, choice: str) -> AIMessage:
    """An answer that calls; with some seeds a model of random weights thinks without end."""
    for seed in range(16):
        asked = client(url, seed).bind_tools([weather], tool_choice=choice).invoke(QUESTION)
        if asked.response_metadata["finish_reason"] == "tool_calls":
            return asked
    raise AssertionError("no call came to its end")


def answered(url: str, messages: list[BaseMessage]) -> tuple[AIMessage, Answer]:
    """The last answer; as `called`."""
    for seed in range(16):
        asked = client(url, seed).with_structured_output(
            Answer, method="json_schema", include_raw=True
        )
        try:
            found = asked.invoke(messages)
        except openai.LengthFinishReasonError:
            continue
        return found["raw"], found["parsed"]
    raise AssertionError("no answer came to its end")


@pytest.mark.parametrize("choice", ["weather", "any"])
def test_a_compiled_model(artifact: Path, url: str, choice: str) -> None:
    asked = called(url, choice)
    (call,) = asked.tool_calls
    assert call["name"] == "weather"
    assert call["args"]["city"] in ("Paris", "Rome")
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert result.content == f"It rains in {call['args']['city']}."
    raw, answer = answered(url, [HumanMessage(QUESTION), asked, result])
    assert answer.umbrella in ("yes", "no")
    # The model was given the call and its result, in the form of its own template.
    text = Text.load(artifact)
    function = {"name": "weather", "arguments": call["args"]}
    rendered = text.chat(
        [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
            {"role": "tool", "content": result.content},
        ]
    )
    assert raw.usage_metadata is not None
    expected = text.encode(rendered, add_special_tokens=False)
    assert raw.usage_metadata["input_tokens"] == len(expected)


def test_streamed(scripted: Running) -> None:
    """Pieces of a stream, put together by the client."""
    scripted.says(
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}'
    )
    asking = client(f"{scripted.url}/v1", 0)
    pieces = list(asking.bind_tools([weather]).stream(QUESTION))
    asked: Any = pieces[0]
    for piece in pieces[1:]:
        asked += piece
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Rome"})
    scripted.says(FINAL + "Take an umbrella.")
    pieces = list(asking.stream([HumanMessage(QUESTION), asked, weather.invoke(call)]))
    assert "".join(piece.text for piece in pieces) == "Take an umbrella."
