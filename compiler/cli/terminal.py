"""Width of the terminal for tables, and escaping of control characters in model output."""

from __future__ import annotations

import os

from rich.console import Console

#: Width in columns of a table that is written to a file or a pipe.
LOG_WIDTH = 220

_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\t\n"}


def table_console() -> Console:
    """Return a console as wide as the terminal or COLUMNS; otherwise LOG_WIDTH columns wide."""
    console = Console()
    known = console.is_terminal or "COLUMNS" in os.environ
    return console if known else Console(width=LOG_WIDTH)


def visible(text: str) -> str:
    """Return the text with control characters escaped as \\x1b; tabs and line ends are kept."""
    return text.translate(_CONTROLS)
