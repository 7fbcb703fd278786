"""Mutants in a tree whose modules and tests are imported once: each is put into a fork."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from mutation.change import Mutant
from mutation.forks import fork_the_server, in_fork
from mutation.reach import Test

#: Seconds of the first tests; whether one has failed is seen before more run.
_FIRST = 3.0


def lit_fails(test: str) -> bool:
    """Whether a lit test fails. Run it in a fork: it leaves processes and arguments."""
    sys.argv = ["lit", "-q", "-j1", test]
    try:
        import_module("lit.main").main()
    except SystemExit as end:
        return bool(end.code)
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def put(text: str, file: str, functions: Sequence[FunctionType]) -> None:
    """Have the functions of an imported file do what `text` says."""
    codes = _codes(compile(text, file, "exec"))
    new = {(code.co_qualname, code.co_firstlineno): code for code in codes}
    for function in functions:
        code = function.__code__
        function.__code__ = new.get((code.co_qualname, code.co_firstlineno), code)


def _batches(found: Sequence[Test], most: float) -> Iterator[list[Test]]:
    """The first few tests, and then as many more as take `most` seconds."""
    left = [*found]
    for seconds in (_FIRST, most):
        batch: list[Test] = []
        while left and (not batch or left[0].seconds < seconds):
            seconds -= left[0].seconds
            batch.append(left.pop(0))
        if batch:
            yield batch


@dataclass
class Trials:
    """Plugin of pytest: `run` is called where the tests would run, after all are collected."""

    run: Callable[[Trials], None]
    items: dict[str, pytest.Item] = field(default_factory=dict)
    tell: int = -1
    #: Names of tests that fail without a mutant, and of those that have killed one and do not.
    broken: set[str] = field(default_factory=set)
    sound: set[str] = field(default_factory=set)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Call `run` in place of the tests."""
        # The byte code of a mutant would outlive it.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self.items = {item.nodeid: item for item in session.items}
        for name in ("mxc.compiler.driver", "mxc.compiler.opt", "mxc.compiler.run_passes"):
            import_module(name)
        self.functions: dict[str, list[FunctionType]] = {}
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                place = os.path.realpath(each.__code__.co_filename)
                self.functions.setdefault(place, []).append(each)
        gc.freeze()
        self.run(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The first test that fails is told, and ends its process."""
        if report.failed:
            os.write(self.tell, report.nodeid.encode())
            os._exit(1)

    def killer(
        self, mutant: Mutant, found: Sequence[Test], fresh: bool, most: float
    ) -> tuple[str | None, float]:
        """The first test that fails with a mutant, and the seconds that took.

        `fresh`: the mutant changes what is imported, so each batch is a new process of Python. A
        test that fails here without a mutant kills none.
        """
        place = Path(mutant.file).resolve()
        text, times, spent = place.read_text(), place.stat(), 0.0
        changed = mutant.applied(text)
        for batch in _batches(found, most):
            place.write_text(changed)
            try:
                died, seconds = self._batch(batch, None if fresh else (changed, str(place)))
            finally:
                place.write_text(text)
                os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))
            spent += seconds
            if died in self.broken or (died and self._is_broken(died, batch)):
                left = [test for test in found if test.name not in self.broken]
                return self.killer(mutant, left, fresh, most)
            if died:
                return died, spent
        return None, spent

    def _is_broken(self, name: str, batch: Sequence[Test]) -> bool:
        """Whether a test fails without a mutant."""
        for test in batch:
            if test.name == name and name not in self.sound:
                failed, _ = self._batch([test], ("", ""))
                (self.broken if failed else self.sound).add(name)
        return name in self.broken

    def _batch(
        self, batch: Sequence[Test], change: tuple[str, str] | None
    ) -> tuple[str | None, float]:
        reads, self.tell = os.pipe()
        lit = [test.name for test in batch if test.name not in self.items]
        items = [self.items[test.name] for test in batch if test.name in self.items]

        def fresh() -> int:
            python = [sys.executable, "-m"]
            names = [item.nodeid for item in items]
            words = [[*python, "lit.main", "-q", "-j1", *lit]] if lit else []
            words += [[*python, "pytest", "-xq", "-p", "no:cacheprovider", *names]] if items else []
            return int(any(subprocess.call(each) for each in words))

        def warm() -> int:
            assert change is not None
            text, file = change
            put(text, file, self.functions.get(file, ()))
            fork_the_server()
            for test in lit:
                if lit_fails(test):
                    os.write(self.tell, test.encode())
                    return 1
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            return 0

        limit = 300 + 10 * sum(test.seconds for test in batch)  # others may use the machine
        status, spent = in_fork(warm if change else fresh, limit)
        os.close(self.tell)
        with open(reads, "rb") as pipe:
            said = pipe.read().decode()
        return (said or f"{batch[0].name} ({status})") if status else None, spent
