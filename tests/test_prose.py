"""Docstrings and comments: the field's words, and files that exist."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Words of our own invention, where the field has a word: that word.
WORDS = {
    r"road": "pipeline",
    r"room of (?:attention|quantiz\w+)": "kernel",
    r"\w*quantis\w*": "quantize",
    r"\w*normalis\w*": "normalize",
    r"wove|woven|weave": "interleaved",
    r"soften\w*": "rounded",
    r"hollow": "without values",
    r"unsaid": "unstated",
    r"patience": "latency",
    r"no turn|a turn of the loop|every turn": "iteration",
}
#: Words that no name has, and what says it.
IN_NAMES = {
    "span": "range, chunk, interval",
    "spans": "ranges, chunks, intervals",
    "turn": "iteration, round",
    "turns": "iterations, rounds",
    "joined": "merged, fused, concat",
}
#: There a turn is one of a conversation; kernels of CPUs are not renamed yet.
_NAMES_MAY = re.compile(
    r"benchmarks/(?:serve|soak)\.py|tests/server/|kernels/|passes/kernels/cpu/|benchmarks/mutation/"
)
_WORDS = {re.compile(rf"\b(?:{word})\b", re.IGNORECASE): ours for word, ours in WORDS.items()}
_FILE = re.compile(r"(?<![\w./*}-])((?:\w+/)*\w+\.(?:py|md))\b")
#: Files of other projects, which are named as sources.
_ELSEWHERE = re.compile(
    r"transformers|triton|torch|llama\.cpp|vllm|compressed-tensors|modelopt|the library|"
    r"convert_hf|msgpack|microscaling|onednn",
    re.IGNORECASE,
)


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def prose(path: str) -> Iterator[tuple[int, str]]:
    """The comments and docstrings of a file, each with the number of its first line."""
    text = (ROOT / path).read_text()
    for node in ast.walk(ast.parse(text)):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and (found := ast.get_docstring(node)):
            yield node.body[0].lineno, found
    yield from ((line, text) for kind, line, text in tokens(path) if kind == tokenize.COMMENT)


@functools.cache
def tokens(path: str) -> list[tuple[int, int, str]]:
    """The names and comments of a file: the kind of token, its line and its text."""
    readline = io.StringIO((ROOT / path).read_text()).readline
    return [
        (token.type, token.start[0], token.string)
        for token in tokenize.generate_tokens(readline)
        if token.type in (tokenize.NAME, tokenize.COMMENT)
    ]


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    """Where, and what: of all of the code and of all pages."""
    own = "tests/test_prose.py"  # names the words
    found = [
        (f"{path}:{line}", text)
        for path in tracked("*.py")
        if path != own
        for line, text in prose(path)
    ]
    return [*found, *((path, (ROOT / path).read_text()) for path in tracked("*.md"))]


def test_words_are_the_fields(texts: list[tuple[str, str]]) -> None:
    found = [
        f"{place}: {match.group()}; wanted {ours}"
        for place, text in texts
        for word, ours in _WORDS.items()
        for match in word.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_names_are_of_the_fields_words() -> None:
    found = []
    for path in tracked("*.py"):
        if _NAMES_MAY.match(path):
            continue
        for kind, line, name in tokens(path):
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
            found += [
                f"{path}:{line}: {name}; wanted {IN_NAMES[word.lower()]}"
                for word in words
                if kind == tokenize.NAME and word.lower() in IN_NAMES
            ]
    assert not found, "\n".join(found)


def test_a_docstring_says_what_a_thing_is(texts: list[tuple[str, str]]) -> None:
    found = [
        f"{place}: {text.splitlines()[0]}"
        for place, text in texts
        if text.startswith(("Of ", "#: Of "))
    ]
    assert not found, "\n".join(found)


def test_files_that_are_named_exist(texts: list[tuple[str, str]]) -> None:
    known = {path.removeprefix("lit_tests/") for path in tracked()} | set(tracked())
    ends = {"/".join(path.split("/")[-n:]) for path in known for n in range(1, 9)}
    found = [
        f"{place}: {name}"
        for place, text in texts
        if not _ELSEWHERE.search(text)
        for name in _FILE.findall(text)
        if name not in ends
    ]
    assert not found, "\n".join(found)


def packages() -> list[str]:
    """Files of the product."""
    others = ("tests/", "lit_tests/", "benchmarks/", "examples/")
    return [path for path in tracked("*.py") if not path.startswith(others)]


def test_a_class_name_stands_for_one_thing() -> None:
    """A name that begins with `_` is known in its file only."""
    where: dict[str, list[str]] = {}
    for path in packages():
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(path)
    found = [f"{name}: {', '.join(paths)}" for name, paths in where.items() if len(paths) > 1]
    assert not found, "\n".join(found)


def test_lines_of_pages_are_short() -> None:
    """Tables and blocks too, which the rule of markdownlint leaves out."""
    found = [
        f"{path}:{number}: {len(line)} columns"
        for path in tracked("*.md")
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1)
        if len(line) > 120
    ]
    assert not found, "\n".join(found)
