"""IREE as a library: its flags, its phases, its messages. No other file of ours knows them.

The phases of IREE's compiler run one after another over one live module, so that our passes and
checks see the program in between, and a failure names its phase. Nothing here protects against a
crash of the compiler: `worker.py` does.
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
from mxc.dialects.locations import plain
from mxc.errors import CompileError
from mxc.targets.target import HOST, Target
from mxc.targets.tile_permission import TILES, refusal

#: IREE's phases in order. Before "flow" a program is tensors, then dispatches, then a stream of
#: commands; "executable-targets" is where LLVM makes the kernels.
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

#: Severities of a message: what is wrong, and what belongs to it.
_NOTE, _ERROR = 0, 2

#: The first phase after which the program says what the chip of the target "cpu" is.
_KNOWS_DEVICE = "preprocessing"

#: Characters of an IREE message that are shown; it may quote whole executables.
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


#: Flags of LLVM itself. Results of matrix instructions are in accumulation registers in functions
#: that ask for some by "amdgpu-agpr-alloc". Kernels of ours do (passes/kernels/gpu/ring/), and
#: would spill otherwise. Nothing changes for other functions.
LLVM_FLAGS = ("--amdgpu-mfma-vgpr-form=0",)


def set_up_process(target: Target) -> None:
    """Give LLVM its flags for a target: once in the life of a process, for all its sessions."""
    if target.is_gpu:
        _initializeGlobalCL("mxc", *LLVM_FLAGS)


def flags(target: Target, code_dir: Path | None, devices: int = 1) -> list[str]:
    """The flags of one session: what to compile for, and where kernels leave their code."""
    chosen = [
        # A hoisted constant expression is computed by an initialiser at every load: weights would
        # be converted at start-up, behind the user's back.
        "--iree-opt-const-expr-hoisting=false",
        "--iree-opt-const-eval=false",
    ]
    if code_dir is not None:
        chosen.append(f"--iree-hal-dump-executable-intermediates-to={code_dir}")
    if target.is_gpu:
        if code_dir is not None:
            chosen.append(f"--iree-hal-dump-executable-binaries-to={code_dir}")
        return [*chosen, *_devices("hip", devices), f"--iree-rocm-target={target.chip}"]
    chosen += [
        *_devices("local", devices),
        # Lines in programs that nobody steps through take time and place. IREE 3.13 also invents
        # that of a kernel without a file, so that two builds would differ.
        "--iree-llvmcpu-debug-symbols=false",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-cpu={target.chip}",
    ]
    if target.triple is not None:
        chosen.append(f"--iree-llvmcpu-target-triple={target.triple}")
    return chosen


def _devices(kind: str, count: int) -> list[str]:
    """The devices of a program; several have the names that it calls them by."""
    flag = "--iree-hal-target-device="
    if count == 1:
        return [f"{flag}{kind}"]
    return [f"{flag}{device_name(number)}={kind}[{number}]" for number in range(count)]


class Compiler:
    """One session of IREE for one target, and the program that it compiles."""

    def __init__(
        self,
        target: Target,
        program: bytes,
        code_dir: Path | None = None,
        *,
        verify_each: bool = True,
        devices: int = 1,
    ) -> None:
        """Parse `program` (MLIR bytecode or text). Raises CompileError where it does not parse.

        The folder `code_dir` receives the text of the kernels, of GPUs also their code objects, if
        given. `verify_each`: IREE verifies the program after each of its passes, else after each
        phase, which takes a quarter less time in all. `devices`: how many the program is for.
        """
        self._verify_each = verify_each
        self._session = Session()
        self._session.set_flags(*flags(target, code_dir, devices))
        context = prepare(self._session.context)
        try:
            with context, ir.Location.unknown():
                self.module = ir.Module.parse(program)
        except ir.MLIRError as error:
            found = "; ".join(f"{plain(d.location)}: {d.message}" for d in error.error_diagnostics)
            text = " ".join((found or str(error)).split())
            raise CompileError(f"the program does not parse: {text}", phase="start") from error
        self._done = "start"
        self._invocation: Invocation | None = None
        self._messages: list[str] = []
        # An invocation may call it as long as it lives, which is longer than its phase.
        self._callback = _CALLBACK(self._collect)

    def run_to(self, phase: str) -> None:
        """Run the one phase `phase`. Raises CompileError with IREE's messages."""
        invocation = self._session.invocation()
        self._messages.clear()
        handle = invocation._inv_p
        _library.ireeCompilerInvocationEnableCallbackDiagnostics(handle, 0, self._callback, None)
        _library.ireeCompilerInvocationSetVerifyIR(handle, self._verify_each)
        _library.ireeCompilerInvocationSetCompileFromPhase(handle, self._done.encode())
        _library.ireeCompilerInvocationSetCompileToPhase(handle, phase.encode())
        invocation.import_module(self.module.operation)
        with _threads(self._session.context):
            succeeded = invocation.execute()
        if not succeeded:
            raise CompileError(_first(self._messages), phase=phase)
        if not self._verify_each:
            self._verify(phase)
        self._done, self._invocation = phase, invocation

    def _verify(self, phase: str) -> None:
        try:
            self.module.operation.verify()
        except ir.MLIRError as error:
            said = "; ".join(diagnostic.message for diagnostic in error.error_diagnostics)
            raise CompileError(_first([said or str(error)]), phase=phase) from error

    def write_module(self, path: Path) -> None:
        """Write the compiled program (.vmfb), after the last phase.

        Raises OSError, and CompileError for a program that IREE's bytecode cannot hold.
        """
        assert self._done == PHASES[-1]
        assert self._invocation is not None
        # Through memory: IREE's own writing of files does not say what went wrong.
        with Output.open_membuffer() as output:
            try:
                self._invocation.output_vm_bytecode(output)
            except (RuntimeError, ValueError) as error:
                raise CompileError(_first(self._messages or [str(error)]), PHASES[-1]) from error
            path.write_bytes(output.map_memory())

    def _collect(self, severity: int, text: Any, size: int, _: Any) -> None:
        """Remember an error, and the notes that belong to it."""
        if severity == _ERROR or (self._messages and severity == _NOTE):
            self._messages.append(ctypes.string_at(text, size).decode(errors="replace"))

    def device_text(self) -> str:
        """The attribute of the device that the program is compiled for, once there is one."""
        for op in self.module.body.operations:
            if op.operation.name == "util.global" and "#hal.device.target" in str(op):
                return str(op)
        return ""


