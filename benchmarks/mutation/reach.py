"""What each test reaches: the statements in functions that run while it does.

While modules are imported they get a mark before each statement: a byte that all processes of a
test share. What is found is kept in a file whose name has the digest of the sources, so that only
tests which are new or changed run again.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import json
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from importlib import _bootstrap_external as machinery
from importlib.machinery import SourceFileLoader
from operator import or_
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pytest

#: The folders whose modules have marks.
FOLDERS = (
    "artifact", "compiler", "dialects", "formats", "kernels", "passes", "runtime", "server",
    "simulator", "targets",
)  # fmt: skip
#: The name of what runs while the tests are collected.
_IMPORTS = "imports"


def _bodies(tree: ast.AST, within: bool = False) -> Iterator[list[ast.stmt]]:
    """The lists of statements in functions, outer ones first."""
    within |= isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    for _, value in ast.iter_fields(tree):
        parts = value if isinstance(value, list) else [value]
        if within and parts and isinstance(parts[0], ast.stmt):
            yield parts
        for part in parts:
            if isinstance(part, ast.AST):
                yield from _bodies(part, within)


def _marked(data: bytes, number: int) -> ast.Module:
    """A module with marks, the first of which is `number`."""
    tree = ast.parse(data)
    for body in [*_bodies(tree)]:
        parts: list[ast.stmt] = []
        for each in body:
            mark = ast.parse(f"__reached__[{number}] = 1").body[0]
            number += 1
            doc = each is body[0] and isinstance(each, ast.Expr)
            parts += [each, mark] if doc else [mark, each]
        body[:] = parts
    return tree


def _digest(*texts: bytes) -> str:
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


@dataclass(frozen=True)
class Statements:
    """The statements in functions of the tree at `root`, numbered."""

    root: Path

    @cached_property
    def spans(self) -> dict[str, list[tuple[int, int]]]:
        """First and last line of each, by file."""
        found = {}
        for file in self._sources():
            bodies = [*_bodies(ast.parse(file.read_text()))]
            lines = [(each.lineno, each.end_lineno or 0) for body in bodies for each in body]
            found[file.relative_to(self.root).as_posix()] = lines
        return found

    @cached_property
    def first(self) -> dict[str, int]:
        """The number of each file's first one."""
        found, count = {}, 0
        for name, spans in self.spans.items():
            found[name], count = count, count + len(spans)
        return found

    @cached_property
    def digest(self) -> str:
        """That of the sources."""
        return _digest(*(file.read_bytes() for file in self._sources()))

    def at(self, file: str, line: int) -> int:
        """The innermost one at a line."""
        spans = enumerate(self.spans[file])
        return self.first[file] + max(n for n, (first, last) in spans if first <= line <= last)

    def mark(self) -> mmap.mmap:
        """Have modules get marks when they are imported; returns what the marks are made in."""
        marks = mmap.mmap(-1, sum(map(len, self.spans.values())))
        vars(builtins)["__reached__"] = marks
        compiled, placed = SourceFileLoader.source_to_code, machinery.cache_from_source
        kept = self.root.with_name(f"marked-{self.digest}")

        def name(path: str) -> str:
            place = Path(path).resolve()
            return place.relative_to(self.root).as_posix() if self.root in place.parents else ""

        def source_to_code(loader: SourceFileLoader, data: bytes, path: str) -> CodeType:
            number = self.first.get(name(path))
            return compiled(loader, data if number is None else _marked(data, number), path)

        def cache_from_source(path: str, *words: Any, **named: Any) -> str:
            ours = name(path) in self.first
            return str(kept / f"{name(path)}c") if ours else placed(path, *words, **named)

        SourceFileLoader.source_to_code = source_to_code
        machinery.cache_from_source = cache_from_source
        return marks

    def _sources(self) -> list[Path]:
        return [file for name in FOLDERS for file in sorted((self.root / name).rglob("*.py"))]


