"""Runs tests in forks of one process, to find the lines that each reaches, and to try mutants."""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from inspect import unwrap
from itertools import pairwise
from operator import itemgetter, or_
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

import pytest

from mutation.change import Mutant, mutated
from mutation.forks import fork_the_server, in_fork
from mutation.reach import Marks

T = TypeVar("T")

#: A test that passes: its name, the seconds it takes, and the marks that it sets.
Test = tuple[str, float, bytes]


def _resolve(target: object) -> object:
    """`mxc.compiler.iree.resolve`, as it was before `Trials` replaced it."""
    return unwrap(import_module("mxc.compiler.iree").resolve)(target)


def _lit_fails(test: str) -> bool:
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


def by_file(objects: Iterable[object]) -> dict[str, list[FunctionType]]:
    """Return the functions among `objects` by the real path of their file: the packages in mxc/ are
    symbolic links."""
    real, found = cache(os.path.realpath), dict[str, list[FunctionType]]()
    for each in objects:
        if isinstance(each, FunctionType):
            found.setdefault(real(each.__code__.co_filename), []).append(each)
    return found


def put(module: ast.Module, functions: Sequence[FunctionType]) -> None:
    """Replace the code of functions that were imported by the code of the same functions, by name
    and first line, in the tree `module`."""
    codes = _codes(compile(module, "mutant", "exec", dont_inherit=True))
    new = {(code.co_qualname, code.co_firstlineno): code for code in codes}
    for function in functions:
        code = function.__code__
        function.__code__ = new.get((code.co_qualname, code.co_firstlineno), code)


