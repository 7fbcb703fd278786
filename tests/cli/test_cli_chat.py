"""A conversation in the terminal."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mxc.compiler.checkpoints.synthetic.tokenizer import write_tokenizer
from mxc.compiler.cli.chat import Conversation
from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.request import Sampling
from mxc.runtime.text import Text
from tests.runtime.engine.paged_model import PagedModel
from tests.runtime.engine.scripted_model import ScriptedModel

FINAL = "<|channel|>final<|message|>"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path, 484)
    return tmp_path


@pytest.fixture
def model(files: Path) -> Iterator[TextModel]:
    steps = ScriptedModel(vocabulary=484)
    made = TextModel(Engine(steps), Text.load(files), ())
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    text = made.text
    steps.answer = text.encode(thought + FINAL + "It is Paris.") + text.encode("<|return|>")
    yield made
    made.close()


def talk(chat: Conversation, *lines: str | type[BaseException]) -> None:
    typed = iter(lines)

    def read() -> str:
        line = next(typed, EOFError)
        if isinstance(line, str):
            return line
        raise line

    chat.run(read)


def test_messages_and_commands(model: TextModel, tmp_path: Path) -> None:
    shown: list[str] = []
    chat = Conversation(model, Sampling(), "Be brief.", show=shown.append)
    file = tmp_path / "saved.json"
    talk(chat, "What is it?", "", KeyboardInterrupt, f"/save {file}", "/nothing", "/help")
    text = "".join(shown)
    assert "Hm.It is Paris." in text
    assert "tokens/s]" in text
    assert "/nothing is no command" in text
    assert json.loads(file.read_text()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "It is Paris."},
    ]
    talk(chat, "/reset", "/exit", "never read")
    assert chat.messages == [{"role": "system", "content": "Be brief."}]


def test_the_model_is_told_what_was_said(model: TextModel) -> None:
    chat = Conversation(model, Sampling(), show=lambda text: None)
    talk(chat, "one", "two")
    assert [message["content"] for message in chat.messages] == [
        "one", "It is Paris.", "two", "It is Paris.",
    ]  # fmt: skip


def test_an_interrupt_stops_the_answer_alone(files: Path) -> None:
    steps = PagedModel(vocabulary=484, context=500, full_pages=300, window_pages=60)
    model = TextModel(Engine(steps), Text.load(files), ())
    shown: list[str] = []
    left = [3]

    def show(text: str) -> None:
        shown.append(text)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    chat = Conversation(model, Sampling(), show=show)
    talk(chat, "Go on", "/reset")
    assert any("[stopped]" in text for text in shown)
    model.close()


def test_what_does_not_fit_is_a_line(model: TextModel) -> None:
    shown: list[str] = []
    chat = Conversation(model, Sampling(), show=shown.append)
    talk(chat, "word " * 3000)
    assert shown[-1].startswith("error: a prompt of")
    assert chat.messages == []
