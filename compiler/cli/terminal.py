"""Text of a model on a terminal, which would obey what is no text."""

from __future__ import annotations

_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\t\n"}


def visible(text: str) -> str:
    """The text with control characters written as \\x1b and the like; tabs and line ends stay."""
    return text.translate(_CONTROLS)
