"""Passes as values, pipelines as tuples of passes, and the function that runs them.

A pass of mxc is a frozen dataclass: `name`, options as fields, `run`. A `str` in a pipeline is a
pass of MLIR or IREE. `run` verifies after every pass. It reports a failure as a refusal with its
place, or, for a bug in a pass of mxc, re-raises the exception with its trace.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from iree.compiler import ir, passmanager

from mxc.dialects.context import prepare
from mxc.dialects.locations import place_of
from mxc.errors import PassError
from mxc.passes.rewriting import sanitizer

#: Attribute of an operation that could not be given its intended form: a StringAttr, one sentence.
FALLBACK = "mxc.fallback"

#: Attribute of a module: sentences for users about how it was compiled.
NOTES = "mxc.notes"

#: Constants with more elements are elided in dumps.
_DUMP_ELEMENTS = 16


#: The key of a field's metadata that holds the smallest value of an option.
LEAST = "least"


@dataclass(frozen=True)
class Pass(ABC):
    """A pass over a module; its options are the fields of its dataclass. `str(p)` is its spec,
    `name{option=value}`, which parses back to `p`."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, module: ir.Operation) -> None:
        """Rewrite `module` (builtin.module) in place. Raises PassError, with a location, for a
        program that the pass refuses."""

    def __str__(self) -> str:
        """The spec: options that differ from their defaults, in the order of the fields."""
        options = [
            f"{f.name.replace('_', '-')}={option_text(getattr(self, f.name))}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return self.name + (f"{{{' '.join(options)}}}" if options else "")


def option_text(value: object) -> str:
    """The value of an option in the syntax of a spec."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Stage:
    """A group of passes, and the sentence that is true of the program after them.

    `phase` is the phase of IREE after which the group runs; None for the input of IREE.
    """

    name: str
    invariant: str
    passes: tuple[Pass | str, ...]
    phase: str | None = None


@dataclass(frozen=True)
class Pipeline:
    """The stages of one target, in order."""

    target: str
    stages: tuple[Stage, ...]

    @property
    def passes(self) -> tuple[Pass | str, ...]:
        """All passes of all stages."""
        return tuple(p for stage in self.stages for p in stage.passes)

    def after(self, phase: str | None) -> tuple[Pass | str, ...]:
        """The passes that run after a phase of IREE; None selects those that run on its input."""
        return tuple(p for stage in self.stages if stage.phase == phase for p in stage.passes)

    def until(self, name: str) -> Pipeline:
        """Pipeline up to and including the stage `name`. Raises PassError on an unknown stage."""
        names = [stage.name for stage in self.stages]
        if name not in names:
            raise PassError(f"no stage {name!r} for {self.target}; its stages: {', '.join(names)}")
        return Pipeline(self.target, self.stages[: names.index(name) + 1])


@dataclass(frozen=True)
class Timing:
    """Wall time of one pass, in seconds, with its index in the run, from 0."""

    index: int
    spec: str
    seconds: float


def run(
    passes: Sequence[Pass | str],
    module: ir.Module,
    *,
    dump_dir: Path | None = None,
    before_pass: Callable[[str], None] | None = None,
    on_pass: Callable[[Timing], None] | None = None,
) -> list[Timing]:
    """Run `passes` over `module` in place and return how long each took.

    The module may have any context: `run` loads all dialects into it and disables its
    multithreading, with which a Python pass cannot run. `dump_dir` receives one file per pass,
    `NN-name.mlir`, with large constants elided. `before_pass` is called with the spec of each pass
    before it runs, `on_pass` after each pass. Raises PassError where a pass refuses the program, or
    where a pass of MLIR or IREE fails. For a failure, the module before that pass is written to a
    file, and the message names the file and the command that repeats the failure.
    """
    timings: list[Timing] = []
    prepare(module.context)
    with module.context, ir.Location.unknown():
        for index, item in enumerate(passes):
            before = module.operation.clone()
            if before_pass is not None:
                before_pass(str(item))
            start = time.perf_counter()
            try:
                _run_one(item, module)
            except PassError:
                raise
            except Exception as error:
                _explain(error, item, index, before, dump_dir)
            timing = Timing(index, str(item), time.perf_counter() - start)
            timings.append(timing)
            if dump_dir is not None:
                dump(module, dump_dir / f"{_file_stem(index, item)}.mlir")
            if on_pass is not None:
                on_pass(timing)
    return timings


def add_note(module: ir.Operation, note: str) -> None:
    """Add a sentence to the notes of a module, unless it is there already."""
    said = notes(module)
    if note not in said:
        every = [ir.StringAttr.get(each) for each in (*said, note)]
        module.attributes[NOTES] = ir.ArrayAttr.get(every)


def notes(module: ir.Operation) -> tuple[str, ...]:
    """The notes of a module, in the order in which they were added."""
    if NOTES not in module.attributes:
        return ()
    return tuple(ir.StringAttr(each).value for each in ir.ArrayAttr(module.attributes[NOTES]))


def check_native(text: str) -> None:
    """Raise ValueError unless MLIR or IREE can run `text` on a module. Needs a context."""
    passmanager.PassManager.parse(f"builtin.module({text})")


def _run_one(item: Pass | str, module: ir.Module) -> None:
    if isinstance(item, str):
        passmanager.PassManager.parse(f"builtin.module({item})").run(module.operation)
        return

    def rewrite(op: ir.OpView, _: object) -> None:
        with sanitizer.sanitized() if sanitizer.VARIABLE in os.environ else nullcontext():
            item.run(op.operation)

    manager = passmanager.PassManager("builtin.module")
    # `op_name` is never given: it aborts the process. The manager verifies after the callable.
    manager.add(rewrite, name=item.name, argument=item.name)
    manager.run(module.operation)


def _explain(
    error: Exception, item: Pass | str, index: int, before: ir.Operation, dump_dir: Path | None
) -> None:
    """Write `before`, the module before the pass that failed, to a file. Raise an error that names
    the file: a PassError for a pass of MLIR or IREE, else `error` with a note."""
    folder = dump_dir if dump_dir is not None else Path(tempfile.mkdtemp(prefix="mxc-"))
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{_file_stem(index, item)}.failed.mlir"
    kept.write_text(str(before) + "\n")
    repeat = f"the module before it is kept; repeat with: mxc opt {kept} --passes '{item}'"
    if isinstance(error, ir.MLIRError) and isinstance(item, str):
        found = error.error_diagnostics
        message = "; ".join(diagnostic.message.strip() for diagnostic in found) or str(error)
        where = place_of(found[0].location) if found else ""
        raise PassError(f"pass {item} failed: {message}; {repeat}", where) from error
    error.add_note(f"in pass {item}; {repeat}")
    raise error


def _file_stem(index: int, item: Pass | str) -> str:
    return f"{index:02d}-" + re.sub(r"[^A-Za-z0-9_.-]+", "_", str(item)).strip("_")[:80]


def dump(module: ir.Module, path: Path) -> None:
    """Write the text of `module`, with large constants elided: a dump is for reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = module.operation.get_asm(
        large_elements_limit=_DUMP_ELEMENTS, large_resource_limit=_DUMP_ELEMENTS
    )
    path.write_text(text + "\n")
