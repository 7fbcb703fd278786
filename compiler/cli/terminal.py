"""What all tables share: their width, names that are shortened, prose that is wrapped.

Also the escaping of control characters in model output.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.text import Text

#: Width in columns of a table that is written to a file or a pipe.
LOG_WIDTH = 100
#: Width of a console for which nothing is shortened or wrapped.
_UNLIMITED = 10_000
#: Width in columns down to which a name may be shortened.
_SHORTEST = 16
_CONTROLS = {n: f"\\x{n:02x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\t\n"}

#: The option of all commands that print tables.
Wide = Annotated[
    bool,
    typer.Option(
        "--wide",
        help="Shorten and wrap nothing: for a file, or less -S.",
        show_default=f"the terminal's width, or {LOG_WIDTH} columns",
    ),
]


def table_console(*, wide: bool = False, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal or COLUMNS; otherwise LOG_WIDTH columns wide.

    With `wide` it has no limit.
    """
    console = Console(stderr=stderr)
    known = console.is_terminal or "COLUMNS" in os.environ
    if known and not wide:
        return console
    return Console(width=_UNLIMITED if wide else LOG_WIDTH, stderr=stderr)


def shortened(name: str, width: int) -> str:
    """Return a name with at most `width` characters: "gate_u…proj" has lost its middle."""
    if len(name) <= width:
        return name
    tail = width // 2
    return f"{name[: max(0, width - tail - 1)]}…{name[len(name) - tail :]}"


def fits(console: Console, table: RenderableType) -> bool:
    """Whether the console has room for a table in which nothing is shortened or wrapped."""
    free = console.options.update(width=_UNLIMITED)
    return Measurement.get(console, free, table).maximum <= console.width


def has_room(console: Console, table: RenderableType) -> bool:
    """Whether a table fits the console where names are shortened as far as they may be."""
    free = console.options.update(width=_UNLIMITED)
    return Measurement.get(console, free, table).minimum <= console.width


class Name:
    """A name in a table, shortened from the middle if its column is too narrow."""

    def __init__(self, text: str, style: str = "") -> None:
        """See the class."""
        self._text, self._style = text, style

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the least and the whole width."""
        whole = cell_len(self._text)
        return Measurement(min(whole, _SHORTEST), whole).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Render the name for the width of its column."""
        yield Text(shortened(self._text, options.max_width), style=self._style, no_wrap=True)


class Prose:
    """A line of prose, wrapped at words; what does not fit the first line is indented."""

    def __init__(self, text: str, style: str = "") -> None:
        """See the class."""
        self._text, self._style = text, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Render the line for the width of the console."""
        lines = textwrap.wrap(
            self._text,
            options.max_width,
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        yield from (Text(line, style=self._style) for line in lines or [""])


def titled(title: str, table: RenderableType) -> Group:
    """Return a table under a title that may be wider than the table."""
    return Group(Prose(title, "italic"), table)


def print_notes(console: Console, notes: list[str] | tuple[str, ...]) -> None:
    """Print a line for each note to the user."""
    for note in notes:
        console.print(Prose(f"note: {note}", "yellow"))


def visible(text: str) -> str:
    """Return the text with control characters escaped as \\x1b; tabs and line ends are kept."""
    return text.translate(_CONTROLS)
