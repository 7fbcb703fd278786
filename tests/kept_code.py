"""Generated code that is kept between runs of the tests, by the program that IREE was given.

The last phases of IREE, which generate code, take most of the time of a compilation. What they make
depends on the program that our passes leave, on the flags and on the version of IREE. It is kept in
the folder that an environment variable names, so that a change of our sources costs code generation
where it changes programs. A test about code generation itself runs without the variable.

Kernels of GPUs are kept there one by one, by the product itself (compiler/kernel_code.py), for
requests without its cache too.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

from mxc.artifact.versions import iree_version
from mxc.compiler import driver, iree
from mxc.compiler.cache import CompileCache
from mxc.compiler.steps import Compiled, CompileRequest
from mxc.targets.target import Target

#: The variable, and the most bytes that its folder has after a run.
FOLDER, LIMIT = "MXC_TESTS_KEPT_CODE", 2 << 30
#: The folder of kernels in it.
_KERNELS = "kernels"
#: The first phase after the last of our passes.
_FIRST = "executable-configurations"

#: Requests that want the program after each phase.
_dumped: list[CompileRequest] = []


class Compiler(iree.Compiler):
    """A compiler that looks for its code before it generates any."""

    def __init__(
        self, target: Target, program: bytes, code_dir: Path | None = None, *, devices: int = 1
    ) -> None:
        super().__init__(target, program, code_dir, devices=devices)
        flags = iree.flags(target, None, devices)
        self._given = repr((iree_version(), flags, code_dir is None))
        self._code_dir = code_dir
        self._whole = not target.is_gpu
        self._file: Path | None = None
        self._code: dict[str, bytes] | None = None

    def run_to(self, phase: str) -> None:
        """As IREE's; what is found makes the last phases needless."""
        if phase == _FIRST and self._whole and FOLDER in os.environ and not _dumped:
            program = io.BytesIO()
            self.module.operation.write_bytecode(program)
            key = hashlib.sha256(self._given.encode() + program.getvalue()).hexdigest()
            self._file = Path(os.environ[FOLDER]) / key
            self._code = _read(self._file)
            for name, data in (self._code or {}).items():
                if name:
                    assert self._code_dir is not None
                    place = self._code_dir / name
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(data)
        if self._code is None:
            super().run_to(phase)

    def write_module(self, path: Path) -> None:
        """As IREE's."""
        if self._code is not None:
            path.write_bytes(self._code[""])
            return
        super().write_module(path)
        if self._file is not None:
            found = {"": path.read_bytes()}
            folder = self._code_dir
            for file in sorted(folder.rglob("*")) if folder else ():
                if folder and file.is_file():
                    found[file.relative_to(folder).as_posix()] = file.read_bytes()
            _write(self._file, found)


def _read(file: Path) -> Any:
    """What is kept; None where nothing is."""
    try:
        data = file.read_bytes()
        os.utime(file)
    except OSError:
        return None
    return pickle.loads(data)


def _write(file: Path, found: dict[str, bytes]) -> None:
    """Keep code: a reader finds a complete file or none."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    with os.fdopen(handle, "wb") as new:
        new.write(pickle.dumps(found))
    os.replace(name, file)


def kernels() -> CompileCache | None:
    """Where kernels of GPUs are kept; None where nothing is."""
    return (
        CompileCache(Path(os.environ[FOLDER]) / _KERNELS, LIMIT) if FOLDER in os.environ else None
    )


def use() -> None:
    """Have this process compile so, and those that are forked from it."""
    its: Any = driver
    compile_here, entries_of = its.compile_here, its.entries_of

    def compile_it(request: CompileRequest, *rest: Any) -> Compiled:
        _dumped[:] = [request] * (request.dump_dir is not None)
        return compile_here(request, *rest)

    def kernels_of(request: CompileRequest) -> CompileCache | None:
        shown = request.assembly or request.dump_dir is not None
        return (None if shown else kernels()) or entries_of(request)

    below: Any = iree
    below.Compiler = Compiler
    its.compile_here, its.entries_of = compile_it, kernels_of


def trim(folder: Path) -> None:
    """Remove what has not been used for longest, over the limit."""
    found = [each for each in folder.rglob("*") if each.is_file()]
    files = sorted((each.stat().st_mtime_ns, each) for each in found)
    size = sum(each.stat().st_size for _, each in files)
    for _, each in files:
        if size <= LIMIT:
            break
        size -= each.stat().st_size
        each.unlink()
