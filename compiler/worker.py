"""Compile in a process of its own: a crash of the compiler is an error, never a dead mxc.

LLVM ends the process on a fatal error, and some verifier failures do as well. The worker tells
each step before it begins; when it dies, the parent knows the step and has the IR.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from mxc.compiler.steps import Compiled, Request, Step
from mxc.dialects.errors import CompileError, MxcError, PassError

OnStep = Callable[[Step], None]


def compile_program(request: Request, on_step: OnStep | None = None) -> Compiled:
    """Compile in a worker process; `request.module` is written when it returns.

    Raises CompileError where IREE refuses the program or its process dies: the message names the
    phase and the file that keeps the IR; PassError where a pass of ours refuses. An interrupt
    ends the worker too.
    """
    folder = Path(tempfile.mkdtemp(prefix="mxc-compile-"))
    program, assembly = folder / "program.mlirbc", folder / "assembly"
    assembly.mkdir()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, request, assembly, program))
    last = Step(kind="phase", name="start")
    try:
        process.start()
        there.close()
        while True:
            message = here.recv()
            if isinstance(message, Compiled):
                return message
            if isinstance(message, BaseException):
                raise message
            last = message
            if on_step is not None:
                on_step(message)
    except EOFError:
        process.join()
        raise CompileError(
            f"the compiler died in {last.kind} {last.name} (exit status {process.exitcode}); the "
            f"IR that it was given is kept in {_keep(program)}; please report it with that file",
            phase=last.name,
        ) from None
    except CompileError as error:
        if not program.exists():
            raise
        raise CompileError(
            f"IREE refused the program in phase {error.phase}: {error}; its IR is kept in "
            f"{_keep(program)}",
            phase=error.phase,
        ) from error
    finally:
        process.kill()
        process.join()
        shutil.rmtree(folder, ignore_errors=True)


def _keep(program: Path) -> Path:
    """Move the program of the last step to a file that stays."""
    if not program.exists():
        return program
    kept = Path(tempfile.mkdtemp(prefix="mxc-failed-")) / program.name
    return Path(shutil.move(program, kept))


def _work(connection: Connection, request: Request, assembly: Path, program: Path) -> None:
    """The worker's whole life: compile, and send the steps and the outcome."""
    # An interrupt reaches the whole process group; it is the parent's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    outcome: Compiled | BaseException
    try:
        # Imported here alone: the parent stays small and starts fast.
        from mxc.compiler.driver import compile_here

        outcome = compile_here(request, assembly, program, connection.send)
    except PassError as error:
        outcome = PassError(str(error))  # its location lives in this process only
    except MxcError as error:
        outcome = error
    except Exception:
        outcome = RuntimeError(f"in the compiler process:\n{traceback.format_exc()}")
    connection.send(outcome)
    connection.close()
