"""Which sources are programs of another framework, and their import in the worker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxc.compiler.programs import jax, onnx, torch
from mxc.compiler.programs.imported import ImportedProgram
from mxc.compiler.steps import ImportRequest, Recorder
from mxc.compiler.worker import import_program
from mxc.errors import CheckpointError


@dataclass(frozen=True)
class ForeignProgram:
    """A program of another framework; `place` is its name in messages.

    Of each function its StableHLO, its file (.pt2, .onnx), or a torch.export.ExportedProgram.
    """

    functions: dict[str, Any]
    place: str


def foreign_program(source: Any) -> ForeignProgram | None:
    """The program that an object or a file of another framework is; None for any other path.

    Raises CheckpointError for an object of an unknown kind.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if _is_file(path):
            return ForeignProgram({jax.MAIN: path}, str(path))
        if not jax.is_stablehlo(path):
            return None
        return ForeignProgram({jax.MAIN: path.read_bytes()}, str(path))
    given = source if isinstance(source, Mapping) else {jax.MAIN: source}
    if given and all(map(jax.is_exported, given.values())):
        return ForeignProgram(
            jax.functions_of(given), ", ".join(each.fun_name for each in given.values())
        )
    if given and all(map(_is_file, given.values())):
        paths = {name: Path(each) for name, each in given.items()}
        return ForeignProgram(paths, ", ".join(map(str, paths.values())))
    if given and all(map(torch.is_exported, given.values())):
        return ForeignProgram(dict(given), ", ".join(given))
    raise CheckpointError(
        f"a {type(source).__name__} is no source; give the path of a checkpoint or a program, a "
        "jax.export.Exported, a torch.export.ExportedProgram, or a dict of these, or of paths of "
        ".pt2 or .onnx files, by the names of their functions"
    )


def _is_file(source: object) -> bool:
    """Whether it is the path of a file from torch or of ONNX."""
    if not isinstance(source, str | Path):
        return False
    return Path(source).suffix in (torch.SUFFIX, onnx.SUFFIX) and Path(source).is_file()


@contextmanager
def imported(
    foreign: ForeignProgram, phase_timeout: float, recorder: Recorder
) -> Iterator[ImportedProgram]:
    """The program on tensors, with its constants, whose files last as long as the block."""
    with tempfile.TemporaryDirectory(prefix="mxc-import-") as scratch:
        folder = Path(scratch) / "constants"
        folder.mkdir()
        functions = {}
        for number, (name, each) in enumerate(foreign.functions.items()):
            functions[name] = each
            if torch.is_exported(each):
                functions[name] = Path(scratch) / f"{number}{torch.SUFFIX}"
                torch.save(each, functions[name])
        request = ImportRequest(
            functions=functions,
            folder=folder,
            place=foreign.place,
            phase_timeout=phase_timeout,
        )
        with recorder.step("importing"):
            found = import_program(request, recorder.saw)
        yield found
