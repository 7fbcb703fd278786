"""Hostile inputs, a few of each kind: refused in one line, soon, and nothing stays of them.

`python benchmarks/fuzz_headers.py --commands` runs them by the thousand.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import hostile_cases
import pytest
from hostile_cases import (
    Case,
    Runner,
    archives,
    arrays,
    compilations,
    manifests,
    modules,
    options,
    reports,
    templates,
    tokenizers,
)
from hostile_texts import PROGRAMS

from tests.forked_child import ForkedChild

SEED = 11


@pytest.fixture(scope="module")
def bases(_plain: Path, _toy: Path) -> dict[str, Path]:
    return {"plain": _plain, "toy": _toy}


@pytest.fixture(scope="module")
def runner(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """It runs commands, and they their compilers, in forks of a process with the compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hostile_cases, "Child", ForkedChild)
        yield Runner(tmp_path_factory.mktemp("hostile"), bases)


def faults(runner: Runner, cases: Iterator[Case], count: int) -> dict[str, list[str]]:
    found = {case.name: runner.wrong(case) for case in itertools.islice(cases, count)}
    return {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize("base", ["plain", "toy"])
def test_manifests(runner: Runner, bases: dict[str, Path], base: str) -> None:
    assert not faults(runner, manifests(bases, Random(SEED), base), 60)


@pytest.mark.parametrize("kind", [reports, archives, modules, tokenizers])
def test_files_of_an_artifact(
    runner: Runner, bases: dict[str, Path], kind: Callable[..., Any]
) -> None:
    assert not faults(runner, kind(bases, Random(SEED)), 30)


def test_templates(runner: Runner, bases: dict[str, Path]) -> None:
    assert not faults(runner, templates(bases, Random(SEED)), 8)


@pytest.mark.parametrize("kind", [arrays, options])
def test_arguments(runner: Runner, kind: Callable[..., Any]) -> None:
    assert not faults(runner, kind(Random(SEED)), 40)


def test_programs(runner: Runner) -> None:
    assert not faults(runner, compilations(Random(SEED)), 6)


#: What a program is, and whether passes may run on it, because it is MLIR.
REFUSED = {
    "calls itself": (b"call @main(%x)", True),
    "has 2^62 elements": (str(1 << 62).encode(), True),
    "is for a GPU": (b"gpu.barrier", True),
    "has a kernel": (b"gpu.module", True),
    "is zeros": (b"\0\0\0\0", False),
    "is nothing": (b"", False),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_program_that(runner: Runner, what: str) -> None:
    text, is_mlir = REFUSED[what]
    program = next(each for each in PROGRAMS if (text in each if text else not each))
    files = {"p.mlir": program}
    words = ["compile", "{p.mlir}", "--target", "cpu", "--output", "{out.mxc}"]
    assert runner.wrong(Case("compile", words, files=files, needs_error=True)) == []
    words = ["opt", "{p.mlir}", "--passes", "canonicalize"]
    assert runner.wrong(Case("opt", words, files=files, needs_error=not is_mlir)) == []


def test_a_fault_is_seen(runner: Runner) -> None:
    """The judge itself: what is accepted is told."""
    accepted = Case("accepted", ["list", "formats"], needs_error=True)
    assert "accepted" in runner.wrong(accepted)[0]
