"""Runs passes over programs for `mxc opt`, inside the worker process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from iree.compiler import ir

from mxc.compiler.nests import nests
from mxc.compiler.pipelines import pipeline
from mxc.compiler.steps import CompileStep, OptRequest, StepRefused
from mxc.compiler.worker import placed
from mxc.dialects.context import new_context
from mxc.dialects.locations import with_place
from mxc.dialects.named_operations import symbol_of
from mxc.errors import PassError
from mxc.passes.base import Pass, run
from mxc.passes.spec import parse

Tell = Callable[[CompileStep], None]

#: How the names of operations end that hold a kernel: of the dialects stream, flow and hal.
_EXECUTABLE = ".executable"
#: What `--print-kernels` says of a kernel without a nest, and of a program without kernels of mxc.
_DIRECT = ": emitted directly, not in the kernel language (docs/kernels.md)\n"
_NO_KERNELS = "// no kernels of mxc after these passes: IREE compiles the program\n"


def run_here(request: OptRequest, tell: Tell) -> list[str | StepRefused]:
    """Return the text of each program after the passes, or the refusal by a pass or the parser.

    Raises MxcError for an unknown pass, target or stage, and if the file holds no operation.
    """
    chosen = select(request.passes, request.target, request.to)
    found: list[str | StepRefused] = []
    empty = True
    for number, (line, program) in enumerate(request.programs):
        dump = request.dump_dir
        if dump is not None and len(request.programs) > 1:
            dump /= str(number)
        try:
            text, nothing = _run(program, line, chosen, dump, tell, request.print_kernels)
        except PassError as error:
            found.append(StepRefused(placed(str(error), request.place)))
            empty = False
        else:
            found.append(text)
            empty = empty and nothing
    if empty:
        raise PassError(f"{request.place}: holds no operation; give a program of MLIR")
    return found


def select(passes: str | None, target: str | None, to: str | None) -> tuple[Pass | str, ...]:
    """Return the passes that the options name; of a target, the passes that run before IREE.

    Raises PassError unless exactly one of `passes` and `target` is given, and if the stage `to`
    runs after a phase of IREE.
    """
    if (passes is None) == (target is None):
        raise PassError("give either --passes SPEC or --target TARGET [--to STAGE]")
    if passes is not None:
        if to is not None:
            raise PassError("--to names a stage of --target; it has no meaning with --passes")
        return parse(passes)
    assert target is not None
    stages = pipeline(target)
    if to is not None:
        stages = stages.until(to)
        phase = stages.stages[-1].phase
        if phase is not None:
            raise PassError(
                f"stage {to} runs after IREE's phase {phase}, not on a file: see it with "
                "mxc compile --dump-ir DIR, or give its passes with --passes"
            )
    return stages.after(None)


def _run(
    program: str | bytes,
    line: int,
    passes: Sequence[Pass | str],
    dump: Path | None,
    tell: Tell,
    kernels: bool,
) -> tuple[str, bool]:
    """Parse a program, run the passes and return (its text, whether it holds no operation).

    `line` is the number of lines before the program in its file. With `kernels` the text is that of
    its kernels.
    """
    tell(CompileStep(kind="part", name="the parser of MLIR"))
    try:
        with new_context():
            # Empty lines in front give every location its line in the file.
            before = "\n" * line
            module = ir.Module.parse(before + program if isinstance(program, str) else program)
            nothing = not list(module.body.operations)
            run(
                passes,
                module,
                dump_dir=dump,
                before_pass=lambda spec: tell(CompileStep(kind="stage", name=spec)),
            )
            if not kernels:
                return str(module), nothing
            return _kernels(module.operation), nothing
    except ir.MLIRError as error:
        found = "; ".join(with_place(d.location, d.message) for d in error.error_diagnostics)
        raise PassError(f"cannot parse the program: {found or error}") from error


def _kernels(module: ir.Operation) -> str:
    """Return the kernels of mxc, each with the name of its executable: the loop nest of those that
    are written in the kernel language, and a line for each of the others.
    """
    written = nests(module)
    operations = (op.operation for op in module.regions[0].blocks[0].operations)
    names = (symbol_of(op) for op in operations if op.name.endswith(_EXECUTABLE))
    found = (
        f"// @{name}" + (f"\n{written[name]}" if name in written else _DIRECT) for name in names
    )
    return "".join(found) or _NO_KERNELS
