"""Shrinks a finding: replaces pieces by simpler ones, one at a time, while it still occurs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from fuzz.check import Check, Outcome
from fuzz.description import FORMATS, Program, Side, fault


def smallest(
    program: Program, outcome: Outcome, seed: int, target: str, check: Check
) -> tuple[Program, Outcome]:
    """Simplify a program while `check` finds an outcome of the same kind. Return the last program
    and its outcome."""
    changed = True
    while changed:
        changed = False
        for simpler in _simpler(program):
            if fault(simpler):
                continue
            (again,) = check([simpler], [seed], target)
            if again.kind == outcome.kind:
                program, outcome, changed = simpler, again, True
                break
    return program, outcome


def _simpler(program: Program) -> Iterator[Program]:
    """Yield programs with a piece left out or replaced by the default, the largest pieces first."""
    if program.epilogue:
        yield dataclasses.replace(program, epilogue=())
        for number in range(len(program.epilogue)):
            chain = program.epilogue[:number] + program.epilogue[number + 1 :]
            yield dataclasses.replace(program, epilogue=chain)
    plain: dict[str, Any] = {
        "ending": "", "before": False, "shared": False, "batch": 0, "dynamic": False,
        "whole": False, "sum": "f32", "accumulator": "fill", "contraction": "generic",
        "m": 1, "n": 16,
    }  # fmt: skip
    for name, value in plain.items():
        if getattr(program, name) != value:
            yield dataclasses.replace(program, **{name: value})
    for k in (32, program.k // 2):
        if k < program.k and not k % 32:
            yield dataclasses.replace(program, k=k)
    if program.lhs != Side(format="f32"):
        yield dataclasses.replace(program, lhs=Side(format="f32"))
    for name in ("rhs", "lhs"):
        side: Side = getattr(program, name)
        for field in dataclasses.fields(Side):
            value = "mxfp4" if field.name == "format" else field.default
            if side.format in FORMATS and getattr(side, field.name) != value:
                other: dict[str, Any] = {field.name: value}
                both: dict[str, Any] = {name: dataclasses.replace(side, **other)}
                yield dataclasses.replace(program, **both)
