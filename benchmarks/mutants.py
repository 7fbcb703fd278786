"""Mutation testing: lists mutants, copies of the sources with a small error, that no test detects.

    python benchmarks/mutants.py --count 200 --seed 1 --output mutants.jsonl

Mutants change a random place of the files under test: a comparison, an operation, an integer or a
condition. The tests are imported once, from a clone of the tree. Each test file runs in a fork,
which records the lines that each of its tests reaches. Then each remaining mutant is applied in a
fork, where the tests of the file that reach its line run until one fails. A mutant that makes tests
run too long counts as killed.

Test files that took little time in an earlier run come first, and those that are in the folder of
many mutants or named after a mutant's file. No further file runs when all mutants are killed.
--seconds limits the tests that are run for one mutant, and the tests of a file whose reached lines
are recorded; what tests share (fixtures, cached functions) is not counted. Records of reached lines
are kept in build/ until the sources change. The output has a line of JSON for each mutant: the test
that kills it, or the digests of the test files that it survives. A second run continues it.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from mutation.change import Mutant, chosen
from mutation.trial import Trials

ROOT = Path(__file__).resolve().parents[1]
#: Folders and files that are mutated, from the root of the tree.
SUBJECTS = ("passes", "kernels", "formats", "compiler/packing", "simulator", "runtime")
#: Folders of the sources in which the lines that tests reach are recorded.
SOURCES = ("artifact", "compiler", "dialects", "server", "targets", *SUBJECTS)


def git(place: Path, *words: str) -> str:
    """Run git in a folder and return what it prints."""
    return subprocess.check_output(["git", "-C", place, *words], text=True).strip()


def enter_a_clone(folder: Path) -> None:
    """Change to a clone of the tree, and import from there instead of from the tree.

    The clone has the tracked files with their uncommitted changes. It is made if `folder` does not
    exist.
    """
    if not folder.exists():
        git(ROOT, "clone", "-q", "--shared", "--no-checkout", str(ROOT), str(folder))
    state = git(ROOT, "stash", "create") or git(ROOT, "rev-parse", "HEAD")
    git(folder, "checkout", "-qf", "--detach", state)
    os.chdir(folder)
    temporary = folder.with_name("temporary")
    temporary.mkdir(exist_ok=True)
    os.environ.update(PYTHONPATH=str(folder), TMPDIR=str(temporary), OMP_NUM_THREADS="1")
    others = [path for path in sys.path if not _is_of_the_tree(Path(path or ".").resolve())]
    sys.path[:] = [str(folder), *others]


def _is_of_the_tree(path: Path) -> bool:
    """Whether a folder of sys.path is in this tree, but not in a Python environment inside it."""
    return path.is_relative_to(ROOT) and not path.is_relative_to(sys.prefix)


def run(trials: Trials, words: argparse.Namespace, files: Sequence[str]) -> int:
    """Run one test file after the other. Return how many mutants survive or were not tried."""
    known = words.output.read_text().splitlines() if words.output.exists() else []
    rows = {str(row["mutant"]): row for row in map(json.loads, known)}
    for mutant in words.mutants:
        new: dict[str, Any] = {
            "mutant": asdict(mutant),
            "killer": None,
            "tests": 0,
            "seconds": 0.0,
            "survives": [],
        }
        rows.setdefault(str(new["mutant"]), new)
    left = [mutant for mutant in words.mutants if not rows[str(asdict(mutant))]["killer"]]
    files = [*files]
    while left and files:
        file = min(files, key=lambda file: price(file, left, trials.costs.get(file, 1.0)))
        files.remove(file)
        every, digest = trials.tests(file), trials.digest_of(file)
        for mutant in [*left]:
            row, tests = rows[str(asdict(mutant))], trials.reaching(mutant, every)
            if digest in row["survives"]:
                continue
            while tests and row["seconds"] + sum(test[1] for test in tests) > words.seconds:
                tests.pop()
            row["killer"] = trials.killer(mutant, tests)
            row["tests"] += len(tests)
            row["seconds"] += sum(test[1] for test in tests)
            row["survives"] += [] if row["killer"] else [digest]
            if row["killer"]:
                left.remove(mutant)
                print(f"{mutant}: {row['killer']}", file=words.screen)
        words.output.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    for name in sorted(trials.broken):
        print(f"{name}: fails without a mutant, and is left out", file=words.screen)
    untried = [mutant for mutant in left if rows[str(asdict(mutant))]["tests"] == 0]
    for mutant in left:
        said = "NOT TRIED" if mutant in untried else "SURVIVED"
        print(f"{mutant}: {said}", file=words.screen)
    use = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in use)
    count = len(words.mutants)
    survived = f"{len(left) - len(untried)} survived, {len(untried)} were not tried"
    print(f"{count} mutants, {survived}, {seconds:.0f} s of processors", file=words.screen)
    return len(left)


def price(file: str, left: Sequence[Mutant], seconds: float) -> float:
    """Return the rank of a test file, of which the lowest runs next: its seconds over a weight.

    Each remaining mutant of a source in the folder that the test file mirrors adds 1 to the weight,
    and each of the source that the file is named after adds 10.
    """
    name, folder = Path(file).stem.removeprefix("test_"), Path(file).parent.parts[1:]
    subjects = [Path(mutant.file) for mutant in left]
    beside = sum(folder != () and each.parts[: len(folder)] == folder for each in subjects)
    return seconds / (1 + beside + 10 * sum(each.stem == name for each in subjects))


def main() -> int:
    """Run the mutants. Return 0 if tests kill them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="of tests for a mutant")
    parser.add_argument("--subjects", nargs="+", default=SUBJECTS, metavar="PATH")
    parser.add_argument("--tests", nargs="+", default=["lit_tests", "tests"], metavar="PATH")
    parser.add_argument("--output", type=Path, required=True, help="a line of JSON each")
    words = parser.parse_args()
    words.output = words.output.absolute()
    folder = ROOT / "build/mutants/tree"
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name("lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    words.screen = os.fdopen(os.dup(1), "w", buffering=1)

    enter_a_clone(folder)
    # mxc/passes is a link to passes.
    subjects = [str((folder / each).resolve().relative_to(folder)) for each in words.subjects]
    words.mutants = chosen(folder, words.count, words.seed, subjects)
    tests = [Path(file) for file in git(folder, "ls-files", *words.tests).splitlines()]
    files = [
        str(f)
        for f in tests
        if f.match("test_*.py") or (f.parts[0] == "lit_tests" and len(f.parts) > 2)
    ]
    with folder.with_name("output.txt").open("w") as said:
        for each in (1, 2):
            os.dup2(said.fileno(), each)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # Code is generated once for each program, as in the tests (tests/kept_code.py).
    code = folder.with_name("code")
    code.mkdir(exist_ok=True)
    os.environ["MXC_TESTS_KEPT_CODE"] = str(code)
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "hypothesis.extra.pytestplugin"]
    sources = git(folder, "ls-files", *(f"{place}/*.py" for place in SOURCES)).splitlines()
    left: list[int] = []
    trials = Trials(folder, sources, words.seconds, lambda t: left.append(run(t, words, files)))
    collected = [file for file in files if not file.startswith("lit_tests/")]
    pytest.main([*quiet, f"--basetemp={folder}/../temporary/pytest", *collected], plugins=[trials])
    return int(left != [0])


if __name__ == "__main__":
    sys.exit(main())
