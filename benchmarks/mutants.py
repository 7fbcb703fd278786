"""Mutants: the sources with one small error each. Those that no test fails on are listed.

    python benchmarks/mutants.py --count 200 --seed 1 --output mutants.jsonl

A mutant is chosen at random among all places of the files under test: a comparison, a sum, an
integer, a condition. It is put into a fork of a process that has imported a copy of the tree and
its tests, and there the tests that reach its line run until one fails: those named after its file
first, then the fastest, lit tests and pytest's alike. A mutant that makes tests run too long is
killed too.

What each test reaches is found once for each state of the sources (mutation/reach.py), and kept in
build/. `--resume` goes on where the output ends; with `--again`, survivors run again.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest
from mutation.change import chosen
from mutation.forks import fork_the_server, in_fork
from mutation.reach import Reach, Recorder, Statements
from mutation.trial import Trials, lit_fails

ROOT = Path(__file__).resolve().parents[1]
#: What is mutated: folders and files from the root of the tree.
SUBJECTS = ("passes", "kernels", "formats", "compiler/packing", "simulator", "runtime")


def copy(folder: Path) -> None:
    """Copy what git knows of, and work there. Byte code that is there is kept."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    names = {name for name in listed if name and (ROOT / name).is_file()}
    for name in names:
        old, new = folder / name, ROOT / name
        if not old.exists() or old.stat().st_mtime_ns != new.stat().st_mtime_ns:
            old.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(new, old, follow_symlinks=False)
    for link in (ROOT / "mxc").iterdir():
        if link.is_symlink() and not (folder / "mxc" / link.name).exists():
            shutil.copy2(link, folder / "mxc" / link.name, follow_symlinks=False)
    for place in folder.rglob("*.py"):
        if place.relative_to(folder).as_posix() not in names:
            place.unlink()
    os.chdir(folder)
    shutil.rmtree("temporary", ignore_errors=True)
    (folder / "temporary").mkdir()
    environment = {"PYTHONPATH": folder, "TMPDIR": folder / "temporary"}
    os.environ.update({name: str(path) for name, path in environment.items()})
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    others = [path for path in sys.path if not Path(path or ".").resolve().is_relative_to(ROOT)]
    sys.path[:] = [str(folder), str(folder / "tests"), *others]


def test_files(places: Sequence[str]) -> list[str]:
    """The files of tests in places of the tree, from its root."""
    found: dict[str, None] = {}
    for place in places:
        files = [ROOT / place] if (ROOT / place).is_file() else sorted((ROOT / place).rglob("*"))
        for file in files:
            name = file.relative_to(ROOT).as_posix()
            lit = name.startswith("lit_tests/") and file.suffix in (".mlir", ".py")
            if file.match("test_*.py") or (lit and file.name != "lit.cfg.py"):
                found[name] = None
    return [*found]


def run_pytest(files: Sequence[str], plugin: object) -> int:
    """Collect, and do what the plugin does; what is printed goes to output.txt."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with open("output.txt", "w") as said:
        for each in (1, 2):
            os.dup2(said.fileno(), each)
    words = ["-q", "-p", "no:cacheprovider", "-p", "hypothesis.extra.pytestplugin"]
    return int(pytest.main([*words, "--basetemp=temporary/pytest", *files], plugins=[plugin]))


def main() -> int:
    """Run the mutants; 0 where none survives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="of tests that a mutant survives")
    parser.add_argument("--subjects", nargs="+", default=SUBJECTS, metavar="PATH")
    parser.add_argument("--tests", nargs="+", default=["lit_tests", "tests"], metavar="PATH")
    parser.add_argument("--output", type=Path, required=True, help="a line of JSON each")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", action="store_true", help="run survivors again")
    words = parser.parse_args()
    output = words.output.resolve()
    rows: dict[str, dict] = {}
    if words.resume and output.exists():
        rows = {json.dumps(row["mutant"]): row for row in map(json.loads, output.open())}
    mutants = chosen(ROOT, words.count, words.seed, words.subjects)
    files = test_files(words.tests)
    folder = ROOT / "build/mutants/tree"
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name("lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    screen = os.fdopen(os.dup(1), "w", buffering=1)

    copy(folder)
    statements = Statements(folder)
    reach = Reach(statements, folder.with_name(f"reach-{statements.digest}.jsonl"))

    def record() -> int:
        new = reach.unknown(files)
        lit = [file for file in new if file.startswith("lit_tests/")]
        recorder = Recorder(reach, lit, lit_fails)
        fork_the_server()
        import_module("forked").Server()  # what it imports is reached by no test
        return run_pytest([file for file in new if file not in lit], recorder)

    def run(trials: Trials) -> None:
        for mutant in mutants:
            key = json.dumps(asdict(mutant))
            row = rows.get(key)
            if row is None or (words.again and row["killer"] is None):
                place = mutant.file, mutant.line
                found, fresh = reach.of(*place), reach.imported(*place)
                killer, seconds = trials.killer(mutant, found, fresh, words.seconds)
                row = {"mutant": asdict(mutant), "killer": killer, "tests": len(found)}
                rows[key] = row | {"seconds": round(seconds, 2)}
                output.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
            screen.write(f"{mutant}: {rows[key]['killer'] or 'SURVIVED'}\n")
        for name in sorted(trials.broken):
            screen.write(f"{name}: fails without a mutant, and is left out\n")
        kinds = Counter(row["killer"] is not None for row in rows.values())
        screen.write(f"{len(rows)} mutants: {kinds[True]} killed, {kinds[False]} survived\n")

    if reach.unknown(files):
        in_fork(record, float("inf"))
        reach = Reach(reach.statements, reach.place)
    known = [*dict.fromkeys(test.file for test in reach.tests)]
    status = run_pytest([file for file in known if not file.startswith("lit_tests/")], Trials(run))
    return status


if __name__ == "__main__":
    sys.exit(main())
