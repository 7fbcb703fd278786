"""A language model with text prompts and text answers: engine, tokenizer and chat format."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxc.errors import RequestError
from mxc.runtime.completions.constraints import Constraint, Constraints
from mxc.runtime.completions.deltas import AnswerParser, PlainParser
from mxc.runtime.completions.dialect import dialect_of
from mxc.runtime.completions.stream import AnswerStream
from mxc.runtime.completions.writer import Writer
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.request import Grammar, Outcome, Request, Sampling
from mxc.runtime.text import Text


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue. `chat`: the rendered chat that they encode, None for plain text."""

    tokens: tuple[int, ...]
    chat: str | None = None


class TextModel:
    """Turns prompts into streams of text. May be used from several threads."""

    def __init__(self, engine: Engine, text: Text, ends: Sequence[int]) -> None:
        """`ends`: the model's end-of-sequence tokens."""
        self.engine = engine
        self.text = text
        self.dialect = dialect_of(text)
        self.ends = frozenset(ends) | self.dialect.ends
        self._constraints: Constraints | None = None
        self._lock = threading.Lock()

    def chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> Prompt:
        """Return the prompt of a chat, rendered by `Text.chat`, whose errors it raises."""
        rendered = self.text.chat([dict(message) for message in messages], **variables)
        return Prompt(tuple(self.text.encode(rendered, add_special_tokens=False)), rendered)

    def plain(self, text: str) -> Prompt:
        """Return the prompt of plain text, which is continued without a chat format."""
        return Prompt(tuple(self.text.encode(text)))

    def start(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        tools: bool = False,
        one_call: bool = False,
        constraint: Constraint | None = None,
        special: bool = False,
        past_end: bool = False,
        on_end: Callable[[Outcome], None] | None = None,
    ) -> AnswerStream:
        """Queue a prompt and return the stream of its answer.

        max_tokens: None for as many as fit. tools: whether calls are recognized in a chat's answer.
        one_call: the answer ends after its first call.
        special: special tokens are text, and answers are not parsed. past_end: an answer continues
        after an end-of-sequence token. on_end: called with the outcome, on the engine's thread.
        Raises the errors of Engine.submit, and RequestError for an invalid constraint or stop
        string.
        """
        fits = self.engine.longest - len(prompt.tokens) + 1
        if max_tokens is None and fits < 1:
            raise RequestError(
                f"a prompt of {len(prompt.tokens)} tokens leaves no room: a sequence may have "
                f"{self.engine.longest}"
            )
        stream = AnswerStream()
        parser: AnswerParser = PlainParser()
        parsed = prompt.chat is not None and not special
        if parsed:
            parser = self.dialect.parser(prompt.chat or "", tools=tools)
        grammar: Grammar | None = None
        if constraint is not None:
            grammar = self._compiler().compile(constraint, prompt.chat)
        writer = Writer(
            self.text,
            parser,
            stream,
            markers=self.dialect.markers if parsed else {},
            ends=frozenset() if special else self.ends,
            stop=stop,
            special=special,
            one_call=one_call,
            on_end=on_end,
        )
        request = Request(
            prompt=prompt.tokens,
            max_tokens=fits if max_tokens is None else max_tokens,
            listener=writer,
            ends=frozenset() if past_end else self.ends,
            sampling=sampling or Sampling(),
            grammar=grammar,
        )
        stream.submitted(self.engine.submit(request))
        return stream

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def _compiler(self) -> Constraints:
        with self._lock:  # created once, because that reads the whole vocabulary
            if self._constraints is None:
                vocabulary = self.engine.model.vocabulary
                self._constraints = Constraints(
                    self.text, self.dialect, vocabulary, sorted(self.ends)
                )
            return self._constraints
