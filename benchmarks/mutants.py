"""Mutants: the sources with one small error each. Those that no test fails on are listed.

    python benchmarks/mutants.py --count 200 --seed 1 --output mutants.jsonl

A mutant is chosen at random among all places of the files under test: a comparison, a sum, an
integer, a condition. It is put into a copy of the tree, in which the tests nearest to its file run
until one fails: its lit test, test files of its name, those that import its module, and those whose
path has most of the names in its own; of equals those that import the least of ours. A mutant that
makes a test run too long is killed too. `--resume` goes on where the output ends. Tests that fail
without a mutant kill none: they are run once before, and left out with a line.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What is mutated: folders and files from the root of the tree.
SUBJECTS = ("passes", "kernels", "formats", "compiler/packing", "simulator", "runtime")

#: What an operator becomes.
OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "+": "-", "-": "+", "*": "+", "//": "*", "/": "*", "%": "*", "<<": ">>", ">>": "<<",
    "&": "|", "|": "&", "and": "or", "or": "and", "is": "is not", "is not": "is",
    "in": "not in", "not in": "in",
}  # fmt: skip
_GAP = re.compile(r"^([\s()]*)(\S+(?: not| in)?)([\s()]*)$")


@dataclass(frozen=True)
class Mutant:
    """One change of `file`: `before` at a place becomes `after`."""

    file: str
    line: int
    column: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        """The file with the change."""
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1].encode()
        end = self.column + len(self.before.encode())
        assert line[self.column : end].decode() == self.before
        lines[self.line - 1] = (line[: self.column] + self.after.encode() + line[end:]).decode()
        return "".join(lines)

    def __str__(self) -> str:
        """`file:line: before -> after`."""
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    """Every mutant of one file: nothing in annotations, in messages or outside of functions."""
    lines = text.encode().splitlines()

    def between(left: ast.expr, right: ast.expr) -> Iterator[Mutant]:
        if left.end_lineno != right.lineno:
            return
        start, end = left.end_col_offset or 0, right.col_offset
        found = _GAP.match(lines[right.lineno - 1][start:end].decode())
        if found is not None and found[2] in OPERATORS:
            column = start + len(found[1])
            yield Mutant(file, right.lineno, column, found[2], OPERATORS[found[2]])

    def visit(node: ast.AST, within: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            return
        if isinstance(node, ast.FunctionDef):
            within = True
            children: list[ast.AST] = [*node.body]
        elif isinstance(node, ast.AnnAssign):
            children = [] if node.value is None else [node.value]
        else:
            children = [*ast.iter_child_nodes(node)]
        if within:
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                for left, right in pairwise(sides):
                    yield from between(left, right)
            elif isinstance(node, ast.BinOp):
                yield from between(node.left, node.right)
            elif isinstance(node, ast.BoolOp):
                for left, right in pairwise(node.values):
                    yield from between(left, right)
            elif isinstance(node, ast.Constant) and type(node.value) in (int, bool):
                value: int = node.value
                after = str(not value) if isinstance(value, bool) else str(value + 1)
                source = ast.get_source_segment(text, node) or ""
                yield Mutant(file, node.lineno, node.col_offset, source, after)
            elif isinstance(node, ast.If | ast.IfExp | ast.While) and (
                node.test.lineno == node.test.end_lineno
            ):
                source = ast.get_source_segment(text, node.test) or ""
                place = node.test.lineno, node.test.col_offset
                yield Mutant(file, *place, source, f"(not ({source}))")
        for child in children:
            yield from visit(child, within)

    yield from visit(ast.parse(text), False)


def chosen(count: int, seed: int, subjects: tuple[str, ...]) -> list[Mutant]:
    """`count` mutants, as the seed says."""
    found: list[Mutant] = []
    for subject in subjects:
        place = ROOT / subject
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            found += mutants_of(file.relative_to(ROOT).as_posix(), file.read_text())
    return random.Random(seed).sample(found, min(count, len(found)))


@cache
def _imports() -> dict[str, frozenset[str]]:
    """The modules of ours that each test file names."""
    named = re.compile(r"^\s*from (mxc[\w.]*) import ([^#\n(]*|\([^)]*\))", re.MULTILINE)
    found = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        modules = set()
        for module, names in named.findall(file.read_text()):
            modules |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))}
        found[file.relative_to(ROOT).as_posix()] = frozenset(modules)
    return found


def nearest(file: str, most: int) -> list[str]:
    """The tests of a source file, nearest first."""
    stem, parts = Path(file).stem, Path(file).with_suffix("").parts
    lit = ROOT / f"lit_tests/passes/{stem}.mlir"
    module = ".".join(("mxc", *parts)).removesuffix(".__init__")
    names = {name for part in parts for name in part.split("_")}

    def distance(test: str) -> tuple[bool, bool, int, int, str]:
        shared = names & set(re.split(r"[/_.]", test))
        named, modules = Path(test).stem == f"test_{stem}", _imports()[test]
        return not named, module not in modules, -len(shared), len(modules), test

    found = sorted(_imports(), key=distance)[:most]
    return [lit.relative_to(ROOT).as_posix(), *found] if lit.exists() else found


class Copy:
    """The tree in a folder of its own, where tests run."""

    def __init__(self, folder: Path, seconds: float) -> None:
        """Copy what git knows of."""
        self.folder, self.seconds = folder, seconds
        names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        for name in filter(None, names.split("\0")):
            if not (ROOT / name).exists():
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        self._broken: dict[str, bool] = {}

    def fails(self, test: str) -> bool:
        """Whether a test fails now, or takes too long."""
        if test.startswith("lit_tests"):
            words = [str(Path(sys.executable).with_name("lit")), "-q", test]
        else:
            words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(self.seconds) != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()

    def broken(self, test: str) -> bool:
        """Whether a test fails without a mutant."""
        if test not in self._broken:
            self._broken[test] = self.fails(test)
            if self._broken[test]:
                print(f"{test}: fails without a mutant, and is left out", file=sys.stderr)
        return self._broken[test]

    def killer(self, mutant: Mutant, most: int) -> str | None:
        """The first of the nearest tests that fails with the mutant; None where none does."""
        tests = [test for test in nearest(mutant.file, most) if not self.broken(test)]
        place = self.folder / mutant.file
        text = place.read_text()
        place.write_text(mutant.applied(text))
        try:
            return next((test for test in tests if self.fails(test)), None)
        finally:
            place.write_text(text)


def main() -> int:
    """Run the mutants; 0 where no more survive than `--survivors`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", type=int, default=6, help="the most test files of a mutant")
    parser.add_argument("--seconds", type=float, default=600, help="the longest one may take")
    parser.add_argument("--subjects", nargs="+", default=SUBJECTS, metavar="PATH")
    parser.add_argument("--output", type=Path, required=True, help="a line of JSON each")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--list", action="store_true", help="show mutants and tests, run none")
    words = parser.parse_args()
    mutants = chosen(words.count, words.seed, tuple(words.subjects))
    if words.list:
        for mutant in mutants:
            print(mutant, *nearest(mutant.file, words.tests))
        return 0
    done: dict[str, str | None] = {}
    if words.resume and words.output.exists():
        rows = [json.loads(line) for line in words.output.read_text().splitlines()]
        done = {json.dumps(row["mutant"]): row["killer"] for row in rows}
    else:
        words.output.write_text("")
    with tempfile.TemporaryDirectory(prefix="mxc-mutants-") as folder:
        copy = Copy(Path(folder), words.seconds)
        for mutant in mutants:
            key = json.dumps(asdict(mutant))
            if key not in done:
                done[key] = copy.killer(mutant, words.tests)
                with words.output.open("a") as file:
                    file.write(json.dumps({"mutant": asdict(mutant), "killer": done[key]}) + "\n")
            print(f"{mutant}: {done[key] or 'SURVIVED'}", flush=True)
    kinds = Counter(killer is not None for killer in done.values())
    print(f"{len(done)} mutants: {kinds[True]} killed, {kinds[False]} survived")
    return 0 if not kinds[False] else 1


if __name__ == "__main__":
    sys.exit(main())
