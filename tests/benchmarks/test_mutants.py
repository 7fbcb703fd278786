"""The errors that are made in sources, where they are put, and what reaches them."""

import gc
from importlib import util
from pathlib import Path
from types import FunctionType

from mutation.change import mutants_of
from mutation.reach import Statements
from mutation.trial import put

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


def test_mutants_are_in_functions_and_not_in_assertions() -> None:
    found = {str(mutant) for mutant in mutants_of("it.py", SOURCE)}
    assert found == {
        "it.py:8: a > 2 and strict -> (not (a > 2 and strict))",
        "it.py:8: > -> >=",
        "it.py:8: 2 -> 3",
        "it.py:8: and -> or",
        "it.py:9: // -> *",
        "it.py:9: 4 -> 5",
        "it.py:10: 1 -> 2",
        "it.py:15: + -> -",
        "it.py:15: 7 -> 8",
    }


def test_each_mutant_changes_one_place() -> None:
    for mutant in mutants_of("it.py", SOURCE):
        changed = mutant.applied(SOURCE).splitlines()
        assert [n for n, line in enumerate(SOURCE.splitlines()) if changed[n] != line] == [
            mutant.line - 1
        ]


def test_functions_that_are_imported_do_what_the_mutant_says(tmp_path: Path) -> None:
    file = tmp_path / "it.py"
    file.write_text(SOURCE)
    spec = util.spec_from_file_location("it", file)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    ours = [each for each in functions if each.__code__.co_filename == str(file)]
    assert [module.larger(n) for n in (2, 9)] == [2, 2]
    assert module.Two().add() == 7
    (mutant,) = [each for each in mutants_of("it.py", SOURCE) if each.after == "5"]
    put(mutant.applied(SOURCE), str(file), ours)
    assert [module.larger(n) for n in (2, 9)] == [2, 1]
    (mutant,) = [each for each in mutants_of("it.py", SOURCE) if each.after == "8"]
    put(mutant.applied(SOURCE), str(file), ours)
    assert module.Two().add() == 8


def test_a_line_belongs_to_its_innermost_statement(tmp_path: Path) -> None:
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats/it.py").write_text(SOURCE)
    statements = Statements(tmp_path)
    # The docstring, the assertion, `if` and what it holds, the last line; the method's.
    assert statements.spans["formats/it.py"] == [(6, 6), (7, 7), (8, 9), (10, 10), (9, 9), (15, 15)]
    assert [statements.at("formats/it.py", line) for line in (8, 9, 10, 15)] == [2, 4, 3, 5]
