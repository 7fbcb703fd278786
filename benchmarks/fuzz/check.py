"""Compile programs together, run each on all patterns of operands, and compare with the reference.

All of this happens in a child process, so that a crash or a hang is a finding and does not end the
fuzzer.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import mxc
from fuzz.bounded import Bounded
from fuzz.description import Program
from fuzz.mlir import Function, function
from fuzz.operands import PATTERNS, Pattern, chosen, constants, operands
from fuzz.reference import computed, quantized_wrongly
from mxc.artifact.manifest import REPORT
from mxc.compiler import iree
from mxc.compiler.pipelines import pipeline
from mxc.compiler.report import Report
from mxc.passes.base import run
from mxc.targets.target import target as target_record

Item = TypeVar("Item")
#: A function of programs, the seeds of their operands and a target. It returns an item for each
#: program, or an outcome if it has none.
Work = Callable[[Sequence[Program], Sequence[int], str], Sequence[Item | "Outcome"]]
#: A function of programs, the seeds of their operands and a target. It returns an outcome for each
#: program.
Check = Callable[[Sequence[Program], Sequence[int], str], list["Outcome"]]

#: Time limit of a child process in seconds: a constant part, and a part for each program.
_SECONDS, _SECONDS_EACH = 240, 20


@dataclass(frozen=True)
class Outcome:
    """The outcome of checking a program.

    kind: "kernel", "fallback" and "refused" are right. All others are findings: "wrong" (numbers),
    "silent" (a contraction without a kernel and without a reason), "unlisted" (one that is missing
    in the report), and the failures "trace", "rejected", "crash", "death" and "hang".

    why: the instructions of a kernel, the reason of a fallback or a refusal, or what was found.
    """

    kind: str
    why: str = ""

    @property
    def is_finding(self) -> bool:
        """Whether something is wrong."""
        return self.kind not in ("kernel", "fallback", "refused")


def check(programs: Sequence[Program], seeds: Sequence[int], target: str = "cpu") -> list[Outcome]:
    """Compile, run and compare each program, and return its outcome. seeds: of the operands."""
    return apart(_checked, programs, seeds, target)


def apart(
    work: Work[Item], programs: Sequence[Program], seeds: Sequence[int], target: str
) -> list[Item | Outcome]:
    """Run `work` in a child process, and return what it gives for each program.

    If the child dies or hangs, or `work` raises an exception, each half of the programs runs alone,
    down to the program at fault.
    """
    found = _in_child(work, programs, seeds, target)
    if isinstance(found, list):
        return found
    if len(programs) == 1:
        return [found]
    middle = len(programs) // 2
    return [
        *apart(work, programs[:middle], seeds[:middle], target),
        *apart(work, programs[middle:], seeds[middle:], target),
    ]


def _in_child(
    work: Work[Item], programs: Sequence[Program], seeds: Sequence[int], target: str
) -> list[Item | Outcome] | Outcome:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(there, work, programs, seeds, target))
    child.start()
    there.close()
    limit = _SECONDS + _SECONDS_EACH * len(programs)
    try:
        if not here.poll(limit):
            return Outcome("hang", f"nothing after {limit} s")
        found: list[Item | Outcome] | Outcome = here.recv()
        return found
    except EOFError:
        child.join()
        return Outcome("death", f"the process that ran it ended with {child.exitcode}")
    finally:
        child.kill()
        child.join()


def _child(
    out: Connection,
    work: Work[Item],
    programs: Sequence[Program],
    seeds: Sequence[int],
    target: str,
) -> None:
    try:
        found: Sequence[Item | Outcome] | Outcome = work(programs, seeds, target)
    except mxc.MxcError as error:
        # The error does not say which program caused it: `apart` finds out.
        found = refused(error)
    except Exception:
        found = Outcome("trace", traceback.format_exc()[-1500:])
    out.send(found)


def refused(error: mxc.MxcError) -> Outcome:
    """Return the outcome of an error of mxc: "refused" if a pass says why, else a finding."""
    died = "the compiler died" in str(error)
    ours = type(error).__name__ == "PassError"
    return Outcome("crash" if died else "refused" if ours else "rejected", str(error))


def _checked(programs: Sequence[Program], seeds: Sequence[int], target: str) -> list[Outcome]:
    functions = [
        function(program, f"f{number}", constants(program, seed))
        for number, (program, seed) in enumerate(zip(programs, seeds, strict=True))
    ]
    found = screened(functions, target)
    left = [n for n in range(len(programs)) if n not in found]
    with tempfile.TemporaryDirectory(prefix="mxc-fuzz-") as folder:
        source, output = Path(folder, "program.mlir"), Path(folder, "program.mxc")
        if left:
            source.write_text("".join(functions[n].text for n in left))
            mxc.compile(source, target=target, output=output, cache=False)
            report = Report.from_dict(json.loads((output / REPORT).read_text()))
            device = "simulator" if target_record(target).is_gpu else "local-sync"
            model = mxc.load(output, device=device)
        for n in left:
            found[n] = _compared(model, report, f"f{n}", functions[n], programs[n], seeds[n])
    return [found[n] for n in range(len(programs))]


def screened(functions: Sequence[Function], target: str) -> dict[int, Outcome]:
    """Run mxc's own stages on each function alone. Return the outcomes of those that fail, by
    number; the others are then compiled together."""
    record = target_record(target)
    stages = [stage for stage in pipeline(target).stages if stage.phase is None]
    found: dict[int, Outcome] = {}
    for number, each in enumerate(functions):
        try:
            compiler = iree.Compiler(record, each.text.encode())
            for stage in stages:
                run(stage.passes, compiler.module)
        except mxc.MxcError as error:
            found[number] = refused(error)
        except Exception:
            found[number] = Outcome("trace", traceback.format_exc()[-1500:])
    return found


def _compared(
    model: Any, report: Report, name: str, function: Function, program: Program, seed: int
) -> Outcome:
    for pattern in PATTERNS:
        given = operands(program, pattern, seed)
        results = model.call(name, *chosen(given, function.arguments))
        wrong = difference(program, results, computed(program, given))
        if wrong:
            return Outcome("wrong", f"{pattern}: {wrong}")
    return _reported(report, name, program)


def difference(
    program: Program, results: Sequence[npt.NDArray[Any]], wanted: Sequence[Bounded]
) -> str:
    """Describe where results differ from those that are wanted; "" if they do not."""
    if program.ending == "quantize":
        codes, scales = results
        off = quantized_wrongly(wanted[0], codes, scales)
        return f"{int(off.sum())} of {off.size} quantized elements differ" if off.any() else ""
    for found, each in zip(results, wanted, strict=True):
        numbers = found.astype(np.float64)
        value = np.broadcast_to(each.value, numbers.shape)
        error = np.broadcast_to(each.error, numbers.shape)
        with np.errstate(invalid="ignore"):
            same = (np.abs(numbers - value) <= error) | (numbers == value) | np.isinf(error)
        same |= np.isnan(numbers) & np.isnan(value)
        if not same.all():
            at = tuple(int(axis[0]) for axis in np.nonzero(~same))
            return (
                f"{int((~same).sum())} of {same.size} differ, at {list(at)}: {numbers[at]!r}, "
                f"wanted {value[at]!r} within {error[at]!r}"
            )
    return ""


def _reported(report: Report, name: str, program: Program) -> Outcome:
    """Return the outcome by the report: whether each contraction of packed operands is in a kernel
    of mxc, or has a reason why it is not."""
    rows = [row for row in report.matmuls if row.function == name]
    packed = [row for row in rows if not {row.lhs, row.rhs} <= {"f32", "bf16", "f16"}
              or row.fallback]  # fmt: skip
    wanted = 2 if program.gated else 1
    if len(packed) < wanted:
        return Outcome("unlisted", f"{len(packed)} contractions of packed operands in the report")
    reasons = [row.fallback for row in packed if "mxc_" not in row.kernel]
    if not all(reasons):
        return Outcome("silent", "no kernel of ours and no reason in the report")
    if reasons:
        return Outcome("fallback", "; ".join(dict.fromkeys(map(str, reasons))))
    return Outcome("kernel", "; ".join(dict.fromkeys(row.lowering for row in packed)))


__all__ = ["Outcome", "Pattern", "check", "difference"]
