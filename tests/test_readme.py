"""The README and docs/tour.md are run, in one folder (tests/sessions.py), and name what exists."""

import dataclasses
import re
from pathlib import Path

import pytest

from mxc.artifact import manifest
from mxc.compiler.report import FunctionCost, Matmul, Report, ReportOperation, Transfers
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.kernel_time import Time
from tests.sessions import blocks, run_sessions, shows

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
#: What is run, in this order.
SESSIONS = [README, ROOT / "docs/tour.md"]
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

#: Folders whose files a document names in backquotes.
FOLDERS = [p.name for p in (ROOT / "mxc").iterdir() if p.is_symlink()]
FOLDERS += ["tests", "lit_tests", "benchmarks", "docs"]


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
    assert run_sessions(SESSIONS, tmp_path) > 15


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
    assert len(shown) == 7
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
