"""The reason why a matcher does not accept an operation. A matcher returns its record, or a
reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """A clause that states what was wanted and what was found, without a full stop: "K = 48 is no
    multiple of 32". In it, "it" stands for the operation."""

    text: str

    def __post_init__(self) -> None:
        """Raise ValueError for an empty text."""
        if not self.text:
            raise ValueError("a reason needs a text")
