"""Pieces of an answer, classified by kind, and the interface of answer parsers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

#: Kinds of text in an answer, which are also the states of its parser.
CONTENT, REASONING, CALL, ARGUMENTS = "content", "reasoning", "call", "arguments"


@dataclass(frozen=True)
class Delta:
    """A piece of text of one kind.

    "call" begins a call of the function that `text` names; "arguments" continues the JSON text of
    its arguments. `call` counts the calls of an answer from 0.
    """

    kind: str
    text: str
    call: int | None = None


class AnswerParser(Protocol):
    """Splits an answer into deltas while it is generated. Accepts any output of a model."""

    @property
    def kind(self) -> str:
        """The kind of the text that is parsed at the moment: CONTENT, REASONING or CALL."""

    def text(self, piece: str) -> list[Delta]:
        """Parse more text; return the deltas that it completes."""

    def marker(self, name: str) -> list[Delta]:
        """Parse a special token, given by its content."""

    def finish(self) -> list[Delta]:
        """End the answer, which may be incomplete; return the deltas that were held back."""


class PlainParser:
    """Parses an answer without structure: all text is content."""

    kind = CONTENT

    def text(self, piece: str) -> list[Delta]:
        """Return all text as content."""
        return [Delta(CONTENT, piece)] if piece else []

    def marker(self, name: str) -> list[Delta]:
        """Return nothing: special tokens are not content."""
        return []

    def finish(self) -> list[Delta]:
        """Return nothing: this parser holds no text back."""
        return []
