"""One compilation from program to module: our stages and IREE's phases, in their order.

Runs inside the worker process. It tells each step before it begins, and keeps the program of that
step in a file first: after a crash, that file is the IR that caused it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iree.compiler import ir

from mxc.compiler import iree
from mxc.compiler.pipelines import pipeline
from mxc.compiler.report import build_report
from mxc.compiler.steps import Compiled, Request, Step
from mxc.dialects.errors import CompileError
from mxc.dialects.manifest import Function, TensorType
from mxc.dialects.targets import Target, target
from mxc.passes.base import run

Tell = Callable[[Step], None]

#: Phases after which the report reads the program.
_FLOW, _STREAM = "flow", "stream"


@dataclass
class _Compilation:
    request: Request
    target: Target
    compiler: iree.Compiler
    program: Path
    tell: Tell
    steps: list[Step] = field(default_factory=list)

    def keep_program(self) -> None:
        with self.program.open("wb") as file:
            self.compiler.module.operation.write_bytecode(file)

    def done(self, step: Step) -> None:
        self.steps.append(step)
        self.tell(step)

    def run_stages(self, phase: str | None) -> None:
        """Run our stages that belong after `phase`."""
        for stage in pipeline(self.target.name).stages:
            if stage.phase != phase or not stage.passes:
                continue
            self.tell(Step(kind="stage", name=stage.name))
            self.keep_program()
            start = time.perf_counter()
            run(stage.passes, self.compiler.module, dump_dir=self._dump_path(stage.name))
            self.done(Step(kind="stage", name=stage.name, seconds=time.perf_counter() - start))

    def run_phase(self, phase: str) -> None:
        """Run one phase of IREE."""
        self.tell(Step(kind="phase", name=phase))
        self.keep_program()
        start = time.perf_counter()
        self.compiler.run_to(phase)
        self.done(Step(kind="phase", name=phase, seconds=time.perf_counter() - start))
        folder = self._dump_path(f"iree-{phase}")
        if folder is not None:
            _dump(self.compiler.module, folder.with_name(folder.name + ".mlir"))

    def _dump_path(self, name: str) -> Path | None:
        if self.request.dump_dir is None:
            return None
        self.request.dump_dir.mkdir(parents=True, exist_ok=True)
        return self.request.dump_dir / f"{len(self.steps):02d}-{name}"


def compile_here(request: Request, folder: Path, program: Path, tell: Tell) -> Compiled:
    """Compile `request` in this process; assembly goes to `folder`, the current IR to `program`.

    Raises CompileError where IREE refuses the program, PassError where a pass of ours does.
    """
    record = target(request.target)
    work = _Compilation(
        request, record, iree.Compiler(record, request.program, folder), program, tell
    )
    functions = signatures(work.compiler.module)
    snapshots: dict[str, Any] = {}
    chip, features = record.chip, record.features
    work.run_stages(None)
    for phase in iree.PHASES:
        work.run_phase(phase)
        work.run_stages(phase)
        if phase in (_FLOW, _STREAM):
            snapshots[phase] = work.compiler.module.operation.clone()
        if phase == _STREAM and not record.is_gpu:
            chip, features = iree.cpu_of(work.compiler.device_text())
    work.compiler.write_module(request.module)
    work.tell(Step(kind="report", name="report"))
    start = time.perf_counter()
    report = build_report(snapshots[_FLOW], snapshots[_STREAM], iree.assembly(folder), record)
    work.done(Step(kind="report", name="report", seconds=time.perf_counter() - start))
    return Compiled(
        functions=functions,
        report=report.to_dict(),
        chip=chip,
        features=features,
        steps=tuple(work.steps),
    )


def signatures(module: ir.Module) -> dict[str, Function]:
    """The public functions of a program, as a caller sees them.

    Raises CompileError where there is none, or one that no caller can call.
    """
    found: dict[str, Function] = {}
    for view in module.body.operations:
        op = view.operation
        if op.name not in ("util.func", "func.func") or len(op.regions[0].blocks) == 0:
            continue
        visibility = op.attributes["sym_visibility"] if "sym_visibility" in op.attributes else None
        if visibility is not None and ir.StringAttr(visibility).value == "private":
            continue
        name = ir.StringAttr(op.attributes["sym_name"]).value
        kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        found[name] = Function(
            inputs=tuple(_tensor(t, name) for t in kind.inputs),
            outputs=tuple(_tensor(t, name) for t in kind.results),
        )
    if not found:
        raise CompileError("the program has no public function to call", phase="start")
    return found


def _tensor(kind: ir.Type, function: str) -> TensorType:
    if isinstance(kind, ir.RankedTensorType):
        shape = tuple(-1 if size < 0 else size for size in kind.shape)
        return TensorType(shape=shape, dtype=str(kind.element_type))
    if isinstance(kind, (ir.IntegerType, ir.FloatType)):
        return TensorType(shape=(), dtype=str(kind))
    raise CompileError(
        f"function {function} has an argument or result of type {kind}; tensors and numbers can "
        "be called",
        phase="start",
    )


def _dump(module: ir.Module, path: Path) -> None:
    with path.open("w") as file:
        print(module.operation.get_asm(large_elements_limit=16), file=file)