@contextmanager
def _threads(context: ir.Context) -> Iterator[None]:
    """Kernels are compiled in parallel; Python passes and failing verifiers must not be."""
    context.enable_multithreading(True)
    try:
        yield
    finally:
        context.enable_multithreading(False)


@functools.cache
def resolve(target: Target) -> Target:
    """The record with the chip and the features that LLVM finds here, where it says "host".

    Tiles that the operating system does not give to a process are no feature of this machine.
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
    """(LLVM CPU name, features that the code may use) from `Compiler.device_text`."""
    name = re.search(r'\bcpu = "([^"]*)"', device)
    features = re.search(r'cpu_features = "([^"]*)"', device)
    # A feature may be listed twice: LLVM's table for the CPU, then what this machine really has.
    has = {item[1:]: item[0] == "+" for item in features[1].split(",")} if features else {}
    return name[1] if name else "", tuple(feature for feature, on in has.items() if on)


def _first(messages: list[str]) -> str:
    """The first error in one line: later ones are mostly its echoes."""
    text = " ".join(messages[0].split()) if messages else "no message"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def assembly(folder: Path) -> Iterator[str]:
    """The text of each kernel file that a compilation left in `folder`."""
    for pattern in ("*.rocmasm", "*.s"):
        for file in sorted(folder.rglob(pattern)):
            yield file.read_text(errors="replace")


def code_objects(folder: Path) -> Iterator[bytes]:
    """Each code object for a GPU that a compilation left in `folder`.

    The assembly beside it is what LLVM makes of a copy of the kernel, whose registers may differ.
    """
    for file in sorted(folder.rglob("*.hsaco")):
        yield file.read_bytes()
