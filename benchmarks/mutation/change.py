"""Makes mutants: files with one changed comparison, operation, integer or condition."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SWAPPED = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, FloorDiv Mult, LShift RShift"
#: The operator that replaces each operator, by names of `ast`.
OPERATORS = dict(pair.split() for pair in f"{_SWAPPED}, BitAnd BitOr, And Or".split(", "))
OPERATORS |= {b: a for a, b in OPERATORS.items()} | {"Mult": "Add", "Div": "Mult", "Mod": "Mult"}


def edits(tree: ast.AST, statement: int = 0) -> Iterator[tuple[int, ast.AST, str, object]]:
    """Yield every edit: the line of its statement, a node, one of its fields, and its new value.

    There are no edits in annotations, assertions and messages, or outside of functions. statement:
    the line of the statement that `tree` is part of; 0 outside of functions.
    """
    strict = isinstance(tree, ast.keyword) and tree.arg == "strict"  # an assertion of zip
    if strict or isinstance(tree, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    if statement and isinstance(tree, ast.stmt):
        statement = tree.lineno
    if statement:
        yield from ((statement, tree, *change) for change in _changes(tree))
    children: list[ast.AST] = [*ast.iter_child_nodes(tree)]
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        statement, children = tree.lineno, [*tree.body]
    elif isinstance(tree, ast.AnnAssign):
        children = [] if tree.value is None else [tree.value]
    for child in children:
        yield from edits(child, statement)


def _changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    def other(op: ast.AST) -> object:
        return getattr(ast, OPERATORS[type(op).__name__])()

    if isinstance(node, ast.Compare):
        for n, op in enumerate(node.ops):
            yield "ops", [*node.ops[:n], other(op), *node.ops[n + 1 :]]
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op).__name__ in OPERATORS:
        yield "op", other(node.op)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "value", not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "test", ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)


@dataclass(frozen=True)
class Mutant:
    """Edit `number` of `file`: `before` becomes `after` in the statement at a line."""

    file: str
    number: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        """`file:line: before -> after`."""
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"


def mutated(file: str, text: str, number: int) -> tuple[Mutant, ast.Module]:
    """Apply edit `number` to the text of a file. Return the mutant and the tree of the file."""
    tree = ast.parse(text)
    line, node, field, value = [*edits(tree)][number]

    def shown() -> str:
        return ast.unparse(getattr(node, field) if field == "test" else node)

    before = shown()
    setattr(node, field, value)
    return Mutant(file, number, line, before, shown()), tree


def chosen(root: Path, count: int, seed: int, subjects: Sequence[str]) -> list[Mutant]:
    """Draw `count` random mutants of the files and folders `subjects` in the tree at `root`."""
    places: list[tuple[str, str, int]] = []
    for place in (root / subject for subject in subjects):
        for file in [place] if place.is_file() else sorted(place.rglob("*.py")):
            name, text = file.relative_to(root).as_posix(), file.read_text()
            places += [(name, text, n) for n, _ in enumerate(edits(ast.parse(text)))]
    sample = random.Random(seed).sample(places, min(count, len(places)))
    return [mutated(*place)[0] for place in sample]
