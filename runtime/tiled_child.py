"""Run a program that uses AMX tiles, but does not ask Linux for them, as IREE's tools do.

Permission is lost when a process becomes another program. So the child is traced (ptrace): it
stops before the first instruction of the program, where this process has it make the system call,
and then lets it go on as if nothing had happened.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence

from mxc.errors import RequestError
from mxc.targets.tile_permission import ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA

# Requests of ptrace: linux/ptrace.h and sys/ptrace.h.
_TRACEME, _PEEKTEXT, _POKETEXT, _SINGLESTEP, _GETREGS, _SETREGS, _DETACH = 0, 1, 4, 9, 12, 13, 17
#: `user_regs_struct` of x86-64 (sys/user.h): 27 registers of 8 bytes, and where some of them are.
_Registers = ctypes.c_ulonglong * 27
_RAX, _RSI, _RDI, _RIP = 10, 13, 14, 16
#: The instruction `syscall`, as a little-endian number.
_SYSCALL = 0x050F

_LIBRARY = ctypes.CDLL(None, use_errno=True)


def run(words: Sequence[str | os.PathLike[str]]) -> subprocess.CompletedProcess[str]:
    """Run a program with permission for tiles to its end, and return its output and status.

    Raises RequestError where the system forbids tracing (some containers do), or refuses tiles.
    """
    try:
        child = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: _ptrace(_TRACEME, 0),
        )
    except subprocess.SubprocessError:  # all that is known of an error in a child
        raise _refusal("the system forbids tracing a child (ptrace failed in it)") from None
    with child:
        try:
            _wait(child.pid)  # until it has become the program
            _permit(child.pid)
        except BaseException:
            child.kill()
            raise
        said, wrong = child.communicate()
    return subprocess.CompletedProcess(words, child.returncode, said, wrong)


def _permit(process: int) -> None:
    """Have a stopped process ask for tiles, and go on."""
    before = _Registers()
    _ptrace(_GETREGS, process, 0, ctypes.addressof(before))
    place = before[_RIP]
    code = _ptrace(_PEEKTEXT, process, place)
    now = _Registers(*before)
    now[_RAX], now[_RDI], now[_RSI] = ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA
    _ptrace(_SETREGS, process, 0, ctypes.addressof(now))
    _ptrace(_POKETEXT, process, place, code & ~0xFFFF | _SYSCALL)
    _ptrace(_SINGLESTEP, process)
    _wait(process)
    _ptrace(_GETREGS, process, 0, ctypes.addressof(now))
    if now[_RAX]:
        raise _refusal(f"Linux refuses them to it ({os.strerror(2**64 - now[_RAX])})")
    _ptrace(_POKETEXT, process, place, code)
    _ptrace(_SETREGS, process, 0, ctypes.addressof(before))
    _ptrace(_DETACH, process)


def _refusal(why: str) -> RequestError:
    return RequestError(
        f"a tool of IREE needs tiles of AMX, and {why}; compile for a second target without them "
        "(--target cpu --target cpu:icelake-server) and give that --level"
    )


def _wait(process: int) -> None:
    """Wait until a traced process stops."""
    os.waitpid(process, 0)


def _ptrace(request: int, process: int, place: int = 0, data: int = 0) -> int:
    """Call ptrace(2). Raises RequestError where it fails."""
    call = _LIBRARY.ptrace
    call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
    ctypes.set_errno(0)
    found = call(request, process, place, data)
    if number := ctypes.get_errno():
        raise _refusal(f"the system forbids tracing a child ({os.strerror(number)})")
    return int(found)
