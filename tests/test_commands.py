"""Every `mxc ..` that a page shows is a command: its options exist and take what they are given.

Nothing is run here; tests/test_readme.py runs the sessions. In what is shown, `[..]` may be left
out, `a|b` are two commands, and N is a number. A command within a sentence need not be complete.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.exceptions import TyperException

from mxc.compiler.cli import app
from mxc.compiler.models.blocks.activations import MODES
from mxc.compiler.models.options import KV_CACHE
from mxc.compiler.pipelines import pipeline
from mxc.compiler.quantize.outputs import OUTPUTS
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe
from mxc.targets.target import TARGETS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS: Any = typer.main.get_command(app)

#: Options whose values are checked only when the command runs.
VALUES = {
    "activations": MODES,
    "kv_cache": KV_CACHE,
    "quantize_dense": ("mxfp8", "mxint8"),
    "weights": ("packed", "none"),
    "format": FORMATS,
    "recipe": (*ScaleRecipe, "search", "gptq"),
    "dialect": OUTPUTS,
    "ties": ("even", "zero", "away"),
    "target": TARGETS,
    "emit": ("asm",),
}


def shown(text: str) -> Iterator[tuple[str, bool]]:
    """Each command of a page, and whether it stands in a block and so must be complete."""
    outside = []
    for number, part in enumerate(re.split(r"^```.*\n", text, flags=re.MULTILINE)):
        if number % 2 == 0:
            outside.append(part)
            continue
        whole = re.sub(r"\\\n\s+", " ", part)
        yield from ((each, True) for each in re.findall(r"^(?:\$ )?mxc (.*)$", whole, re.M))
        yield from ((each, True) for each in re.findall(r"'\w+=mxc (.*?)'", whole))
    # Two backquotes hold one that is part of the code.
    for each in re.findall(r"(?<!`)`mxc ([^`]+)`(?!`)", "".join(outside)):
        yield " ".join(each.split()), False


def words_of(command: str) -> Iterator[list[str]]:
    """The arguments of each command that the text stands for, up to a redirection."""
    plain = re.sub(r"\{\w+\}|\bN\b", "1", re.sub(r"[\[\]]", "", command))
    words = [word for word in shlex.split(plain, comments=True) if word not in ("|", "..", "...")]
    ends = [n for n, word in enumerate(words) if word in (">", "&", "&&")]
    words = words[: min(ends, default=len(words))]
    yield from map(list, product(*(word.split("|") for word in words)))


def fault(words: list[str], complete: bool) -> str | None:
    """Why the command line refuses these words."""
    if words[0].startswith("-"):
        options = {name for parameter in COMMANDS.params for name in parameter.opts}
        return None if words[0] in options else f"no option {words[0]}"
    command = COMMANDS.commands.get(words[0])
    if command is None:
        return f"no command {words[0]}"
    if words[1:] in ([], ["--help"]):
        return None
    try:
        context = command.make_context(words[0], words[1:])
    except TyperException as error:
        if complete or type(error).__name__ not in ("MissingParameter", "BadOptionUsage"):
            return str(error)
        context = command.make_context(words[0], words[1:], resilient_parsing=True)
    for name, known in VALUES.items():
        given = context.params.get(name)
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, str) and value not in known and not value.isupper():
                return f"--{name}: {value} is none of {', '.join(known)}"
    if (stage := context.params.get("to")) is not None:
        stages = list(OUTPUTS)
        if words[0] == "opt":
            stages = [each.name for each in pipeline("cpu").stages]
        if stage not in stages:
            return f"--to: {stage} is none of {', '.join(stages)}"
    return None


@pytest.mark.parametrize(
    ("command", "complete", "said"),
    [
        ("compile x --output y", True, None),
        ("compile x --outptu y", True, "No such option"),
        ("compile --kv-cache fp8", False, None),
        ("compile --kv-cache fp8", True, "Missing"),
        ("compile --kv-cache fp4", False, "fp4"),
        ("compile x --activations f32|i9", True, "i9"),
        ("bench x --generate many", True, "integer"),
        ("bench x [--generate N]", True, None),
        ("convert x --to onnx -o y", True, "onnx"),
        ("opt x --target gfx950 --to kernel", True, "kernel is none"),
        ("list colours", True, "colours"),
        ("lists formats", False, "no command lists"),
        ("--verbosely", False, "no option"),
    ],
)
def test_a_wrong_command_is_noticed(command: str, complete: bool, said: str | None) -> None:
    found = [fault(words, complete) for words in words_of(command)]
    assert any(said in str(each) for each in found) if said else found == [None]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_exist(page: Path) -> None:
    faults = [
        f"mxc {' '.join(words)}: {found}"
        for command, complete in shown(page.read_text())
        for words in words_of(command)
        if (found := fault(words, complete)) is not None
    ]
    assert not faults, "\n".join(faults)


def test_commands_are_found() -> None:
    assert sum(len(list(shown(page.read_text()))) for page in PAGES) > 100