@dataclass(frozen=True)
class Test:
    """A test that passes: its name, the seconds it takes, and the bits of what it reaches."""

    name: str
    seconds: float
    reached: int

    @property
    def file(self) -> str:
        """The file that has it."""
        return self.name.partition("::")[0]


class Recorder:
    """Plugin of pytest: writes a line for each test file, its digest and its tests that pass."""

    def __init__(self, reach: Reach, lit: Sequence[str], fails: Callable[[str], bool]) -> None:
        self.marks, self.place = reach.statements.mark(), reach.place
        self.lit, self.fails = lit, fails
        self.tests: list[tuple[str, float, str]] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """What was reached until now was reached by imports."""
        self._end(_IMPORTS, True)
        self._write(_IMPORTS, b"")
        for test in self.lit:
            self._begin()
            self._end(test, not self.fails(test))
            self._write(test, Path(test).read_bytes())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """Record one test."""
        self._begin()
        yield
        self._end(item.nodeid, self.passed)
        if nextitem is None or nextitem.path != item.path:
            self._write(item.nodeid.partition("::")[0], item.path.read_bytes())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails is not recorded."""
        self.passed &= not report.failed

    def _begin(self) -> None:
        self.marks[:] = bytes(len(self.marks))
        self.passed, self.begun = True, time.perf_counter()

    def _end(self, name: str, passed: bool) -> None:
        seconds = round(time.perf_counter() - self.begun, 3) if name != _IMPORTS else 0.0
        bits = np.packbits(np.frombuffer(self.marks, np.uint8), bitorder="little").tobytes()
        if passed:
            self.tests.append((name, seconds, f"{int.from_bytes(bits, 'little'):x}"))

    def _write(self, file: str, text: bytes) -> None:
        row = {"file": file, "digest": _digest(text), "tests": self.tests}
        self.tests = []
        with self.place.open("a") as lines:
            lines.write(json.dumps(row) + "\n")


@dataclass(frozen=True)
class Reach:
    """The tests of the tree, and what each reaches."""

    statements: Statements
    place: Path

    @cached_property
    def _lines(self) -> list[dict]:
        return [*map(json.loads, self.place.open())] if self.place.exists() else []

    @cached_property
    def _rows(self) -> dict[str, dict]:
        return {row["file"]: row for row in self._lines if row["file"] != _IMPORTS}

    @cached_property
    def _imports(self) -> int:
        """The bits of what any collection has reached."""
        rows = [row["tests"][0] for row in self._lines if row["file"] == _IMPORTS]
        return reduce(or_, [int(bits, 16) for _, _, bits in rows], 0)

    def unknown(self, files: Sequence[str]) -> list[str]:
        """The test files that are to be recorded."""
        known = {name: row["digest"] for name, row in self._rows.items()}
        root = self.statements.root
        return [file for file in files if known.get(file) != _digest((root / file).read_bytes())]

    @cached_property
    def tests(self) -> list[Test]:
        """All that are known."""
        rows = self._rows.values()
        return [Test(name, s, int(bits, 16)) for row in rows for name, s, bits in row["tests"]]

    def imported(self, file: str, line: int) -> bool:
        """Whether a line has run before any test."""
        return bool(self._imports >> self.statements.at(file, line) & 1)

    def of(self, file: str, line: int) -> list[Test]:
        """The tests that reach a line, those named after its file first, then the fastest.

        A line that only runs while modules are imported is reached by what reaches its file.
        """
        number, stem = self.statements.at(file, line), Path(file).stem
        found = [test for test in self.tests if test.reached >> number & 1]
        if not found and self.imported(file, line):
            count = len(self.statements.spans[file])
            mask = ((1 << count) - 1) << self.statements.first[file]
            found = [test for test in self.tests if test.reached & mask]
        names = {f"test_{stem}", stem, f"{stem}_invalid"}
        return sorted(found, key=lambda test: (Path(test.file).stem not in names, test.seconds))
