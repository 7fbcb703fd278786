"""Runs that have to end in time (rounds.py)."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests import rounds

TESTS = """
import pytest

@pytest.mark.parametrize("case", range(8))
def test_many(case):
    with open({log!r}, "a") as file:
        file.write(f"{name} {{case}}\\n")

def test_one():
    with open({log!r}, "a") as file:
        file.write("{name} one\\n")
"""


def run(folder: Path, *, until: float, workers: int) -> tuple[list[str], str]:
    """What ran, in its order, and what was printed."""
    log = folder / "log"
    log.touch()
    for name in ("a", "b"):
        (folder / f"test_{name}.py").write_text(TESTS.format(log=str(log), name=name))
    words = ["-p", "tests.rounds", "--until", str(until), "-n", str(workers), "-q", "."]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return log.read_text().splitlines(), result.stdout


def test_each_test_runs_before_any_runs_with_all_cases(tmp_path: Path) -> None:
    ran, printed = run(tmp_path, until=time.time() + 3600, workers=1)
    assert len(ran) == len(set(ran)) == 18
    assert {"a one", "b one"} < set(ran[:8])
    assert [sum(line.startswith(name) for line in ran[:8]) for name in "ab"] == [4, 4]
    assert "--until" not in printed


def test_what_has_not_begun_is_skipped_and_counted(tmp_path: Path) -> None:
    ran, printed = run(tmp_path, until=time.time() - 1, workers=2)
    assert not ran
    assert "18 skipped" in printed
    assert "4 tests have not run with all of their cases, 4 of them with none" in printed
    assert "  not run: test_a.py::test_many\n" in printed


def test_the_first_round_has_three_cases_of_each_test_anywhere_in_its_list() -> None:
    cases = [f"file.py::test_a[{number}]" for number in range(100)]
    few = rounds.first_round([*cases, "file.py::test_b"], "b")
    places = sorted(cases.index(name) for name in few if name in cases)
    assert "file.py::test_b" in few
    assert len(places) == 3
    assert places[0] > 3
    assert places[2] - places[0] > 10


def test_another_seed_chooses_other_cases() -> None:
    cases = [f"file.py::test_a[{number}]" for number in range(100)]
    few = [rounds.first_round(cases, seed) for seed in ("a", "b", "a")]
    assert few[0] == few[2]
    assert not few[0] & few[1]
