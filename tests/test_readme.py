"""The README and docs/tour.md are run, in one folder: commands, Python, and what they show.

In these
    ```console   lines that begin with `$ ` are commands, what follows is their output
    ```python    is a program
    ```mlir NAME is the content of the file NAME
`...` in an output stands for whatever is there, as a line for any number of lines. Frames of
tables and runs of spaces are not compared. A command whose output is not shown must succeed.
"""

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mxc.artifact import manifest
from mxc.compiler.report import FunctionCost, Matmul, Report, ReportOperation, Transfers
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.kernel_time import Time

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
#: What is run, in this order.
SESSIONS = [README, ROOT / "docs/tour.md"]
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Folders whose files a document names in backquotes.
FOLDERS = [p.name for p in (ROOT / "mxc").iterdir() if p.is_symlink()]
FOLDERS += ["tests", "lit_tests", "benchmarks", "docs"]

#: What prepares a machine: these commands need the network or an hour, and are only looked at.
PREPARATION = {"git", "cd", "make", "pip", "source"}

_FRAME = re.compile(r"[\u2500-\u257f]")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what stands after the language, the line it begins at."""

    language: str
    name: str
    line: int
    text: str


@dataclass(frozen=True)
class Command:
    """One command of a session and the output that is shown for it."""

    line: int
    text: str
    output: str


def blocks(text: str) -> list[Block]:
    fences = re.finditer(r"^```(\w+)[ ]?(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 2, found[3])
        for found in fences
    ]


def commands(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = next(n for n in range(start, end) if not lines[n].endswith("\\"))
        text = "\n".join(lines[start : last + 1])[2:]
        yield Command(block.line + start, text, "\n".join(lines[last + 1 : end]))


def plain(text: str) -> str:
    """Without frames, runs of spaces and empty lines."""
    lines = (" ".join(_FRAME.sub(" ", line).split()) for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def shows(shown: str, found: str) -> bool:
    """Whether the output `found` is what the text `shown` says, `...` being anything."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else r".*?".join(map(re.escape, line.split("..."))) + r"\n"
        for line in plain(shown).splitlines()
    )
    return re.fullmatch(pattern, plain(found)) is not None


@pytest.mark.parametrize(
    ("shown", "found", "same"),
    [
        ("a  b", "\u2502 a \u2502 b \u2502\n\n", True),
        ("a b", "a c", False),
        ("a\nb", "a", False),
        ("a", "a\nb", False),
        ("a ... c\nd", "a b c\nd", True),
        ("a ... c", "a b\nc", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\n...", "b\na", False),
        ("a.c", "abc", False),
    ],
)
def test_what_is_shown_is_compared(shown: str, found: str, same: bool) -> None:
    assert shows(shown, found) is same


def test_the_session(tmp_path: Path) -> None:
    environment = {**os.environ, "COLUMNS": "100"}  # of a reader's terminal
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["XDG_CACHE_HOME"] = str(tmp_path / ".cache")  # of a new user
    ran = 0

    def run(words: list[str] | str, place: str) -> str:
        result = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment,
            shell=isinstance(words, str),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert result.returncode == 0, f"{place}: {words}\n{result.stdout}"
        return result.stdout

    for document, block in (
        (each.name, block) for each in SESSIONS for block in blocks(each.read_text())
    ):
        if block.language == "mlir":
            (tmp_path / block.name).write_text(block.text)
        elif block.language == "python":
            program = tmp_path / "program.py"
            program.write_text(block.text)
            run([sys.executable, program.name], f"{document}:{block.line}")
            ran += 1
        elif block.language == "console":
            for command in commands(block):
                if command.text.split()[0] in PREPARATION:
                    continue
                place = f"{document}:{command.line}"
                found = run(command.text, place)
                if command.output and not shows(command.output, found):
                    pytest.fail(
                        f"{place}: $ {command.text}\n"
                        f"shown:\n{plain(command.output)}\nfound:\n{plain(found)}",
                        pytrace=False,
                    )
                ran += 1
    assert ran > 15, "the documents have lost their session, or this test its eyes"


def test_what_prepares_a_machine_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set()
    for document in DOCUMENTS:
        named |= set(re.findall(r"^\$ make (\w+)|`make (\w+)`", document.read_text(), re.MULTILINE))
    wanted = {a or b for a, b in named}
    assert {"demo", "test"} <= wanted <= targets


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_are_there(document: Path) -> None:
    text = document.read_text()
    linked = [document.parent / target for target in re.findall(r"\]\(([^)#:]+)\)", text)]
    named = re.findall(
        r"`((?:artifact|dialects|formats|kernels|passes|compiler|runtime|simulator|targets|tests|lit_tests|benchmarks|examples|docs)/[\w/.-]*)`",
        text,
    )
    missing = [str(p) for p in [*linked, *(ROOT / name for name in named)] if not p.exists()]
    assert linked or named
    assert not missing


def test_worked_examples_are_the_code() -> None:
    """Lines of both pages are those of the files that their blocks name, in their order."""
    pages = [(ROOT / "docs" / name).read_text() for name in ("extending.md", "models.md")]
    shown = [each for page in pages for each in blocks(page) if each.name]
    assert len(shown) == 6
    for block in shown:
        lines = iter((ROOT / block.name).read_text().splitlines())
        missing = [line for line in block.text.splitlines() if line not in lines]
        assert not missing, f"{block.name}: {missing}"


def test_an_architecture_takes_few_lines() -> None:
    """A dense one at most 60, one with experts at most 90; docs/models.md says how many."""
    text = (ROOT / "docs/models.md").read_text()
    said = re.findall(r"[\w ]+, (\d+) lines\s\(`(\w+\.py)`\)", text)
    files = [ROOT / "compiler/models/architectures" / name for _, name in said]
    assert [int(lines) for lines, _ in said] == [
        len(each.read_text().splitlines()) for each in files
    ]
    dense = ["experts" not in each.read_text().lower() for each in files]
    assert dense[0]
    assert not all(dense)
    assert [
        int(lines) <= (60 if alone else 90) for (lines, _), alone in zip(said, dense, strict=True)
    ] == [True] * len(said)


def fields_of(section: str) -> list[str]:
    """The names that tables and lists begin with, under a heading of docs/artifact.md."""
    text = (ROOT / "docs/artifact.md").read_text()
    body = re.split(r"^#+ ", text, flags=re.MULTILINE)
    here = next(part for part in body if part.startswith(f"{section}\n"))
    rows = re.findall(r"^(?:\| |- )((?:`\w+`(?:, )?)+)(?: \||:|\.$)", here, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize(
    ("section", "record", "derived"),
    [
        ("manifest.json", manifest.Manifest, ()),
        ("target", manifest.TargetRecord, ()),
        ("levels", manifest.LevelRecord, ()),
        ("weights", manifest.WeightRecord, ()),
        ("model", manifest.ModelRecord, ()),
        ("report.json", Report, ("dispatches", "transient_bytes")),
        ("matmuls", Matmul, ()),
        ("operations", ReportOperation, ()),
        ("time", Time, ()),
        ("kernels", KernelCode, ()),
        ("transfers", Transfers, ()),
        ("functions of the report", FunctionCost, ()),
    ],
)
def test_fields_are_documented(section: str, record: type, derived: tuple[str, ...]) -> None:
    wanted = {field.name for field in dataclasses.fields(record)} | set(derived)
    assert sorted(fields_of(section)) == sorted(wanted)
