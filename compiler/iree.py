"""IREE as a library: its flags, phases and messages. Only this file of mxc uses IREE's API.

The phases of IREE's compiler run one after another on one module in memory. Our passes and checks
run between them, and an error names its phase. A crash of the compiler ends the process; worker.py
isolates it.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from iree.compiler import ir
from iree.compiler.api import Invocation, Output, Session, _initializeGlobalCL, ctypes_dl

from mxc.dialects.context import prepare
from mxc.dialects.devices import device_name
from mxc.dialects.locations import with_place
from mxc.errors import CompileError
from mxc.targets.cpus import STACK_BYTES
from mxc.targets.target import HOST, Target
from mxc.targets.tile_permission import TILES, refusal

#: IREE's phases in order. Up to "flow" tensors become dispatches; "stream" turns these into a
#: stream of commands; LLVM generates the code of kernels in "executable-targets".
PHASES = (
    "input",
    "abi",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "stream",
    "executable-sources",
    "executable-configurations",
    "executable-targets",
    "hal",
    "vm",
    "end",
)

#: Severities of MLIR diagnostics that are collected.
_NOTE, _ERROR = 0, 2

#: The first phase after which the module has the device attribute with chip and features.
_KNOWS_DEVICE = "preprocessing"

#: Number of characters of an IREE message that are shown; it may quote whole executables.
_LONGEST = 600

_CALLBACK = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t, ctypes.c_void_p
)
_library = ctypes_dl._dylib
_library.ireeCompilerInvocationSetCompileFromPhase.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_library.ireeCompilerInvocationSetCompileToPhase.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_library.ireeCompilerInvocationSetVerifyIR.argtypes = [ctypes.c_void_p, ctypes.c_bool]
_library.ireeCompilerInvocationEnableCallbackDiagnostics.argtypes = [
    ctypes.c_void_p,
    ctypes.c_int,
    _CALLBACK,
    ctypes.c_void_p,
]


#: Flags of LLVM. By this flag, a function with the attribute "amdgpu-agpr-alloc" has the results of
#: matrix instructions in accumulation registers (AGPRs). Some of our kernels
#: (passes/kernels/gpu/ring/) have the attribute and would spill otherwise. Other functions are not
#: affected.
LLVM_FLAGS = ("--amdgpu-mfma-vgpr-form=0",)

#: Flags of a process that compiles for GPUs. By the last, each executable is a code object of its
#: own (kernel_code.py).
PROCESS_FLAGS = (*LLVM_FLAGS, "--iree-hal-link-executables=false")


def set_up_process(target: Target) -> None:
    """Set the flags that are global: call this once in a process, before any session."""
    if target.is_gpu:
        _initializeGlobalCL("mxc", *PROCESS_FLAGS)


def flags(target: Target, code_dir: Path | None, devices: int = 1) -> list[str]:
    """Return the flags of one session. `code_dir` receives the assembly of kernels if given, which
    LLVM generates a second time for it.
    """
    chosen = [
        # A hoisted constant expression is computed by an initializer at every load: weights would
        # be converted at start-up without the user's knowledge.
        "--iree-opt-const-expr-hoisting=false",
        "--iree-opt-const-eval=false",
    ]
    if code_dir is not None:
        chosen.append(f"--iree-hal-dump-executable-intermediates-to={code_dir}")
    if target.is_gpu:
        return [*chosen, *_devices("hip", devices), f"--iree-rocm-target={target.chip}"]
    chosen += [
        *_devices("local", devices),
        # Nobody steps through these programs, and debug information costs time and space. For a
        # kernel without a source file IREE 3.13 also invents a file name, so that two builds
        # differ.
        "--iree-llvmcpu-debug-symbols=false",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-cpu={target.chip}",
        f"--iree-llvmcpu-stack-allocation-limit={STACK_BYTES}",
    ]
    if target.triple is not None:
        chosen.append(f"--iree-llvmcpu-target-triple={target.triple}")
    return chosen


def _devices(kind: str, count: int) -> list[str]:
    """Return the flags for `count` devices; several are named by their symbols in the program."""
    flag = "--iree-hal-target-device="
    if count == 1:
        return [f"{flag}{kind}"]
    return [f"{flag}{device_name(number)}={kind}[{number}]" for number in range(count)]


class Compiler:
    """One IREE session for one target, with the program that it compiles."""

    def __init__(
        self,
        target: Target,
        program: bytes,
        code_dir: Path | None = None,
        *,
        devices: int = 1,
    ) -> None:
        """Parse `program` (MLIR bytecode or text). Raises CompileError if it does not parse.

        - `code_dir`: folder for the assembly of the kernels.
        - `devices`: number of devices that the program is compiled for.
        """
        self._session = Session()
        self._session.set_flags(*flags(target, code_dir, devices))
        context = prepare(self._session.context)
        try:
            with context, ir.Location.unknown():
                self.module = ir.Module.parse(program)
        except ir.MLIRError as error:
            found = "; ".join(with_place(d.location, d.message) for d in error.error_diagnostics)
            text = " ".join((found or str(error)).split())
            raise CompileError(f"the program does not parse: {text}", phase="start") from error
        self._done = "start"
        self._invocation: Invocation | None = None
        self._messages: list[str] = []
        # Kept here because the invocation may call it after its phase, as long as it exists.
        self._callback = _CALLBACK(self._collect)

    def run_to(self, phase: str) -> None:
        """Run phase `phase`, which follows the last one run, and verify the program.

        IREE's own verification, after each of its passes, takes a third of a compilation.
        Raises CompileError with IREE's messages.
        """
        self._invocation = self._run(self.module, self._done, phase)
        self._done = phase

    def run_apart(self, module: ir.Module, done: str, phase: str) -> None:
        """Run the phases from after `done` to `phase` on another module of this session.

        Raises CompileError with IREE's messages.
        """
        self._run(module, done, phase)

    def _run(self, module: ir.Module, done: str, phase: str) -> Invocation:
        invocation = self._session.invocation()
        self._messages.clear()
        handle = invocation._inv_p
        _library.ireeCompilerInvocationEnableCallbackDiagnostics(handle, 0, self._callback, None)
        _library.ireeCompilerInvocationSetVerifyIR(handle, False)
        _library.ireeCompilerInvocationSetCompileFromPhase(handle, done.encode())
        _library.ireeCompilerInvocationSetCompileToPhase(handle, phase.encode())
        invocation.import_module(module.operation)
        with _threads(self._session.context):
            succeeded = invocation.execute()
        if not succeeded:
            raise CompileError(_first(self._messages), phase=phase)
        try:
            module.operation.verify()
        except ir.MLIRError as error:
            said = "; ".join(diagnostic.message for diagnostic in error.error_diagnostics)
            raise CompileError(_first([said or str(error)]), phase=phase) from error
        return invocation

    def write_module(self, path: Path) -> None:
        """Write the compiled program (.vmfb). All phases must have run.

        Raises OSError if the file cannot be written, and CompileError for a program that IREE's
        bytecode cannot hold.
        """
        assert self._done == PHASES[-1]
        assert self._invocation is not None
        # Through memory: IREE's own function that writes a file does not say what went wrong.
        with Output.open_membuffer() as output:
            try:
                self._invocation.output_vm_bytecode(output)
            except (RuntimeError, ValueError) as error:
                raise CompileError(_first(self._messages or [str(error)]), PHASES[-1]) from error
            path.write_bytes(output.map_memory())

    def _collect(self, severity: int, text: Any, size: int, _: Any) -> None:
        """Store an error, and the notes that follow it."""
        if severity == _ERROR or (self._messages and severity == _NOTE):
            self._messages.append(ctypes.string_at(text, size).decode(errors="replace"))

    def device_text(self) -> str:
        """Return the device target attribute of the program as text; empty before there is one."""
        for op in self.module.body.operations:
            if op.operation.name == "util.global" and "#hal.device.target" in str(op):
                return str(op)
        return ""


@contextmanager
def _threads(context: ir.Context) -> Iterator[None]:
    """Enable MLIR multithreading while a phase runs, so that kernels are compiled in parallel.

    It is off otherwise: Python passes and failing verifiers need a single thread.
    """
    context.enable_multithreading(True)
    try:
        yield
    finally:
        context.enable_multithreading(False)


@functools.cache
def resolve(target: Target) -> Target:
    """Return the record with the host's chip and features if its chip is "host"; else unchanged.

    AMX tiles are no feature of the host if the operating system does not permit their use.
    """
    if target.is_gpu or target.chip != HOST:
        return target
    compiler = Compiler(target, b"util.func public @f() { util.return }")
    for phase in PHASES[: PHASES.index(_KNOWS_DEVICE) + 1]:
        compiler.run_to(phase)
    chip, features = cpu_of(compiler.device_text())
    if TILES in features and refusal() is not None:
        features = tuple(feature for feature in features if feature != TILES)
    return target.resolved(chip, features)


def cpu_of(device: str) -> tuple[str, tuple[str, ...]]:
    """Return (LLVM CPU name, enabled features) from `Compiler.device_text`."""
    name = re.search(r'\bcpu = "([^"]*)"', device)
    features = re.search(r'cpu_features = "([^"]*)"', device)
    # A feature may be listed twice: first from LLVM's table for the CPU, then as detected here.
    has = {item[1:]: item[0] == "+" for item in features[1].split(",")} if features else {}
    return name[1] if name else "", tuple(feature for feature, on in has.items() if on)


def _first(messages: list[str]) -> str:
    """Return the first message on one line; later messages mostly follow from it."""
    text = " ".join(messages[0].split()) if messages else "no message"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def assembly(folder: Path) -> Iterator[str]:
    """Yield the text of each assembly file that a compilation left in `folder`."""
    for pattern in ("*.rocmasm", "*.s"):
        for file in sorted(folder.rglob(pattern)):
            yield file.read_text(errors="replace")
