"""The terminal: its width for tables, and text of a model, which might control it."""

from __future__ import annotations

import os

from rich.console import Console

#: Columns of a table that goes to a file or a pipe.
LOG_WIDTH = 220

_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\t\n"}


def table_console() -> Console:
    """Standard output, as wide as the terminal or as COLUMNS says; else wide, as logs may be."""
    console = Console()
    known = console.is_terminal or "COLUMNS" in os.environ
    return console if known else Console(width=LOG_WIDTH)


def visible(text: str) -> str:
    """The text with control characters written as \\x1b and the like; tabs and line ends stay."""
    return text.translate(_CONTROLS)
