"""Grammars that restrict an answer to a JSON schema, a regular expression or tool calls.

llguidance compiles them. A grammar covers the whole output, including the parts around the answer:
the channels of gpt-oss, the reasoning before the answer, the tags around a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError
from mxc.runtime.completions import harmony, tagged
from mxc.runtime.completions.dialect import HARMONY, TAGGED, AnswerDialect
from mxc.runtime.completions.grammar_tokens import GrammarTokens
from mxc.runtime.text import Text

#: Longest grammar that is compiled, in characters.
LONGEST = 1 << 16
#: How llguidance's matcher ends where the text is complete; every other end is a failure.
_COMPLETE = ("NoExtension", "NoExtensionBias", "EndOfSentence")
_TOO_COMPLEX = ("ParserTooComplex", "LexerTooComplex")
_TEXT = r"TEXT: /(.|\n)*/"
#: What an expression between slashes must have escaped, as given and as written.
_WRITTEN = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
_UNWRITTEN = re.compile(r"\\.|[/\n]", re.DOTALL)


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
        """Raises RequestError where llguidance is missing or cannot use the tokenizer."""
        self._dialect = dialect
        self._tokens = GrammarTokens(text.tokenizer)
        self._tokenizer = self._tokens.compiler_tokenizer(vocabulary, ends)

    def compile(self, constraint: Constraint, chat: str | None) -> LlguidanceGrammar:
        """Compile the grammar of an answer.

        chat: the rendered chat that is answered, None where plain text is continued. Raises
        RequestError, with llguidance's reason, for a schema or expression that it refuses.
        """
        import llguidance

        grammar = _wrapped(self._dialect, self._tokens, constraint, chat)
        if len(grammar) > LONGEST:
            raise RequestError(
                f"the grammar has {len(grammar)} characters; at most {LONGEST} are compiled"
            )
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(f"the schema or expression is not supported: {_said(matcher)}")
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
        """Return which tokens may come next, bool [vocabulary].

        Raises RequestError where the grammar exceeds a limit, RuntimeError where the matcher fails.
        """
        import llguidance.numpy

        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._mask, 0)
        if self._matcher.is_error():
            if self._matcher.stop_reason() in _TOO_COMPLEX:
                raise _too_complex()
            raise RuntimeError(f"the grammar failed: {_said(self._matcher)}")
        bits = np.unpackbits(self._mask.view(np.uint8), bitorder="little")
        allowed: NDArray[np.bool_] = bits[: self._vocabulary].astype(np.bool_)
        return allowed

    def advance(self, token: int) -> bool:
        """Advance the grammar past `token`; return False where `token` completes the text.

        Raises RequestError where the grammar exceeds a limit, RuntimeError where the matcher fails
        or refuses a token that it has allowed.
        """
        taken = self._matcher.consume_token(token)
        stopped = self._matcher.is_stopped()
        reason = self._matcher.stop_reason() if stopped else None
        if reason in _TOO_COMPLEX:
            raise _too_complex()
        if not taken or self._matcher.is_error() or (stopped and reason not in _COMPLETE):
            raise RuntimeError(f"the grammar failed at token {token}: {_said(self._matcher)}")
        return not stopped


def _too_complex() -> RequestError:
    return RequestError("the grammar became too complex for the answer to go on")


def _said(matcher: Any) -> str:
    """Return the beginning of the matcher's error, on one line."""
    return " ".join(matcher.get_error().split())[:300]


def _wrapped(
    dialect: AnswerDialect, tokens: GrammarTokens, constraint: Constraint, chat: str | None
) -> str:
    """Return the grammar of a whole answer, in llguidance's language (Lark)."""
    if chat is not None and dialect.name == HARMONY:
        channel, message = tokens.write(harmony.CHANNEL), tokens.write(harmony.MESSAGE)
        lines = [
            "start: reasoning? answer",
            f'reasoning: {channel} "analysis" {message} TEXT {tokens.write(harmony.END)} '
            f'{tokens.write(harmony.START)} "assistant"',
            _TEXT,
        ]
        if constraint.tools:
            return "\n".join(lines + _choice(constraint.tools, tokens, _harmony_call))
        answer = f'{channel} "final" {message} body {tokens.write(harmony.RETURN)}'
        return "\n".join([*lines, f"answer: {answer}", _body(constraint)])
    lines = ["start: answer"]
    if chat is not None and dialect.name == TAGGED and dialect.thinks:
        lines = _thought(tokens, opened=chat.rstrip().endswith(tagged.THINK))
    if constraint.tools:
        return "\n".join(lines + _choice(constraint.tools, tokens, _tagged_call))
    return "\n".join([*lines, "answer: body", _body(constraint)])


def _thought(tokens: GrammarTokens, *, opened: bool) -> list[str]:
    """Return the rules of an answer that may think first; `opened`: the prompt ends in a thought.

    A thought in text ends with the first end tag. Only rules in lower case can be lazy.
    """
    if opened:
        start = "start: thought GAP? answer"
    else:
        start = f"start: ({tokens.write(tagged.THINK)} thought GAP?)? answer"
    if tokens.has(tagged.THOUGHT):
        thought = [f"thought: TEXT {tokens.write(tagged.THOUGHT)}", _TEXT]
    else:
        thought = [r"thought[lazy]: /(.|\n)*<\/think>/"]
    return [start, *thought, r"GAP: /\s{1,8}/"]


def _choice(
    tools: Sequence[Tool], tokens: GrammarTokens, call: Callable[[GrammarTokens, str, Tool], str]
) -> list[str]:
    names = [f"tool_{number}" for number in range(len(tools))]
    rules = [call(tokens, name, tool) for name, tool in zip(names, tools, strict=True)]
    return ["answer: " + " | ".join(names), *rules]


def _harmony_call(tokens: GrammarTokens, rule: str, tool: Tool) -> str:
    channel, message = tokens.write(harmony.CHANNEL), tokens.write(harmony.MESSAGE)
    head = json.dumps(f"commentary to=functions.{tool.name} ")
    schema = json.dumps(tool.parameters)
    return (
        f'{rule}: {channel} {head} {tokens.write(harmony.CONSTRAIN)} "json" {message} '
        f"{rule}_arguments {tokens.write(harmony.CALLED)}\n{rule}_arguments: %json {schema}"
    )


def _tagged_call(tokens: GrammarTokens, rule: str, tool: Tool) -> str:
    head = json.dumps('\n{"name": ' + json.dumps(tool.name) + ', "arguments": ')
    tail = json.dumps("}\n")
    return (
        f"{rule}: {tokens.write(tagged.TOOL_CALL)} {head} {rule}_arguments {tail} "
        f"{tokens.write(tagged.CALLED)}\n{rule}_arguments: %json " + json.dumps(tool.parameters)
    )


def _body(constraint: Constraint) -> str:
    if constraint.regex is not None:
        expression = _UNWRITTEN.sub(
            lambda found: _WRITTEN.get(found[0], found[0]), constraint.regex
        )
        return f"body: EXPRESSION\nEXPRESSION: /{expression}/"
    return "body: %json " + json.dumps(constraint.json_schema)
