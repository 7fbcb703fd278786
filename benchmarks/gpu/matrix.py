"""The coverage matrix: how each case of contraction compiles on each GPU, and bars that it misses.

    python benchmarks/gpu/matrix.py [--target gfx950] [--filter REGEX] [--jobs 2] [--json]
                                    [--output FILE [--resume]] [--compare FILE] [--list]

Each case (matrix_cases.py) is one program that mxc compiles in a worker process. Nothing runs. The
report of the case must meet the bars, which are requirements (matrix_rows.py). The last lines state
how many cases meet each bar. `--output` writes each row as soon as it is known, as a line of JSON;
with `--resume` the rows in the file are not measured again. `--compare` with such a file prints the
changes since then. The first line states which mxc is measured: another working tree than the
installed one needs PYTHONPATH. The exit status is 1 if a case misses a bar.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from matrix_case import Case
from matrix_cases import cases
from matrix_objects import ROWS, disagreements
from matrix_objects import read as read_code
from matrix_programs import program
from matrix_rows import Row, counts, differences, misses, row
from matrix_spellings import spelled, spelling_cases
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import mxc
from mxc.artifact.schema import read_record
from mxc.compiler.report import Report
from mxc.compiler.steps import Compiled, CompileRequest
from mxc.compiler.worker import compile_program
from mxc.errors import MxcError
from mxc.simulator.code.processors import PROCESSORS
from mxc.targets.amd import GPUS
from mxc.targets.target import Target, target

_KINDS = {"scaled matrix": "scaled", "matrix": "matrix", "dot product": "dot",
          "multiply-add": "fma", "none": "none"}  # fmt: skip
#: Characters that are kept of the text of a refusal.
_LONGEST = 240
_HEADINGS = (
    f"{'target':<8} {'case':<52} {'by':<7} {'kern':>4} {'spill':>5} {'scr':>5} {'vgpr':>4} "
    f"{'LDS':>6} {'waves':>5} {'transient':>10} {'pack':>4} {'of min':>6} {'B/load':>6} "
    f"{'share':>5} {'bound':<7} {'s':>5}  misses / fallback"
)


#: The names of a case and of a target.
Key = tuple[str, str]


def every_case() -> list[Case]:
    """Return all cases; their names are unique."""
    found = [*cases(), *spelling_cases()]
    assert len({case.name for case in found}) == len(found)
    return found


def measure(case: Case, record: Target) -> Row:
    """Compile one case, and return its row, also if it is refused (`Row.failed`)."""
    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="mxc-matrix-") as folder:
            compiled = compile_program(
                CompileRequest(
                    program=spelled(case.spelled) if case.spelled else program(case),
                    place=case.name,
                    target=record.name,
                    module=Path(folder) / "module.vmfb",
                    parameters=True,
                )
            )
            objects = _disagreements(case, record, compiled, Path(folder) / "module.vmfb")
    except (MxcError, RuntimeError, ValueError) as error:
        return Row(
            name=case.name,
            group=case.group,
            target=record.name,
            seconds=round(time.perf_counter() - start, 2),
            failed=_reason(error),
        )
    found = row(case, record, compiled.report, time.perf_counter() - start)
    return replace(found, disagreements=tuple(objects))


def _disagreements(case: Case, record: Target, compiled: Compiled, file: Path) -> list[str]:
    """Return the differences of the report from the module; none if the simulator cannot decode the
    machine code of the target.

    A dynamic number of rows decides which kernels run: the module is called with several numbers.
    """
    if record.name not in {each.name for each in PROCESSORS.values()}:
        return []
    ((name, function),) = compiled.functions.items()
    rows: tuple[int, ...] = (case.m,)
    if case.m < 0:
        rows = tuple(count for _, count in record.group_rows) if case.experts else ROWS
    modules = [read_code(file, function, name, count) for count in rows]
    report = Report.from_dict(compiled.report)
    return disagreements(
        report, modules, record, alone=case.contracts and not case.does_more,
        gathers=bool(case.experts),
    )  # fmt: skip


def _reason(error: Exception) -> str:
    """Return one line about an error: of a trace the last line, which says what went wrong."""
    text = str(error).strip() or type(error).__name__
    told = text if isinstance(error, MxcError) else text.splitlines()[-1]
    return " ".join(told.split())[:_LONGEST]


def line(case: Case, found: Row, record: Target) -> str:
    """Format one row of the table."""
    missed = misses(case, found, record)
    why = "; ".join([found.fallback or found.failed, *found.disagreements[:2]]).strip("; ")
    said = "; ".join(missed) + (f" [{why}]" if missed else "")
    share = "" if found.matrix_share is None else f"{found.matrix_share:.2f}"
    wide = "" if found.load_bytes is None else f"{found.load_bytes:.1f}"
    moved = "" if found.moved is None else f"{found.moved:.2f}"
    kind = "FAILED" if found.failed else _KINDS[found.kind]
    return (
        f"{found.target:<8} {case.name:<52} {kind:<7} {found.kernels:>4} {found.spills:>5} "
        f"{found.scratch_bytes:>5} {found.vgpr:>4} {found.lds_bytes:>6} {found.waves:>5} "
        f"{found.transient_bytes:>10} {'yes' if found.packed else 'no':>4} {moved:>6} {wide:>6} "
        f"{share:>5} {found.bound_by:<7} {found.seconds:>5.1f}  {said}"
    ).rstrip()


def run(
    chosen: Sequence[tuple[Case, Target]], known: Mapping[Key, Row], jobs: int, bar: Progress
) -> Iterator[Row]:
    """Yield rows in the order of the cases, as they are done. Those in `known` are not measured."""
    task = bar.add_task("compiling", total=len(chosen))

    def found(pair: tuple[Case, Target]) -> Row:
        case, record = pair
        return known.get((case.name, record.name)) or measure(case, record)

    with ThreadPoolExecutor(jobs) as pool:
        for one in pool.map(found, chosen):
            bar.advance(task)
            yield one


def show_counts(pairs: Sequence[tuple[Case, Row]], record: Target) -> None:
    """Print how many rows of a target meet each bar."""
    print(f"\n{record.name}: {len(pairs)} cases")
    for name, met, concerned in counts(pairs, record):
        print(f"  {name:<56} {met:>5} of {concerned:<5}{'' if met == concerned else 'MISSED'}")


@contextmanager
def _scratch() -> Iterator[None]:
    """Put temporary files in a folder that is removed at the end: a refusal leaves its IR there."""
    with tempfile.TemporaryDirectory(prefix="mxc-matrix-") as folder:
        usual, tempfile.tempdir = tempfile.tempdir, folder
        try:
            yield
        finally:
            tempfile.tempdir = usual


def read(file: Path) -> list[Row]:
    """Read the rows that `--output` has written."""
    return [read_record(Row, json.loads(line)) for line in file.read_text().splitlines()]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = [each.name for each in GPUS]
    parser.add_argument("--target", action="append", choices=known, help="may be repeated")
    parser.add_argument("--filter", default="", help="a regular expression over names of cases")
    parser.add_argument("--jobs", type=int, default=1, help="compilations at once")
    parser.add_argument("--json", action="store_true", help="print the rows for programs")
    parser.add_argument("--output", type=Path, help="write the rows to this file, one a line")
    parser.add_argument("--resume", action="store_true", help="keep the rows that it has")
    parser.add_argument("--compare", type=Path, help="a file of --output to compare with")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    wanted = [case for case in every_case() if re.search(arguments.filter, case.name)]
    if arguments.list:
        print("\n".join(case.name for case in wanted))
        return 0
    if not wanted:
        raise SystemExit(f"--filter {arguments.filter!r}: no case has such a name; see --list")
    records = [target(name) for name in arguments.target or ["gfx950"]]
    chosen = [(case, record) for record in records for case in wanted]
    before = read(arguments.compare) if arguments.compare else []
    output = arguments.output
    kept = read(output) if arguments.resume and output and output.exists() else []
    known = {(one.name, one.target): one for one in kept}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    rows: list[Row] = []
    if not arguments.json:
        print(f"compiled by mxc in {Path(mxc.__file__).parent.parent}")
        print(_HEADINGS)
    with (
        _scratch(),
        Progress(*columns, console=Console(stderr=True), transient=True) as bar,
        output.open("a" if known else "w") if output else nullcontext() as file,
    ):
        found = run(chosen, known, arguments.jobs, bar)
        for (case, record), one in zip(chosen, found, strict=True):
            rows.append(one)
            if file is not None and (one.name, one.target) not in known:
                print(json.dumps(one.to_dict()), file=file, flush=True)
            if not arguments.json:
                print(line(case, one, record), flush=True)
    if arguments.json:
        print(json.dumps([one.to_dict() for one in rows]))
    else:
        for record in records:
            own = [(c, r) for (c, t), r in zip(chosen, rows, strict=True) if t is record]
            show_counts(own, record)
    for text in differences(before, rows):
        print(text, file=sys.stderr if arguments.json else sys.stdout)
    return int(any(misses(c, r, t) for (c, t), r in zip(chosen, rows, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
