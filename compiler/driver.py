"""One compilation from program to module: our stages and IREE's phases, in their order.

Runs in the worker process. Before each step it reports the step and writes the current program to a
file. After a crash, that file holds the IR that caused it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iree.compiler import ir

from mxc.compiler import iree
from mxc.compiler.cache import entries_of
from mxc.compiler.check_program import check_program
from mxc.compiler.kernel_bodies import KernelBodies
from mxc.compiler.kernel_code import KernelObjects
from mxc.compiler.nests import nests
from mxc.compiler.pipelines import pipeline
from mxc.compiler.report import build_report
from mxc.compiler.report.assembly import parse_all
from mxc.compiler.signatures import require_no_parameters, signatures
from mxc.compiler.steps import Compiled, CompileRequest, CompileStep
from mxc.dialects.parameters import take_layouts
from mxc.passes.base import dump, notes, run
from mxc.targets.target import Target, target

Tell = Callable[[CompileStep], None]

#: Phases after which a copy of the program is kept for the report.
_FLOW, _STREAM = "flow", "stream"
#: The first phase after the last of our passes, and the one in which LLVM generates code.
_CONFIGURATIONS, _HAL = "executable-configurations", "hal"


@dataclass
class _Compilation:
    request: CompileRequest
    target: Target
    compiler: iree.Compiler
    program: Path
    tell: Tell
    kernels: KernelObjects | None
    number: int = 0

    @contextmanager
    def step(self, step: CompileStep) -> Iterator[None]:
        """Save the program, report the start of a step and its duration, and count the step."""
        self.keep()
        self.tell(step)
        start = time.perf_counter()
        yield
        self.tell(CompileStep(kind=step.kind, name=step.name, seconds=time.perf_counter() - start))
        self.number += 1

    def keep(self) -> None:
        with self.program.open("wb") as file:
            self.compiler.module.operation.write_bytecode(file)

    def run_stages(self, phase: str | None) -> None:
        """Run our stages that follow `phase`; None selects those that precede IREE."""
        for stage in pipeline(self.target.name, schedules=self.request.schedules).stages:
            if stage.phase == phase and stage.passes:
                with self.step(CompileStep(kind="stage", name=stage.name)):
                    run(stage.passes, self.compiler.module, dump_dir=self._dump_path(stage.name))

    def run_phase(self, phase: str) -> None:
        """Run one phase of IREE."""
        file = self._dump_path(f"iree-{phase}.mlir")
        with self.step(CompileStep(kind="phase", name=phase)):
            if self.kernels is not None and phase == _CONFIGURATIONS:
                self.kernels.take_known()
            if self.kernels is not None and phase == _HAL:
                self.kernels.generate()
            self.compiler.run_to(phase)
        if file is not None:
            dump(self.compiler.module, file)

    def _dump_path(self, name: str) -> Path | None:
        """Return the dump file or folder of step `name`, numbered so that names sort by order of
        steps.
        """
        folder = self.request.dump_dir
        return None if folder is None else folder / f"{self.number + 1:02d}-{name}"


def compile_here(
    request: CompileRequest, assembly: Path | None, program: Path, tell: Tell
) -> Compiled:
    """Compile `request` in this process.

    - `assembly`: folder for the assembly of the kernels. If it is None, the report has no kernels,
      and LLVM generates the code of a CPU once, not twice.
    - `program`: file that holds the program before the current step.
    - `tell`: called at the start and at the end of each step.

    Raises CompileError if IREE refuses the program, PassError if one of our passes does, OSError if
    a file cannot be written.
    """
    record = target(request.target)
    # The code object of a GPU has its assembly in it: a text to be assembled again is another.
    again = assembly if request.assembly or not record.is_gpu else None
    compiler = iree.Compiler(record, request.program, again, devices=request.devices)
    kernels = KernelObjects(compiler, record, entries_of(request)) if record.is_gpu else None
    work = _Compilation(request, record, compiler, program, tell, kernels)
    check_program(compiler.module)
    functions = signatures(compiler.module)
    if not request.parameters:
        require_no_parameters(compiler.module)
    if request.dump_dir is not None:
        dump(compiler.module, request.dump_dir / "00-input.mlir")
    snapshots: dict[str, ir.Operation] = {}
    chip, features = record.chip, record.features
    work.run_stages(None)
    panels, matrices = take_layouts(compiler.module)
    written = nests(compiler.module.operation) if request.assembly else {}
    said = notes(compiler.module.operation)
    bodies = KernelBodies()
    bodies.take(compiler.module.operation)
    for phase in iree.PHASES:
        work.run_phase(phase)
        if phase == _STREAM:
            bodies.put_back(compiler.module.operation)
        work.run_stages(phase)
        if phase in (_FLOW, _STREAM):
            snapshots[phase] = compiler.module.operation.clone()
        if phase == _STREAM and not record.is_gpu:
            chip, features = iree.cpu_of(compiler.device_text())
            record = record.resolved(chip, features)
    compiler.write_module(request.module)
    with work.step(CompileStep(kind="report", name="report")):
        texts = () if again is None else tuple(iree.assembly(again))
        code = parse_all(texts)
        if kernels is not None and assembly is not None:
            code = kernels.described(record.gpu.unit if record.gpu else None)
        report = build_report(snapshots[_FLOW], snapshots[_STREAM], code, record)
        if assembly is not None and not any(kernel.uses_tiles for kernel in report.kernels):
            # LLVM itself never uses AMX tiles: if no kernel of ours does, the program need not
            # require AMX.
            features = tuple(feature for feature in features if not feature.startswith("amx-"))
    return Compiled(
        functions=functions,
        report=report.to_dict(),
        chip=chip,
        features=features,
        panels=panels,
        matrices=matrices,
        assembly=texts if request.assembly else (),
        nests=written,
        notes=said,
    )
