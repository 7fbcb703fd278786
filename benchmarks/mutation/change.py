"""Small errors in sources: another comparison, sum, integer or condition."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

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
    """Every mutant of one file: nothing in annotations, assertions, messages, or at its top."""
    lines = text.encode().splitlines()

    def source(node: ast.expr) -> str:
        return lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

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
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return  # of zip: an assertion
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
                yield Mutant(file, node.lineno, node.col_offset, source(node), after)
            elif isinstance(node, ast.If | ast.IfExp | ast.While) and (
                node.test.lineno == node.test.end_lineno
            ):
                test = source(node.test)
                place = node.test.lineno, node.test.col_offset
                yield Mutant(file, *place, test, f"(not ({test}))")
        for child in children:
            yield from visit(child, within)

    yield from visit(ast.parse(text), False)


def chosen(root: Path, count: int, seed: int, subjects: Sequence[str]) -> list[Mutant]:
    """`count` mutants of files and folders of the tree at `root`, as the seed says."""
    found: list[Mutant] = []
    for subject in subjects:
        place = root / subject
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            found += mutants_of(file.relative_to(root).as_posix(), file.read_text())
    return random.Random(seed).sample(found, min(count, len(found)))
