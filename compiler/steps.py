"""What a compilation is asked, what it says on its way, what it gives back.

Request, Step and Compiled cross the border of the worker process: they pickle.
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

#: Seconds that a stage of ours or a phase of IREE may take: far more than the largest model needs.
PHASE_TIMEOUT = 3600.0


def require_timeout(seconds: float | None) -> float:
    """A limit of time for each phase. Raises RequestError for one that is none."""
    if seconds is None:
        return PHASE_TIMEOUT
    if not 0 < seconds < float("inf"):
        raise RequestError(f"--phase-timeout must be above 0 and finite, got {seconds:g}")
    return seconds


#: How the name of the step begins that imports a function of another framework.
IMPORT = "import of"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One program to compile: MLIR (text or bytecode) for `target`, to the file `module`.

    `place` is what messages call the program. `parameters` says that weights are packed for it,
    so that it may name them; `foreign` that it was not built here, and is verified after each pass.
    `dump_dir` receives the IR after each pass and each phase, if given.
    `assembly` asks for the text of the kernels. `listed`: the report has the instructions and
    registers of the kernels; without, LLVM generates their code once, not twice. `schedules` is a
    file of them. No step may take longer than `phase_timeout` seconds. `cached`: what was compiled
    before from the same is taken from the cache of compiled programs, and what is compiled is kept
    there. `devices`: how many the program is for.
    """

    program: bytes
    place: str
    target: str
    module: Path
    parameters: bool = False
    foreign: bool = False
    dump_dir: Path | None = None
    assembly: bool = False
    listed: bool = True
    schedules: str = ""
    phase_timeout: float = PHASE_TIMEOUT
    cached: bool = False
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class OptRequest:
    """Programs to run passes over: of each the lines before it, and its text or bytecode.

    `passes`, `target`, `to` and `print_kernels` are the options of `mxc opt`; `place`, `dump_dir`
    and `phase_timeout` as in Request.
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
    """Programs of another framework: of each function its StableHLO, or its file (.pt2, .onnx).

    `folder` receives the bytes of constants. `place`, `phase_timeout` as in Request.
    """

    functions: dict[str, bytes | Path]
    folder: Path
    place: str
    phase_timeout: float = PHASE_TIMEOUT


@dataclass(frozen=True)
class Refused:
    """A program that a pass or the parser refused, and why."""

    message: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that begins (`seconds` None) or is done.

    A part of the compilation, a stage of our passes, a phase of IREE, the writing of the report, or
    what the cache of compiled programs (cache.py) did.
    """

    kind: Literal["part", "stage", "phase", "report", "cache"]
    name: str
    seconds: float | None = None

    def __str__(self) -> str:
        """What a person calls it: "passes normalise", "IREE hal", "packing"."""
        before = {"stage": "passes ", "phase": "IREE ", "cache": "compile cache: "}
        return before.get(self.kind, "") + self.name


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What came out beside the module file. `report` is the content of report.json.

    `chip` and `features` are what the code was really generated for; `panels` is the layout of the
    parameters that kernels read in panels, by name. `assembly` is the text of each file of kernels,
    where it was asked for. `notes`: what our passes say to the reader of the artifact.
    """

    functions: dict[str, Function]
    report: dict[str, Any]
    chip: str
    features: tuple[str, ...]
    panels: dict[str, str] = field(default_factory=dict)
    assembly: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """What a caller may show: steps as they begin and end, bytes as they are packed.

    `packed` gets the bytes done, the bytes in all, and the name of the tensor.
    """

    step: Callable[[Step], None] = lambda step: None
    packed: Callable[[int, int, str], None] = lambda done, total, tensor: None


@dataclass
class Recorder:
    """Tells the caller of each step, and remembers those that are done."""

    progress: Progress
    done: list[Step] = field(default_factory=list)

    def saw(self, step: Step) -> None:
        """A step that begins, or is done."""
        if step.seconds is not None:
            self.done.append(step)
        self.progress.step(step)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A part of the compilation. It is not done where it raises."""
        self.saw(Step(kind="part", name=name))
        start = time.perf_counter()
        yield
        self.saw(Step(kind="part", name=name, seconds=time.perf_counter() - start))
