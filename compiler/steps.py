"""What a compilation is asked, what it says on its way, what it gives back. All of it pickles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mxc.dialects.manifest import Function


@dataclass(frozen=True, kw_only=True)
class Request:
    """One program to compile: MLIR (text or bytecode) for `target`, to the file `module`.

    `dump_dir` receives the IR after each pass and each phase, if given.
    """

    program: bytes
    target: str
    module: Path
    dump_dir: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Step:
    """Something that begins (`seconds` None) or is done.

    A part of the road, a stage of our passes, a phase of IREE, or the writing of the report.
    """

    kind: Literal["road", "stage", "phase", "report"]
    name: str
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What came out beside the module file. `report` is the content of report.json.

    `chip` and `features` are what the code was really generated for; `steps` say how long each
    step took.
    """

    functions: dict[str, Function]
    report: dict[str, Any]
    chip: str
    features: tuple[str, ...]
    steps: tuple[Step, ...]
