"""Compile and run test cases that frameworks ship on this CPU, and compare with their results.

    python benchmarks/framework_cases.py onnx --output onnx.jsonl [--only NAME]
    python benchmarks/framework_cases.py torch --output torch.jsonl    (needs expecttest)

Each case (frameworks/) runs in a process of its own. The output has a line of JSON for each program
of a case, with one of these outcomes:

    right      the results are within the bound of the case
    refused    mxc refuses the program with an error, whose text is in the line
    skipped    an argument or a result is no tensor of numbers
    wrong      a result has other numbers, sizes or types
    fault      any other exception, a crash, or more than 300 s

A second run continues the file. The exit status is 1 if a program is wrong or has a fault.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from frameworks.case import Case, Program

import mxc
from mxc.errors import MxcError

SECONDS = 300
FAILED = ("wrong", "fault")
#: Name of a program, its outcome, and the reason or error.
Outcome: TypeAlias = tuple[str, str, str]


def main() -> int:
    """Run the cases that the output does not have yet, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("framework", choices=("onnx", "torch"))
    parser.add_argument("--output", type=Path, required=True, help="a line of JSON each")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    words = parser.parse_args()
    known = words.output.read_text().splitlines() if words.output.exists() else []
    rows = list(map(json.loads, known))
    done = {row["case"] for row in rows}
    for case in import_module(f"frameworks.{words.framework}_cases").cases():
        if words.only in case.name and case.name not in done:
            found = _apart(case)
            new = [{"case": case.name, "name": n, "outcome": o, "text": t} for n, o, t in found]
            rows += new
            with words.output.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
            for name, outcome, text in found:
                print(f"{name}: {outcome} {text.splitlines()[-1] if text else ''}", flush=True)
    counts = Counter(row["outcome"] for row in rows)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return int(any(counts[outcome] for outcome in FAILED))


def _apart(case: Case) -> list[Outcome]:
    """Run a case in a process of its own and return its outcomes."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_child, args=(case, there))
    process.start()
    there.close()
    try:
        found: list[Outcome] = here.recv() if here.poll(SECONDS) else [_fault(case, "too long")]
    except EOFError:
        process.join()
        found = [_fault(case, f"the process ended with {process.exitcode}")]
    process.kill()
    process.join()
    return found


def _child(case: Case, to: Connection) -> None:
    try:
        to.send(outcomes(case))
    except BaseException:
        to.send([_fault(case, traceback.format_exc())])


def _fault(case: Case, text: str) -> Outcome:
    return case.name, "fault", text


def outcomes(case: Case) -> list[Outcome]:
    """Compile the programs of a case and compare the results of each.

    They are compiled together, or one by one if mxc refuses that.
    """
    programs = case.load()
    if not programs:
        return [(case.name, "skipped", "")]
    try:
        return _compared(programs)
    except MxcError as error:
        if len(programs) == 1:
            return [(programs[0].name, "refused", str(error))]
    found = []
    for each in programs:
        try:
            found += _compared([each])
        except MxcError as error:
            found.append((each.name, "refused", str(error)))
    return found


def _compared(programs: Sequence[Program]) -> list[Outcome]:
    found = []
    with tempfile.TemporaryDirectory() as made:
        functions = {f"f{number}": each.program for number, each in enumerate(programs)}
        artifact = mxc.compile(functions, output=Path(made) / "cases.mxc")
        model = mxc.load(artifact.path, threads=1)
        for function, program in zip(functions, programs, strict=True):
            texts = [
                f"result {number}: {text}"
                for given, wanted in program.calls
                for number, pair in enumerate(
                    zip(model.call(function, *given), wanted, strict=True)
                )
                if (text := difference(*pair, program.rtol, program.atol))
            ]
            found.append((program.name, "wrong" if texts else "right", "".join(texts[:1])))
    return found


def difference(
    found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], rtol: float, atol: float
) -> str:
    """Return how a result differs from the wanted one; empty if it is within the bound. Integers
    have to be equal."""
    if found.shape != wanted.shape:
        return f"wants {wanted.shape}, found {found.shape}"
    if found.dtype != wanted.dtype and found.dtype.itemsize == wanted.dtype.itemsize:
        # The integers that an artifact takes and returns are signless; the sign is the wanted one.
        found = found.view(wanted.dtype)
    if found.dtype != wanted.dtype:
        return f"wants {wanted.dtype}, found {found.dtype}"
    if wanted.dtype.kind in "biu":
        wrong = found != wanted
    else:
        with np.errstate(all="ignore"):
            one, other = (each.astype(np.float64) for each in (found, wanted))
            wrong = ~np.isclose(one, other, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{wrong.sum()} of {wrong.size} differ, first at {list(place)}: wants {wanted[place]}, "
        f"found {found[place]}"
    )


if __name__ == "__main__":
    sys.exit(main())