class Trials:
    """A plugin of pytest that calls `run` in place of the tests, after all are collected."""

    def __init__(
        self, root: Path, sources: list[str], most: float, run: Callable[[Trials], None]
    ) -> None:
        """Mark the lines of the files `sources`, and replace what forks cannot run or should share.

        most: seconds of tests after which no other test of a file is recorded. What tests share
        (fixtures and cached functions) does not count.
        """
        self.marks, self.most, self.run, self.folder = Marks(root, sources), most, run, root.parent
        #: Seconds that recording each test file took last.
        self.costs: dict[str, float] = {}
        self._costs = self.folder / "seconds.json"
        if self._costs.exists():
            self.costs = json.loads(self._costs.read_text())
        self._digest = hashlib.sha256(b"".join((root / name).read_bytes() for name in sources))
        #: Tests that have failed with a mutant and passed without; tests that have failed without.
        self.sound, self.broken = set[str](), set[str]()
        self._failed, self._shared, self._none = False, b"", self.marks.reached[:]
        #: When the running test began. Moved forward by the time of what it shares with others.
        self._begun = 0.0
        # Tests resolve targets when they are imported. A process of its own does so: threads of the
        # compiler would not survive the forks of this one.
        iree, fork = import_module("mxc.compiler.iree"), multiprocessing.get_context("fork").Pool

        @cache
        @wraps(iree.resolve)
        def apart(target: object) -> object:
            with fork(1) as pool:
                return pool.apply(_resolve, (target,))

        patch = pytest.MonkeyPatch()
        patch.setattr(iree, "resolve", apart)
        # Tests that share a program compile it in a fixture, or in a function with functools.cache.
        patch.setattr(functools, "cache", self._cache)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Call `run` in place of the tests."""
        sys.dont_write_bytecode = True  # bytecode of a mutant would outlive it
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        self.items = {item.nodeid: item for item in session.items}
        for name in import_module("tests.forked")._READY:
            import_module(name)
        #: Marks of lines that have run before any test: while modules were imported.
        self.imported = self.marks.reached[:]
        gc.unfreeze()  # gc does not list what is frozen
        self.functions = by_file(gc.get_objects())
        gc.freeze()
        self.run(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure."""
        self._failed |= report.failed

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        """Count what a fixture does as shared, if its scope is more than one test."""
        if fixturedef.scope == "function":
            yield
            return
        with self._sharing():
            yield

    @contextmanager
    def _sharing(self) -> Iterator[None]:
        """Count the lines that run here as reached by all later tests, and the time for no test."""
        start, begun = time.perf_counter(), self._begun
        try:
            yield
        finally:
            self._shared = self._reached()
            # From `begun`: the whole time here includes that of a nested call, which has moved it.
            self._begun = begun + time.perf_counter() - start

    def _cache(self, work: Callable[..., T]) -> Callable[..., T]:
        """A `functools.cache` that counts what functions of tests compute as shared."""
        if not work.__module__.startswith("tests."):
            return cache(work)

        @wraps(work)
        def shared(*given: Any, **named: Any) -> T:
            with self._sharing():
                return work(*given, **named)

        return cache(shared)

    def _reached(self) -> bytes:
        here = self.marks.reached[:]
        return bytes(map(or_, here, self._shared or here))

    def digest_of(self, file: str) -> str:
        """Return the digest of a test file and all sources."""
        digest = self._digest.copy()
        digest.update(Path(file).read_bytes())
        return digest.hexdigest()

    def tests(self, file: str) -> list[Test]:
        """Return the tests of a file that pass, the fastest first. They run and are recorded if
        there is no record with these sources."""
        place = self.folder / "reach" / self.digest_of(file)

        def record() -> bool:
            names = [name for name in self.items if name.partition("::")[0] == file] or [file]
            found, left = [], self.most
            for name, failed in self._runs(names):
                seconds = time.perf_counter() - self._begun
                if not failed:
                    found.append((name, seconds, zlib.compress(self._reached())))
                left -= seconds
                if left < 0:
                    break
            return place.write_bytes(pickle.dumps(found)) > 0

        place.parent.mkdir(exist_ok=True)
        if not place.exists():
            start = time.perf_counter()
            if not in_fork(record, 3600):
                return []
            self.costs[file] = time.perf_counter() - start
            self._costs.write_text(json.dumps(self.costs))
        found = sorted(pickle.loads(place.read_bytes()), key=itemgetter(1))
        return [(name, seconds, zlib.decompress(marks)) for name, seconds, marks in found]

    def _runs(self, names: Sequence[str]) -> Iterator[tuple[str, bool]]:
        """Run tests of a file in this process. Yield each name, and whether the test has failed."""
        fork_the_server()
        for name, following in pairwise([*names, ""]):
            (self.folder / "running").write_text(name)
            self.marks.reached[:], self._begun = self._none, time.perf_counter()
            self._failed = name not in self.items and _lit_fails(name)
            if name in self.items:
                item, after = self.items[name], self.items.get(following)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            yield name, self._failed

    def reaching(self, mutant: Mutant, tests: Sequence[Test]) -> list[Test]:
        """Return the tests that reach the line of a mutant.

        If the line only runs while modules are imported: those that reach any line of its file.
        Tests that fail without a mutant are left out.
        """
        lines = self.marks.lines[mutant.file]
        found = [test for test in tests if test[2][lines.start + mutant.line]]
        if not found and self.imported[lines.start + mutant.line]:
            found = [test for test in tests if any(test[2][lines.start : lines.stop])]
        return [test for test in found if test[0] not in self.broken]

    def killer(self, mutant: Mutant, tests: Sequence[Test]) -> str | None:
        """Return the first test that fails with a mutant and passes without; None if none does."""
        names = [name for name, _, _ in tests]
        limit = 300 + 10 * sum(seconds for _, seconds, _ in tests)  # others may use the machine
        fresh = bool(self.imported[self.marks.lines[mutant.file].start + mutant.line])
        while names and not self._pass(names, mutant, fresh, limit):
            failed = names[0] if fresh else (self.folder / "running").read_text()
            if failed in self.sound or self._pass([failed], None, fresh, limit):
                self.sound.add(failed)
                return failed
            self.broken.add(failed)
            names.remove(failed)
        return None

    def _pass(self, names: Sequence[str], mutant: Mutant | None, fresh: bool, most: float) -> bool:
        """Whether tests of a file pass, with a mutant unless None.

        fresh: in a new process of Python, for lines that run while modules are imported; else in a
        fork of this one.
        """

        def anew() -> bool:
            words = ["pytest", "-xq", "-p", "no:cacheprovider"]
            words = words if names[0] in self.items else ["lit.main", "-q", "-j1"]
            return subprocess.call([sys.executable, "-m", *words, *names]) == 0

        def warm() -> bool:
            if mutant is not None:
                put(tree, self.functions.get(str(file), ()))
            return not any(failed for _, failed in self._runs(names))

        if mutant is None:
            return in_fork(anew if fresh else warm, most)
        file = Path(mutant.file).resolve()
        text, times = file.read_text(), file.stat()
        _, tree = mutated(mutant.file, text, mutant.number)
        file.write_text(ast.unparse(tree))
        try:
            return in_fork(anew if fresh else warm, most)
        finally:
            file.write_text(text)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
