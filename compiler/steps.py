"""Records of a compilation: the request, the steps it reports, and the result.

Request, Step and Compiled are pickled between the caller and the worker process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mxc.artifact.manifest import Function
from mxc.errors import RequestError

#: Default time limit in seconds of one stage or phase: far more than the largest model needs.
PHASE_TIMEOUT = 3600.0


def require_timeout(seconds: float | None) -> float:
    """Return the time limit of a phase. Raises RequestError unless it is positive and finite."""
    if seconds is None:
        return PHASE_TIMEOUT
    if not 0 < seconds < float("inf"):
        raise RequestError(f"--phase-timeout must be above 0 and finite, got {seconds:g}")
    return seconds


#: Prefix of the names of steps that import a function from another framework.
IMPORT = "import of"


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """One program to compile: MLIR (text or bytecode) for `target`, to the file `module`.

    - `place`: name of the program in messages.
    - `parameters`: weights are packed for the program, so that it may name them.
    - `dump_dir`: folder for the IR after each pass and each phase.
    - `assembly`: return the assembly of the kernels, and their nests.
    - `listed`: report the instructions and registers of kernels; otherwise LLVM generates their
      code once, not twice.
    - `schedules`: path of a schedule file.
    - `phase_timeout`: limit in seconds for each step.
    - `cached`: read and write the cache of compiled programs.
    - `devices`: number of devices that the program is for.
    """

    program: bytes
    place: str
    target: str
    module: Path
    parameters: bool = False
    dump_dir: Path | None = None
    assembly: bool = False
    listed: bool = True
    schedules: str = ""
    phase_timeout: float = PHASE_TIMEOUT
    cached: bool = False
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class OptRequest:
    """Programs to run passes over: for each the number of lines before it, and its text or
    bytecode.

    `passes`, `target`, `to` and `print_kernels` are the options of `mxc opt`; `place`, `dump_dir`
    and `phase_timeout` are as in Request.
    """

    programs: tuple[tuple[int, str | bytes], ...]
    place: str
    passes: str | None = None
    target: str | None = None
    to: str | None = None
    dump_dir: Path | None = None
    phase_timeout: float = PHASE_TIMEOUT
    print_kernels: bool = False


@dataclass(frozen=True, kw_only=True)
class ImportRequest:
    """Functions to import from another framework: for each its StableHLO or its file (.pt2, .onnx).

    `folder` receives the bytes of constants. `alone`: lower each operation alone first, with a step
    for each, so that the last step names one that ends the process. `place` and `phase_timeout` are
    as in Request.
    """

    functions: dict[str, bytes | Path]
    folder: Path
    place: str
    phase_timeout: float = PHASE_TIMEOUT
    alone: bool = False


@dataclass(frozen=True)
class StepRefused:
    """The error of a pass or the parser for one program."""

    message: str


@dataclass(frozen=True, kw_only=True)
class CompileStep:
    """One step of a compilation, at its start (`seconds` is None) or at its end.

    The kinds: a part of the compilation, a stage of our passes, a phase of IREE, the writing of the
    report, or an action of the cache of compiled programs (cache.py).
    """

    kind: Literal["part", "stage", "phase", "report", "cache"]
    name: str
    seconds: float | None = None

    def __str__(self) -> str:
        """Return the name for messages: "passes normalize", "IREE hal", "packing"."""
        before = {"stage": "passes ", "phase": "IREE ", "cache": "compile cache: "}
        return before.get(self.kind, "") + self.name


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The result of a compilation beside the module file. `report` is the content of report.json.

    `chip` and `features` are those that the code was generated for. `panels` has the layout of each
    parameter that kernels read in panels, by name; `matrices` how many matrices it is for them, and
    the rows of each. `assembly` is the text of each assembly file, if requested, and `nests` that
    of each kernel of the kernel language, by name. `notes` are those of our passes for the user of
    the artifact.
    """

    functions: dict[str, Function]
    report: dict[str, Any]
    chip: str
    features: tuple[str, ...]
    panels: dict[str, str] = field(default_factory=dict)
    matrices: dict[str, tuple[int, int]] = field(default_factory=dict)
    assembly: tuple[str, ...] = ()
    nests: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """Callbacks for progress: steps as they begin and end, bytes as they are packed.

    `packed` gets the number of bytes done, the total, and the name of the tensor.
    """

    step: Callable[[CompileStep], None] = lambda step: None
    packed: Callable[[int, int, str], None] = lambda done, total, tensor: None


@dataclass
class Recorder:
    """Reports steps to the caller, and records those that are done."""

    progress: Progress
    done: list[CompileStep] = field(default_factory=list)

    def saw(self, step: CompileStep) -> None:
        """Report a step that begins or is done."""
        if step.seconds is not None:
            self.done.append(step)
        self.progress.step(step)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Report a part of the compilation. It is not recorded as done if the block raises."""
        self.saw(CompileStep(kind="part", name=name))
        start = time.perf_counter()
        yield
        self.saw(CompileStep(kind="part", name=name, seconds=time.perf_counter() - start))
