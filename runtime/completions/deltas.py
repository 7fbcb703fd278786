"""Pieces of an answer as its parser knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

#: Kinds of text in an answer, which are also where its parser stands.
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
    """Takes an answer apart while it is generated. Accepts whatever a model may generate."""

    @property
    def kind(self) -> str:
        """The kind of the text that comes now: CONTENT, REASONING or CALL."""

    def text(self, piece: str) -> list[Delta]:
        """More text."""

    def marker(self, name: str) -> list[Delta]:
        """A special token, by its content."""

    def finish(self) -> list[Delta]:
        """The answer has ended, maybe in the middle of something."""


class PlainParser:
    """An answer without structure."""

    kind = CONTENT

    def text(self, piece: str) -> list[Delta]:
        """All of it is content."""
        return [Delta(CONTENT, piece)] if piece else []

    def marker(self, name: str) -> list[Delta]:
        """Special tokens are no content."""
        return []

    def finish(self) -> list[Delta]:
        """Nothing is held back."""
        return []
