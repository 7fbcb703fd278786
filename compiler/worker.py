"""Compile in a process of its own: a crash of the compiler is an error, never a dead mxc.

LLVM ends the process on a fatal error, and some verifier failures do as well. The worker tells
each step before it begins; when it dies, the parent knows the step and has the IR.

The worker gets a scratch folder that holds all it needs: the request, the IR of the step that
runs, the assembly of the kernels, and a log of what the compiler prints. It sends pickled steps
over its standard output and lives no longer than its standard input is open: a parent that is
killed leaves neither the process nor the folder behind. It is no `multiprocessing` process, which
would import the caller's main program a second time.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mxc.compiler.steps import Compiled, Request, Step
from mxc.dialects.errors import CompileError, MxcError, PassError
from mxc.dialects.targets import target

OnStep = Callable[[Step], None]

_REQUEST, _PROGRAM, _ASSEMBLY, _LOG = "request", "program.mlirbc", "assembly", "log"

#: The worker's first words; it looks for modules where its parent does.
_START = "import sys; sys.path[:] = {path!r}; from mxc.compiler.worker import work; work()"

#: A place in a program that was given as text: IREE calls its only buffer "-".
_PLACE = re.compile(r'loc\("-":(\d+):(\d+)\)|(?<!\S)-:(\d+):(\d+)')


def compile_program(request: Request, on_step: OnStep | None = None) -> Compiled:
    """Compile in a worker process; `request.module` is written when it returns.

    Raises CompileError where IREE refuses the program or its process dies: the message names the
    phase and the file that keeps the IR; PassError where a pass of ours refuses; OSError where a
    file cannot be written. Whatever ends the call ends the worker too.
    """
    folder = Path(tempfile.mkdtemp(prefix="mxc-compile-"))
    try:
        (folder / _ASSEMBLY).mkdir()
        (folder / _REQUEST).write_bytes(pickle.dumps(request))
        return _follow(folder, on_step)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _follow(folder: Path, on_step: OnStep | None) -> Compiled:
    """Start the worker and pass on its steps until it is done."""
    last = Step(kind="phase", name="start")
    with _worker(folder) as process:
        assert process.stdout is not None
        while True:
            try:
                message = pickle.load(process.stdout)
            except (EOFError, pickle.UnpicklingError):
                raise _death(process.wait(), last, folder) from None
            if isinstance(message, Compiled):
                return message
            if isinstance(message, CompileError) and (folder / _PROGRAM).exists():
                raise CompileError(
                    f"IREE refused the program in phase {message.phase}: {message}; "
                    f"{_keep(folder, last)}",
                    phase=message.phase,
                )
            if isinstance(message, BaseException):
                raise message
            last = message
            if on_step is not None:
                on_step(message)


@contextmanager
def _worker(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process; it is dead and buried when the block ends."""
    with (
        (folder / _LOG).open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", _START.format(path=sys.path), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            # An interrupt from the terminal is the parent's to answer.
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.returncode is None:
                # It leads a group of its own: a linker that it started ends too.
                os.killpg(process.pid, signal.SIGKILL)


def _death(status: int, last: Step, folder: Path) -> CompileError:
    """How the worker ended: where, of what, and what it left."""
    how = f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"
    if status == -signal.SIGKILL:
        how += ", as the system does when memory runs out"
    words = _last_words((folder / _LOG).read_text(errors="replace"))
    return CompileError(
        f"the compiler died in {last} ({how}){words}; {_keep(folder, last)}; please report it "
        "with that file",
        phase=last.name,
    )


def _last_words(log: str) -> str:
    """The line of the log that says why: LLVM's own, or the last one; nothing if there is none."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    fatal = [line for line in lines if "LLVM ERROR" in line or "Assertion" in line]
    found = (fatal or lines[-1:] or [""])[0]
    return f": {found[:300]}" if found else ""


def _keep(folder: Path, step: Step) -> str:
    """Move the program of the last step to a file that stays, and say where it is."""
    program = folder / _PROGRAM
    if not program.exists():
        return "no IR was made yet"
    try:
        kept = Path(tempfile.mkdtemp(prefix="mxc-failed-")) / f"{step.name}.mlirbc"
        shutil.move(program, kept)
    except OSError as error:
        return f"its IR could not be kept ({error.strerror})"
    return f"its IR is kept in {kept}"


def work() -> None:
    """The worker's whole life: compile, and send the steps and the outcome."""
    folder = Path(sys.argv[1])
    watch = threading.Thread(target=_end_with_parent, args=(folder,), daemon=True)
    watch.start()
    with os.fdopen(os.dup(1), "wb", buffering=0) as messages:
        # What a library prints goes to the log, not between the messages.
        os.dup2(2, 1)

        def send(message: Any) -> None:
            try:
                messages.write(pickle.dumps(message))
            except BrokenPipeError:
                watch.join()  # nobody listens any more: the other thread ends the process

        request: Request = pickle.loads((folder / _REQUEST).read_bytes())
        send(_outcome(request, folder, send))


def _outcome(request: Request, folder: Path, send: OnStep) -> Compiled | BaseException:
    try:
        # Imported here alone: the parent stays small and starts fast.
        from mxc.compiler import iree
        from mxc.compiler.driver import compile_here

        iree.set_up_process(target(request.target))
        return compile_here(request, folder / _ASSEMBLY, folder / _PROGRAM, send)
    except PassError as error:
        return PassError(_placed(str(error), request))  # its location lives in this process only
    except CompileError as error:
        return CompileError(_placed(str(error), request), error.phase)
    except (MxcError, OSError) as error:
        return error
    except Exception:
        return RuntimeError(f"in the compiler process:\n{traceback.format_exc()}")


def _placed(message: str, request: Request) -> str:
    """The message with the name of the program's file before each line and column."""
    return _PLACE.sub(
        lambda m: f"{request.place}:{m[1] or m[3]}:{m[2] or m[4]}",
        message,
    )


def _end_with_parent(folder: Path) -> None:
    """End this process when its standard input closes: its parent is dead."""
    while os.read(0, 1):
        pass
    # Under another name first, where the compilation that still runs adds nothing to it.
    dead = folder.with_name(f"{folder.name}-dead")
    try:
        folder.rename(dead)
    except OSError:
        dead = folder
    for left in (dead, folder):
        shutil.rmtree(left, ignore_errors=True)
    os._exit(1)
