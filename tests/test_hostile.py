"""Hostile inputs, a few of each kind: refused in one line, soon, and nothing stays of them.

`python benchmarks/fuzz_headers.py --commands` runs them by the thousand.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

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

SEED = 11


@pytest.fixture(scope="module")
def bases(_plain: Path, _toy: Path) -> dict[str, Path]:
    return {"plain": _plain, "toy": _toy}


@pytest.fixture(scope="module")
def runner(bases: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Runner:
    return Runner(tmp_path_factory.mktemp("hostile"), bases)


def faults(runner: Runner, cases: Iterator[Case], count: int) -> dict[str, list[str]]:
    found = {case.name: runner.wrong(case) for case in itertools.islice(cases, count)}
    return {name: wrong for name, wrong in found.items() if wrong}


@pytest.mark.parametrize("base", ["plain", "toy"])
def test_manifests(runner: Runner, bases: dict[str, Path], base: str) -> None:
    assert not faults(runner, manifests(bases, Random(SEED), base), 60)


@pytest.mark.parametrize("kind", [reports, archives, modules, tokenizers])
def test_files_of_an_artifact(runner: Runner, bases: dict[str, Path], kind) -> None:
    assert not faults(runner, kind(bases, Random(SEED)), 30)


def test_templates(runner: Runner, bases: dict[str, Path]) -> None:
    assert not faults(runner, templates(bases, Random(SEED)), 8)


@pytest.mark.parametrize("kind", [arrays, options])
def test_arguments(runner: Runner, kind) -> None:
    assert not faults(runner, kind(Random(SEED)), 40)


def test_programs(runner: Runner) -> None:
    assert not faults(runner, compilations(Random(SEED)), 6)


def test_a_fault_is_seen(runner: Runner) -> None:
    """The judge itself: what is accepted is told."""
    accepted = Case("accepted", ["list", "formats"], needs_error=True)
    assert "accepted" in runner.wrong(accepted)[0]
