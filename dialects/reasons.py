"""Why a matcher does not take an operation. A matcher returns its record, or a reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """A clause that says what was wanted and what was found, without an end: "K = 48 is no multiple
    of 32". Its subject "it" is the operation."""

    text: str

    def __post_init__(self) -> None:
        """Refuse a reason that says nothing."""
        if not self.text:
            raise ValueError("a reason needs a text")
