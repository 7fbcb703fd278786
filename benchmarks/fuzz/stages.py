"""Run mxc's stages on programs, without IREE's code generation, and check what they give.

The normalized program is interpreted in numpy and compared with the reference. After the kernel
stage each product of packed operands must be a call of a kernel of mxc, or carry the reason why it
is not. The code of the kernels is not run; their forms record which kernels a run has covered.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

import mxc
from fuzz import interpreter
from fuzz.check import Outcome, apart, difference, refused
from fuzz.description import Program
from fuzz.mlir import Function, function
from fuzz.operands import PATTERNS, chosen, constants, operands
from fuzz.reference import computed
from mxc.compiler.pipelines import pipeline
from mxc.dialects.context import new_context
from mxc.dialects.contraction import read_contraction
from mxc.dialects.contractions import sums_elements
from mxc.dialects.dispatches import KERNEL, walk
from mxc.dialects.kernel_calls import read_reasons, reads_decoded
from mxc.passes.base import Stage, run

#: Parts of kernel names in which kernels of one form differ: sizes, and numbers of epilogues.
_SIZES = re.compile(r"[\dD]+(x[\dD]+)+|_\d+$")


@dataclass(frozen=True)
class Checked:
    """The outcome of a program in mxc's stages. kernels: the forms of its kernels (`_form`)."""

    outcome: Outcome
    kernels: frozenset[str] = frozenset()


def check_stages(
    programs: Sequence[Program], seeds: Sequence[int], target: str = "cpu"
) -> list[Checked]:
    """Run mxc's stages on each program, and check the results. seeds: of the operands."""
    found = apart(_checked, programs, seeds, target)
    return [Checked(each) if isinstance(each, Outcome) else each for each in found]


def _checked(programs: Sequence[Program], seeds: Sequence[int], target: str) -> list[Checked]:
    stages = [stage for stage in pipeline(target).stages if stage.phase is None]
    with new_context():
        return [
            _check(program, seed, stages)
            for program, seed in zip(programs, seeds, strict=True)
        ]  # fmt: skip


def _check(program: Program, seed: int, stages: Sequence[Stage]) -> Checked:
    made = function(program, "main", constants(program, seed))
    try:
        module = ir.Module.parse(made.text)
        normalize, *others = stages
        run(normalize.passes, module)
        wrong = _wrong(module, made, program, seed)
        if wrong:
            return Checked(Outcome("wrong", f"normalized, {wrong}"))
        for stage in others:
            run(stage.passes, module)
        return _lowered(module.operation, program)
    except mxc.MxcError as error:
        return Checked(refused(error))
    except Exception:
        return Checked(Outcome("trace", traceback.format_exc()[-1500:]))


def _wrong(module: ir.Module, made: Function, program: Program, seed: int) -> str:
    """Describe where the normalized program computes other numbers than the reference; "" if it
    does not."""
    (main,) = (view.operation for view in module.body.operations)
    for pattern in PATTERNS:
        given = operands(program, pattern, seed)
        results = interpreter.call(main, chosen(given, made.arguments))
        wrong = difference(program, results, computed(program, given))
        if wrong:
            return f"{pattern}: {wrong}"
    return ""


def _lowered(module: ir.Operation, program: Program) -> Checked:
    """Check that each product of packed operands is a call of a kernel of mxc, or has a reason why
    it is not."""
    forms, calls, reasons, silent = set(), [], [], 0
    for view in module.regions[0].blocks[0].operations:
        if view.operation.name == KERNEL:
            forms.add(_form(view.operation))
            continue
        for op in walk(view.operation):
            call = read_contraction(op) if op.name == "flow.dispatch" else None
            if call is not None:
                calls += [call.kind] if call.rhs.is_packed or call.lhs.is_packed else []
            elif sums_elements(op) or reads_decoded(op.location):
                said = read_reasons(op.location)
                reasons += said[:1]
                silent += not said
    wanted = 2 if program.gated else 1
    found = len(calls) + len(reasons)
    if silent:
        outcome = Outcome("silent", f"{silent} products without a kernel and without a reason")
    elif found < wanted:
        outcome = Outcome("unlisted", f"{found} products of packed operands are left")
    elif reasons:
        outcome = Outcome("fallback", "; ".join(dict.fromkeys(reasons)))
    else:
        outcome = Outcome("kernel", "; ".join(dict.fromkeys(map(str, calls))))
    return Checked(outcome, frozenset(forms))


def _form(executable: ir.Operation) -> str:
    """Return the name of a kernel without its sizes: formats, roundings, order of the operands."""
    return _SIZES.sub("N", ir.StringAttr(executable.attributes["sym_name"]).value)
