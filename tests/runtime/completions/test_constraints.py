"""Grammars of answers whose tags are special tokens, other added tokens, or plain text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER
from mxc.compiler.checkpoints.synthetic.tokenizer import write_tokenizer
from mxc.errors import RequestError
from mxc.runtime.completions import tagged
from mxc.runtime.completions.constraints import Constraint, LlguidanceGrammar, Tool
from mxc.runtime.completions.stream import Completion
from mxc.runtime.completions.text_model import TextModel
from mxc.runtime.engine.request import Sampling
from tests.runtime.engine.scripted_model import ScriptedModel, script_of

Make = Callable[..., TextModel]
USER = [{"role": "user", "content": "How is it?"}]
TEMPLATE = """\
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}assistant: {{ '<think>\n' if opened }}{# <tool_call> #}"""
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["<tool_call>", "no"]}},
    "required": ["a"],
    "additionalProperties": False,
}
THOUGHTFUL = Sampling(temperature=1.0, seed=1)


@pytest.fixture(params=[None, False, True], ids=["text", "added", "special"])
def tags(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Tokenizer and template of a model that thinks and calls, with tags of each kind."""
    write_tokenizer(tmp_path, 300)
    tokenizer = Tokenizer.from_file(str(tmp_path / TOKENIZER))
    stored = json.loads(tokenizer.to_str())
    harmony = {token["content"] for token in stored["added_tokens"]} - {"<|endoftext|>"}
    stored["added_tokens"] = [t for t in stored["added_tokens"] if t["content"] not in harmony]
    for name in harmony:
        stored["model"]["vocab"][f"Ġ{name.strip('<|>')}"] = stored["model"]["vocab"].pop(name)
    tokenizer = Tokenizer.from_str(json.dumps(stored))
    if request.param is not None:
        tokenizer.add_tokens(
            [AddedToken(tag, special=request.param, normalized=False) for tag in tagged.TAGS]
        )
    (tmp_path / TOKENIZER).write_text(tokenizer.to_str())
    (tmp_path / CHAT_TEMPLATE).write_text(TEMPLATE)
    return tmp_path


def said(
    make: Make, files: Path, answer: str, constraint: Constraint, **options: Any
) -> tuple[TextModel, Completion]:
    """What a model says that wants to say `answer`, under a constraint."""
    size = Tokenizer.from_file(str(files / TOKENIZER)).get_vocab_size()
    model = make(files, ScriptedModel(vocabulary=size))
    script_of(model).answer = model.text.encode(answer)
    prompt = model.chat(USER, **options)
    return model, model.start(prompt, constraint=constraint, tools=True).result()


@pytest.mark.parametrize("one_call", [False, True])
def test_an_answer_may_end_after_its_first_call(
    text_model: Make, tags: Path, one_call: bool
) -> None:
    size = Tokenizer.from_file(str(tags / TOKENIZER)).get_vocab_size()
    model = text_model(tags, ScriptedModel(vocabulary=size))
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    answer = script_of(model).answer = model.text.encode(f"Well:{call}\n{call}")
    found = model.start(
        model.chat(USER), max_tokens=len(answer), tools=True, one_call=one_call
    ).result()
    assert [each.name for each in found.tool_calls] == ["f"] * (1 if one_call else 2)
    assert found.text.strip() == "Well:"
    assert found.finish_reason == ("stop" if one_call else "length")


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("gap", ["", "\n\n"])
def test_a_schema_after_a_thought(text_model: Make, tags: Path, opened: bool, gap: str) -> None:
    body = json.dumps({"a": "no"})
    answer = ("" if opened else "<think>") + f"Well: a < b?</think>{gap}{body}"
    _, whole = said(text_model, tags, answer, Constraint(json_schema=SCHEMA), opened=opened)
    assert (whole.text, whole.reasoning) == (body, "Well: a < b?")
    assert whole.finish_reason == "stop"


def test_a_schema_without_a_thought(text_model: Make, tags: Path) -> None:
    body = json.dumps({"a": "no"})
    _, whole = said(text_model, tags, body, Constraint(json_schema=SCHEMA))
    assert (whole.text, whole.reasoning) == (body, "")
    assert whole.finish_reason == "stop"


def test_a_call_that_is_required(text_model: Make, tags: Path) -> None:
    wanted = (
        '<think>Yes.</think>\n<tool_call>\n{"name": "f", "arguments": {"a": "no"}}\n</tool_call>'
    )
    constraint = Constraint(tools=(Tool("f", SCHEMA), Tool("g", SCHEMA)))
    model, whole = said(text_model, tags, wanted, constraint)
    assert [(call.name, call.arguments) for call in whole.tool_calls] == [("f", '{"a": "no"}')]
    assert (whole.text, whole.reasoning) == ("", "Yes.")
    assert whole.tokens == list(script_of(model).answer)


@pytest.mark.parametrize("expression", ["ab<tool_call>b", "<tool_call>z</tool_call>", "<think>"])
def test_expressions_with_tags(text_model: Make, tags: Path, expression: str) -> None:
    model = text_model(tags)
    prompt = model.plain("x")
    for sampling in (Sampling(), THOUGHTFUL):
        whole = model.start(prompt, constraint=Constraint(regex=expression), sampling=sampling)
        assert whole.result().text == expression
        assert whole.completion.finish_reason == "stop"


def test_a_tag_in_a_schema(text_model: Make, tags: Path) -> None:
    model = text_model(tags)
    schema = {"const": "a<tool_call>b<|endoftext|>"}
    whole = model.start(model.plain("x"), constraint=Constraint(json_schema=schema)).result()
    assert json.loads(whole.text) == schema["const"]


@pytest.mark.parametrize(
    ("expression", "text"),
    [(r"a\/b", "a/b"), ("a/b", "a/b"), (r"a\\/b", r"a\/b"), ("a\nb", "a\nb"), ("a\\\nb", "a\nb")],
)
def test_slashes_and_lines_in_expressions(
    text_model: Make, harmony_files: Path, expression: str, text: str
) -> None:
    model = text_model(harmony_files)
    whole = model.start(model.plain("x"), constraint=Constraint(regex=expression)).result()
    assert whole.text == text


class _Failing:
    """A matcher that fails at the next token in one of the ways of llguidance."""

    def __init__(self, reason: str, *, taken: bool = False, error: bool = True) -> None:
        self._reason, self._taken, self._error = reason, taken, error

    def consume_token(self, token: int) -> bool:
        return self._taken

    def is_stopped(self) -> bool:
        return self._reason != "NotStopped"

    def is_error(self) -> bool:
        return self._error

    def stop_reason(self) -> str:
        return self._reason

    def get_error(self) -> str:
        return "token 5\ndoes not satisfy the grammar"


@pytest.mark.parametrize(
    "matcher",
    [
        _Failing("InternalError"),
        _Failing("NotStopped", error=False),
        _Failing("NoExtension"),
        _Failing("MaxTokensTotal", taken=True, error=False),
    ],
)
def test_a_matcher_that_fails_completes_nothing(matcher: _Failing) -> None:
    with pytest.raises(RuntimeError, match="the grammar failed at token 5: token 5 does not"):
        LlguidanceGrammar(matcher, 40).advance(5)


@pytest.mark.parametrize("reason", ["ParserTooComplex", "LexerTooComplex"])
def test_a_grammar_that_becomes_too_complex_is_refused(reason: str) -> None:
    with pytest.raises(RequestError, match="too complex"):
        LlguidanceGrammar(_Failing(reason), 40).advance(5)
