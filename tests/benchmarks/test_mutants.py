"""The errors that are made in sources, where they are put, and what is known of lines that run."""

import builtins
import time
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from mutation.change import chosen, mutated
from mutation.reach import with_marks
from mutation.trial import Trials, by_file, put

SOURCE = '''\
"""A module."""
AT_ITS_TOP = 1 + 1


def larger(a: int = 3, *, strict: bool = True) -> int:
    """Text."""
    assert a != 0
    if a > 2 and strict:
        return a // 4
    return sum(each for each, _ in zip([a], [1], strict=True))


class Two:
    def add(self) -> int:
        return larger() + 7
'''


def test_mutants_are_in_functions_and_not_in_assertions(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(SOURCE)
    found = {str(mutant) for mutant in chosen(tmp_path, 99, 0, ["."])}
    assert found == {
        "it.py:8: a > 2 and strict -> not (a > 2 and strict)",
        "it.py:8: a > 2 -> a >= 2",
        "it.py:8: 2 -> 3",
        "it.py:8: a > 2 and strict -> a > 2 or strict",
        "it.py:9: a // 4 -> a * 4",
        "it.py:9: 4 -> 5",
        "it.py:10: 1 -> 2",
        "it.py:15: larger() + 7 -> larger() - 7",
        "it.py:15: 7 -> 8",
    }


def test_functions_that_are_imported_do_what_the_mutant_says(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(SOURCE)
    module: dict[str, Any] = {}
    exec(compile(SOURCE, "it.py", "exec"), module)
    functions = [module["larger"], module["Two"].add]
    assert all(isinstance(each, FunctionType) for each in functions)
    number = {m.after: m.number for m in chosen(tmp_path, 99, 0, ["."])}
    assert [*map(module["larger"], (2, 9)), module["Two"]().add()] == [2, 2, 7]
    put(mutated("it.py", SOURCE, number["5"])[1], functions)
    assert [*map(module["larger"], (2, 9)), module["Two"]().add()] == [2, 1, 7]
    put(mutated("it.py", SOURCE, number["8"])[1], functions)
    assert [*map(module["larger"], (2, 9)), module["Two"]().add()] == [2, 2, 8]


def test_functions_are_known_by_their_files_behind_links(tmp_path: Path) -> None:
    """As the packages of mxc are imported."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "it.py").write_text(SOURCE)
    (tmp_path / "links").symlink_to(tmp_path / "packages")
    module: dict[str, Any] = {}
    exec(compile(SOURCE, tmp_path / "links" / "it.py", "exec"), module)
    found = by_file([module["larger"], "larger", module["Two"].add])
    assert found == {
        str(tmp_path.resolve() / "packages" / "it.py"): [module["larger"], module["Two"].add]
    }


def test_a_line_is_marked_when_its_statement_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = bytearray(30)
    monkeypatch.setattr(builtins, "__reached__", reached, raising=False)
    module: dict[str, Any] = {}
    exec(compile(with_marks(SOURCE.encode(), 10), "it.py", "exec"), module)
    assert not any(reached)
    assert module["larger"](2) == 2
    assert [line for line in range(20) if reached[10 + line]] == [7, 8, 10]


def test_what_tests_share_counts_for_none_and_is_reached_by_all_later() -> None:
    trials = Trials.__new__(Trials)
    trials.__dict__ |= {
        "marks": SimpleNamespace(reached=bytearray(3)),
        "_shared": b"",
        "_begun": time.perf_counter(),
    }

    def shared(line: int) -> int:
        time.sleep(0.2)
        trials.marks.reached[line] = 1
        return line

    shared.__module__ = "tests.of_something"
    once = trials._cache(shared)
    with trials._sharing():
        assert [once(0), once(0), once(1)] == [0, 0, 1]
    own = time.perf_counter() - trials._begun
    assert -0.1 < own < 0.1, "the seconds of what is shared within count once, and for no test"
    # The next test sets its own marks, and has those of what it shares with the first.
    trials.marks.reached[:] = bytes([0, 0, 1])
    assert trials._reached() == bytes([1, 1, 1])
    assert once(1) == 1
