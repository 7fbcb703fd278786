"""Runs the compiler in a separate process, so that a crash of it is an error and does not end mxc.

LLVM ends the process on a fatal error, and so do some verifier failures; a phase may also never
end. The worker reports each step before it begins. When the worker dies, or a step exceeds its time
limit, the parent knows the step and has the IR.

The worker gets a scratch folder for the IR of the current step, the assembly of the kernels, and a
log of what the compiler prints. It sends pickled steps to its parent. It ends when its standard
input closes, so that a killed parent leaves neither the process nor the folder behind.
`multiprocessing` is not used, because it would import the caller's main program a second time.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mxc.artifact.child import Channel, Child, ChildExited, ChildTimedOut, limit_processor
from mxc.compiler.cache import cached
from mxc.compiler.leftovers import locked_folder, remove_folder, remove_leftovers
from mxc.compiler.programs.imported import ImportedProgram
from mxc.compiler.steps import (
    IMPORT,
    Compiled,
    CompileRequest,
    CompileStep,
    ImportRequest,
    OptRequest,
    StepRefused,
)
from mxc.errors import CompileError, MxcError, PassError
from mxc.targets.target import target

OnStep = Callable[[CompileStep], None]
_Asked = CompileRequest | OptRequest | ImportRequest

_PROGRAM, _ASSEMBLY, _LOG = "program.mlirbc", "assembly", "log"

#: Prefix of the names of scratch folders.
_SCRATCH = "mxc-compile-"

#: A location in a program that was given as text: IREE names its only buffer "-".
_PLACE = re.compile(r'loc\("-":(\d+):(\d+)\)|(?<!\S)-:(\d+):(\d+)')


def compile_program(request: CompileRequest, on_step: OnStep | None = None) -> Compiled:
    """Return the result of compiling in a worker process, or of the cache; `request.module` is
    written.

    Raises CompileError if IREE refuses the program, the worker dies, or a phase takes longer than
    `request.phase_timeout`; the message names the phase and the file that keeps the IR. Raises
    PassError if one of our passes refuses the program, OSError if a file cannot be written. The
    worker ends with the call in any case.
    """

    def compile_it() -> Compiled:
        found = _answer(request, on_step)
        assert isinstance(found, Compiled)
        return found

    return cached(request, compile_it, on_step)


def run_passes(request: OptRequest) -> list[str | StepRefused]:
    """Run passes over programs in a worker process; return the text or the refusal of each.

    Raises as `compile_program`, except for a program that a pass or the parser refuses.
    """
    found = _answer(request, None)
    assert isinstance(found, list)
    return found


def import_program(request: ImportRequest, on_step: OnStep | None = None) -> ImportedProgram:
    """Import a program in a worker process, which writes its constants into `request.folder`.

    Raises as `compile_program`; if the importer dies, the CompileError names the operation, or has
    the last line of its log.
    """
    try:
        found = _answer(request, on_step)
    except _Died as died:
        raise _blamed(request, died) from None
    assert isinstance(found, ImportedProgram)
    return found


def _blamed(request: ImportRequest, died: _Died) -> CompileError:
    """Return the error for a worker that died in an import: of the operation that also ends another
    worker alone, else `died`."""
    try:
        _answer(replace(request, alone=True), None)
    except _Died as again:
        if again.step.kind == "part":
            return CompileError(
                f"{again.step.name} ends the importer ({again.how}); write it with other "
                "operations",
                phase=died.phase,
            )
    except MxcError:
        pass
    return died


class _Died(CompileError):
    """The worker died in `step`; `how` is its end."""

    def __init__(self, message: str, step: CompileStep, how: str) -> None:
        """`step` and `how` are as in the class."""
        super().__init__(message, step.name)
        self.step = step
        self.how = how


def _answer(request: _Asked, on_step: OnStep | None) -> Any:
    """Start the worker in a scratch folder, pass on its steps, and return its answer."""
    temporary = Path(tempfile.gettempdir())
    remove_leftovers(temporary, f"{_SCRATCH}*")
    with locked_folder(temporary, _SCRATCH, 0o700) as folder, (folder / _LOG).open("wb") as log:
        (folder / _ASSEMBLY).mkdir()
        worker = Child("mxc.compiler.worker:work", str(folder), log=log)
        try:
            return _follow(worker, request, folder, on_step)
        finally:
            worker.end()


def _follow(worker: Child, request: _Asked, folder: Path, on_step: OnStep | None) -> Any:
    last = CompileStep(kind="phase", name="start")
    try:
        worker.send(pickle.dumps(request))
        while True:
            message = pickle.loads(worker.receive(request.phase_timeout))
            if not isinstance(message, CompileStep):
                break
            last = message
            if on_step is not None:
                on_step(message)
    except ChildExited as ended:
        raise _death(ended, last, folder) from None
    except ChildTimedOut:
        raise CompileError(
            f"{request.place}: {last} did not end within {request.phase_timeout:g} s; give it "
            f"longer with --phase-timeout{_keep(folder, last)}",
            phase=last.name,
        ) from None
    if isinstance(message, CompileError) and (folder / _PROGRAM).exists():
        raise CompileError(
            f"IREE refused the program in phase {message.phase}: {message}{_keep(folder, last)}",
            phase=message.phase,
        )
    if isinstance(message, BaseException):
        raise message
    return message


def _death(ended: ChildExited, last: CompileStep, folder: Path) -> _Died:
    """Return the error for a worker that died, with the step, the cause and the kept IR."""
    how = str(ended)
    if ended.status == -signal.SIGKILL:
        how += ", as the system does when memory runs out"
    parsing = not last.name.startswith(IMPORT) and not (folder / _PROGRAM).exists()
    if ended.status == -signal.SIGSEGV and parsing:
        how += ", as of attributes, types or regions that nest thousands deep"
    words = _last_words((folder / _LOG).read_text(errors="replace"))
    return _Died(
        f"the compiler died in {last} ({how}){words}{_keep(folder, last)}; please report it with "
        "the program",
        last,
        str(ended),
    )


def _last_words(log: str) -> str:
    """Return ": " and the line of the log with the cause (LLVM's or the last one), or ""."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    fatal = [line for line in lines if "LLVM ERROR" in line or "Assertion" in line]
    found = (fatal or lines[-1:] or [""])[0]
    return f": {found[:300]}" if found else ""


def _keep(folder: Path, step: CompileStep) -> str:
    """Move the program of the last step to a file that is kept; return the text that names it."""
    program = folder / _PROGRAM
    if not program.exists():
        return ""
    try:
        kept = Path(tempfile.mkdtemp(prefix="mxc-failed-")) / f"{step.name}.mlirbc"
        shutil.move(program, kept)
    except OSError as error:
        return f"; its IR could not be kept ({error.strerror})"
    return f"; its IR is kept in {kept}"


def work(channel: Channel, scratch: str) -> None:
    """Main function of the worker: receive one request, send steps and the answer."""
    folder = Path(scratch)
    request: _Asked = pickle.loads(channel.receive())
    watch = threading.Thread(target=_end_with_parent, args=(folder,), daemon=True)
    watch.start()
    cores = os.cpu_count() or 1

    def send(message: Any) -> None:
        # The parent's time limit needs this process to run Python; the limit on processor time does
        # not.
        limit_processor(request.phase_timeout * cores)
        try:
            channel.send(pickle.dumps(message))
        except BrokenPipeError:
            watch.join()  # the parent is gone: the watch thread ends the process

    send(_outcome(request, folder, send))


def _outcome(request: _Asked, folder: Path, send: OnStep) -> Any:
    try:
        # Imported here only: the parent stays small and starts fast.
        if isinstance(request, OptRequest):
            from mxc.compiler.run_passes import run_here

            return run_here(request, send)
        if isinstance(request, ImportRequest):
            from mxc.compiler.programs.importing import import_here

            return import_here(request, send)
        from mxc.compiler import iree
        from mxc.compiler.driver import compile_here

        iree.set_up_process(target(request.target))
        listing = folder / _ASSEMBLY if request.listed else None
        return compile_here(request, listing, folder / _PROGRAM, send)
    except PassError as error:
        return PassError(placed(str(error), request.place))  # an MLIR location cannot be sent
    except CompileError as error:
        return CompileError(placed(str(error), request.place), error.phase)
    except (MxcError, OSError) as error:
        return error
    except RecursionError:
        return CompileError(
            f"{request.place}: nests too deeply; write its functions with fewer regions inside of "
            "regions",
            phase="start",
        )
    except Exception:
        return RuntimeError(f"in the compiler process:\n{traceback.format_exc()}")


def placed(message: str, place: str) -> str:
    """Return the message with `place`, the file of the program, before each line and column."""
    return _PLACE.sub(lambda m: f"{place}:{m[1] or m[3]}:{m[2] or m[4]}", message)


def _end_with_parent(folder: Path) -> None:
    """End this process when its standard input closes, because its parent is dead."""
    while os.read(0, 1):
        pass
    worker = os.getpid()
    if os.fork():
        os._exit(1)
    # The forked child removes the folder when no thread of the compiler can write to it any more
    # and no file of it is open: some file systems (FUSE, NFS) keep an open file under another name.
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while os.getppid() == worker:
        time.sleep(0.01)
    remove_folder(folder)
    os._exit(1)
