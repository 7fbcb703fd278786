"""Which sources are programs of another framework, and their import in the worker."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxc.compiler.programs import jax
from mxc.compiler.programs.imported import Imported
from mxc.compiler.steps import ImportRequest, Recorder
from mxc.compiler.worker import import_program
from mxc.errors import CheckpointError


@dataclass(frozen=True)
class Foreign:
    """A program of another framework: StableHLO by function; `place` is its name in messages."""

    functions: dict[str, bytes]
    place: str


def foreign_program(source: Any) -> Foreign | None:
    """The program that an object or a file of another framework is; None for any other path.

    Raises CheckpointError for an object of an unknown kind.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        if not jax.is_stablehlo(path):
            return None
        return Foreign({jax.MAIN: path.read_bytes()}, str(path))
    several = isinstance(source, Mapping)
    if several and source and all(map(jax.is_exported, source.values())):
        return Foreign(jax.functions_of(source), ", ".join(source))
    if jax.is_exported(source):
        return Foreign(jax.functions_of(source), source.fun_name)
    raise CheckpointError(
        f"a {type(source).__name__} is no source; give the path of a checkpoint or a program, a "
        "jax.export.Exported, or a dict of these by the names of their functions"
    )


@contextmanager
def imported(foreign: Foreign, phase_timeout: float, road: Recorder) -> Iterator[Imported]:
    """The program on tensors, with its constants, whose files last as long as the block."""
    with tempfile.TemporaryDirectory(prefix="mxc-import-") as folder:
        request = ImportRequest(
            functions=foreign.functions,
            folder=Path(folder),
            place=foreign.place,
            phase_timeout=phase_timeout,
        )
        with road.step("importing"):
            found = import_program(request, road.saw)
        yield found
