"""Prompts in, streams of text out: stop strings, grammars, chats, several readers."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mxc.errors import RequestError
from mxc.runtime.completions.constraints import Constraint, Tool
from mxc.runtime.completions.stream import AnswerStream
from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.engine.request import Sampling
from tests.runtime.engine.scripted_model import ScriptedModel, script_of

Make = Callable[..., TextModel]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
USER = [{"role": "user", "content": "What is the capital of France?"}]


def scripted(make: Make, files: Path, answer: str) -> TextModel:
    model = make(files, ScriptedModel(vocabulary=484))
    ends = model.text.encode("<|return|>")
    script_of(model).answer = model.text.encode(answer) + ends
    return model


def test_a_chat_of_gpt_oss(text_model: Make, harmony_files: Path) -> None:
    answer = "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final"
    model = scripted(text_model, harmony_files, answer + "<|message|>It is Paris – übrigens.")
    whole = model.start(model.chat(USER)).result()
    assert (whole.text, whole.reasoning) == ("It is Paris – übrigens.", "Easy.")
    assert whole.finish_reason == "stop"
    assert whole.tokens == list(script_of(model).answer)
    kinds = {k for k, d in zip(whole.kinds, whole.drawn, strict=True) if d.token in model.ends}
    assert kinds == {None}


@pytest.mark.parametrize("stop", ["Par", "is Paris", "s P"])
def test_stop_strings_end_the_content(text_model: Make, harmony_files: Path, stop: str) -> None:
    start = "<|channel|>analysis<|message|>It is Paris.<|end|><|start|>assistant<|channel|>final"
    model = scripted(text_model, harmony_files, start + "<|message|>So it is Paris. And on it goes")
    whole = model.start(model.chat(USER), stop=[stop]).result()
    assert whole.text == "So it is Paris".split(stop)[0]
    assert whole.reasoning == "It is Paris."
    assert whole.finish_reason == "stop"
    assert len(whole.tokens) < len(script_of(model).answer), "the model was not asked further"


def test_plain_text_goes_on(text_model: Make, harmony_files: Path) -> None:
    model = scripted(text_model, harmony_files, " upon a time")
    stream = model.start(model.plain("Once"))
    assert "".join(piece.text for piece in stream) == " upon a time"
    assert stream.completion.finish_reason == "stop"


def test_special_tokens_can_be_text(text_model: Make, harmony_files: Path) -> None:
    model = scripted(text_model, harmony_files, "<|channel|>final<|message|>Hi")
    whole = model.start(model.chat(USER), special=True).result()
    assert whole.text == "<|channel|>final<|message|>Hi<|return|>"


def test_json_of_a_schema(text_model: Make, harmony_files: Path) -> None:
    model = text_model(harmony_files)
    constraint = Constraint(json_schema=SCHEMA)
    for prompt, least in ((model.plain("x"), 4), (model.chat(USER), 1)):
        ended = 0
        for seed in range(4):
            sampling = Sampling(temperature=1.0, seed=seed)
            whole = model.start(prompt, sampling=sampling, constraint=constraint).result()
            if whole.finish_reason == "length":
                continue  # a long thought: the grammar of a chat lets the model think first
            ended += 1
            found = json.loads(whole.text)
            assert found["city"] in ("Paris", "Rome")
            assert found["days"] <= 9
        assert ended >= least


def test_calls_that_are_required(text_model: Make, harmony_files: Path) -> None:
    model = text_model(harmony_files)
    tools = (Tool("weather", SCHEMA), Tool("time", {"type": "object", "properties": {}}))
    ended = 0
    for seed in range(6):
        whole = model.start(
            model.chat(USER),
            tools=True,
            constraint=Constraint(tools=tools),
            sampling=Sampling(temperature=1.0, seed=seed),
        ).result()
        if whole.finish_reason == "stop":
            ended += 1
            (call,) = whole.tool_calls
            assert call.name in ("weather", "time")
            assert isinstance(json.loads(call.arguments), dict)
    assert ended


def test_a_regular_expression(text_model: Make, harmony_files: Path) -> None:
    (harmony_files / "plain").mkdir(exist_ok=True)
    plain = harmony_files / "plain"
    (plain / "tokenizer.json").write_bytes((harmony_files / "tokenizer.json").read_bytes())
    model = text_model(plain)
    expression = r"[a-c]{3}/\d+x"
    for seed in range(4):
        whole = model.start(
            model.plain("x"),
            constraint=Constraint(regex=expression),
            sampling=Sampling(temperature=1.0, seed=seed),
        ).result()
        assert re.fullmatch(expression, whole.text)
        assert whole.finish_reason == "stop"


def test_refusals(text_model: Make, harmony_files: Path) -> None:
    model = text_model(harmony_files)
    with pytest.raises(RequestError, match="not supported"):
        model.start(model.chat(USER), constraint=Constraint(regex="(["))
    with pytest.raises(RequestError, match="not supported"):
        model.start(model.chat(USER), constraint=Constraint(json_schema={"type": "nothing"}))
    with pytest.raises(RequestError, match="must not be empty"):
        model.start(model.chat(USER), stop=[""])
    with pytest.raises(RequestError, match="leaves no room"):
        model.start(model.plain("x" * 5000))


def test_streams_are_read_in_threads_and_event_loops(text_model: Make, harmony_files: Path) -> None:
    model = text_model(harmony_files)
    prompts = [model.plain(text) for text in ("one", "two", "three", "four")]
    expected = [model.start(prompt, max_tokens=20).result().tokens for prompt in prompts]

    async def read(stream: AnswerStream) -> list[int]:
        async for _ in stream:
            pass
        return stream.completion.tokens

    async def together() -> list[list[int]]:
        return await asyncio.gather(*(read(model.start(p, max_tokens=20)) for p in prompts))

    assert asyncio.run(together()) == expected
    streams = [model.start(prompt, max_tokens=20) for prompt in prompts]
    threads = [threading.Thread(target=stream.result) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [stream.completion.tokens for stream in streams] == expected


def test_leaving_a_stream_cancels_it(text_model: Make, harmony_files: Path) -> None:
    model = text_model(harmony_files)
    with model.start(model.plain("one")) as stream:
        next(iter(stream))
    whole = stream.result()
    assert whole.finish_reason in ("cancelled", "length", "stop")
    assert all(pages.used == 0 for pages in model.engine.counts.store.pages)


def test_an_error_of_the_engine_reaches_the_reader(
    text_model: Make, harmony_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = text_model(harmony_files)

    def broken(plan: object) -> np.ndarray:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(model.engine.model, "step", broken)
    with pytest.raises(RuntimeError, match="the device is gone"):
        model.start(model.plain("one")).result()
