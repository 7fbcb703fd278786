"""Grammars that restrict an answer to a JSON schema, a regular expression or tool calls.

llguidance compiles them. A grammar covers the whole output, including the parts around the answer:
the channels of gpt-oss, the reasoning before the answer, the tags around a call.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError
from mxc.runtime.completions import harmony, tagged
from mxc.runtime.completions.dialect import HARMONY, TAGGED, AnswerDialect
from mxc.runtime.text import Text

#: Longest grammar that is compiled, in characters.
LONGEST = 1 << 16


@dataclass(frozen=True)
class Tool:
    """A function that may be called; `parameters` is a JSON schema."""

    name: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Constraint:
    """The restriction of an answer: exactly one of `json_schema`, `regex` and `tools`.

    With `tools`, the answer is a call of one of them. A schema of {} allows any JSON.
    """

    json_schema: Any = None
    regex: str | None = None
    tools: tuple[Tool, ...] = ()


class Constraints:
    """Compiles constraints for one tokenizer."""

    def __init__(
        self, text: Text, dialect: AnswerDialect, vocabulary: int, ends: Sequence[int]
    ) -> None:
        """Raises RequestError where llguidance is not installed."""
        try:
            import llguidance
        except ImportError:
            raise RequestError(
                "grammars for answers need llguidance; pip install 'mxc[serve]'"
            ) from None
        self._dialect = dialect
        stops = list(ends) or None
        self._tokenizer = llguidance.LLTokenizer(
            text.tokenizer.to_str(), n_vocab=vocabulary, eos_token=stops
        )

    def compile(self, constraint: Constraint, chat: str | None) -> LlguidanceGrammar:
        """Compile the grammar of an answer.

        chat: the rendered chat that is answered, None where plain text is continued. Raises
        RequestError, with llguidance's reason, for a schema or expression that it refuses.
        """
        import llguidance

        grammar = _wrapped(self._dialect, constraint, chat)
        if len(grammar) > LONGEST:
            raise RequestError(
                f"the grammar has {len(grammar)} characters; at most {LONGEST} are compiled"
            )
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            said = " ".join(matcher.get_error().split())[:300]
            raise RequestError(f"the schema or expression is not supported: {said}")
        return LlguidanceGrammar(matcher, self._tokenizer.vocab_size)


class LlguidanceGrammar:
    """The engine's Grammar over a matcher of llguidance."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        """Start at the beginning of an answer."""
        import llguidance.numpy

        self._matcher = matcher
        self._vocabulary = vocabulary
        self._mask = llguidance.numpy.allocate_token_bitmask(1, vocabulary)

    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens may come next, bool [vocabulary]."""
        import llguidance.numpy

        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask, 0)
        if self._matcher.is_error():
            raise RequestError("the grammar became too complex for the answer to go on")
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
        allowed: NDArray[np.bool_] = bits[: self._vocabulary].astype(np.bool_)
        return allowed

    def advance(self, token: int) -> bool:
        """Advance the grammar past `token`; return False where `token` completes the text."""
        self._matcher.consume_token(token)
        return not self._matcher.is_stopped()


def _wrapped(dialect: AnswerDialect, constraint: Constraint, chat: str | None) -> str:
    """Return the grammar of a whole answer, in llguidance's language (Lark)."""
    if chat is not None and dialect.name == HARMONY:
        lines = [
            "start: reasoning? answer",
            f'reasoning: {harmony.CHANNEL} "analysis" {harmony.MESSAGE} TEXT {harmony.END} '
            f'{harmony.START} "assistant"',
            r"TEXT: /(.|\n)*/",
        ]
        if constraint.tools:
            return "\n".join(lines + _choice(constraint.tools, _harmony_call))
        head = f'{harmony.CHANNEL} "final" {harmony.MESSAGE}'
        return "\n".join([*lines, f"answer: {head} body {harmony.RETURN}", _body(constraint)])
    lines = ["start: answer"]
    if chat is not None and dialect.name == TAGGED and dialect.thinks:
        thought = r"THOUGHT[lazy]: /(.|\n)*<\/think>\s*/"
        if chat.rstrip().endswith(tagged.THINK):
            lines = ["start: THOUGHT answer", thought]
        else:
            lines = ['start: ("<think>" THOUGHT)? answer', thought]
    if constraint.tools:
        return "\n".join(lines + _choice(constraint.tools, _tagged_call))
    return "\n".join([*lines, "answer: body", _body(constraint)])


def _choice(tools: Sequence[Tool], call: Any) -> list[str]:
    names = [f"tool_{number}" for number in range(len(tools))]
    rules = [call(name, tool) for name, tool in zip(names, tools, strict=True)]
    return ["answer: " + " | ".join(names), *rules]


def _harmony_call(rule: str, tool: Tool) -> str:
    head = json.dumps(f"commentary to=functions.{tool.name} ")
    schema = json.dumps(tool.parameters)
    return (
        f'{rule}: {harmony.CHANNEL} {head} {harmony.CONSTRAIN} "json" {harmony.MESSAGE} '
        f"{rule}_arguments {harmony.CALLED}\n{rule}_arguments: %json {schema}"
    )


def _tagged_call(rule: str, tool: Tool) -> str:
    head = json.dumps(tagged.TOOL_CALL + '\n{"name": ' + json.dumps(tool.name) + ', "arguments": ')
    tail = json.dumps("}\n" + tagged.CALLED)
    return f"{rule}: {head} {rule}_arguments {tail}\n{rule}_arguments: %json " + json.dumps(
        tool.parameters
    )


def _body(constraint: Constraint) -> str:
    if constraint.regex is not None:
        expression = constraint.regex.replace("/", r"\/").replace("\n", r"\n")
        return f"body: EXPRESSION\nEXPRESSION: /{expression}/"
    return "body: %json " + json.dumps(constraint.json_schema)
