"""A plugin of pytest for runs that have to end in time: a few cases of each test, then the others.

    python -m pytest -p tests.rounds --until $(( $(date +%s) + 600 )) [--seed TEXT]

A case that has not begun at the time of `--until` is skipped, and the summary says how many were.
On a slow machine every test has then run with some of its cases before any has run with all.
Which these are, and in which order the others follow, depends on the seed alone: runs of different
commits, whose names `make test` gives, leave out different cases.
"""

import collections
import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

#: Cases of a test in the first round.
_FEW = 3
_SKIPPED = "no time was left (--until)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """When the run has to end."""
    parser.addoption(
        "--until",
        type=float,
        required=True,
        metavar="TIME",
        help="skip what has not begun at this time, as date +%%s prints it",
    )
    parser.addoption("--seed", default="", metavar="TEXT", help="which cases run first")


def _hash(seed: str, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def first_round(names: Iterable[str], seed: str) -> set[str]:
    """The names of the cases that run first: of each test those whose names have the least hashes.

    Neighbours in a list of cases are alike. These few lie anywhere in it.
    """
    tests: dict[str, list[str]] = collections.defaultdict(list)
    for name in names:
        tests[name.partition("[")[0]].append(name)
    return {
        name
        for cases in tests.values()
        for name in sorted(cases, key=lambda name: _hash(seed, name))[:_FEW]
    }


def _units(names: Sequence[str], seed: str) -> dict[str, str]:
    """The unit of each case: its round and its file."""
    first = first_round(names, seed)
    return {name: f"{1 if name in first else 2} {name.partition('::')[0]}" for name in names}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort: the first round, files with many cases first; then the second, of which some may be
    left out, in any order."""
    seed: str = config.getoption("--seed")
    units = _units([item.nodeid for item in items], seed)
    sizes = collections.Counter(units.values())

    def key(item: pytest.Item) -> tuple[str, int, bytes]:
        unit = units[item.nodeid]
        return unit[0], -sizes[unit] if unit[0] == "1" else 0, _hash(seed, unit)

    items.sort(key=key)


class Scheduling(LoadFileScheduling):
    """The cases of a file in one round run on one worker, which shares what they compile."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # Units go to the workers in the order of the tests.
        config.option.loadscopereorder = False
        self._seed: str = config.getoption("--seed")
        self._units: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._units:
            self._units = _units(next(iter(self.registered_collections.values())), self._seed)
        return self._units[nodeid]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """For any number of workers."""
    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before anything is made for the test."""
    if time.time() > item.config.getoption("--until"):
        pytest.skip(_SKIPPED)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many cases were skipped, and which tests have not run at all."""
    reports: dict[str, list[Any]] = terminalreporter.stats
    skipped, ran = set(), set()
    for outcome, found in reports.items():
        for report in found:
            name = getattr(report, "nodeid", "").partition("[")[0]
            if outcome == "skipped" and _SKIPPED in str(report.longrepr):
                skipped.add(name)
            elif getattr(report, "when", None) == "call" or outcome == "error":
                ran.add(name)
    if skipped:
        missing = sorted(skipped - ran)
        terminalreporter.write_line(
            f"--until: {len(skipped)} tests have not run with all of their cases, "
            f"{len(missing)} of them with none"
        )
        for name in missing:
            terminalreporter.write_line(f"  not run: {name}")
