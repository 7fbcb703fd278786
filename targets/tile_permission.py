"""Permission for the tile registers of AMX: Linux gives them to a process that asks.

Without it the first instruction on a tile ends the process with SIGILL. The permission is that of
the whole process, threads that exist already included; children of fork have it too, a program
that is executed has not.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys

#: Number of the system call and its operation: asm/unistd_64.h, asm/prctl.h of Linux 5.16.
_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
#: The state component of tile data: Intel SDM vol. 1, 13.5.
_XTILEDATA = 18

#: The LLVM feature of tile registers.
TILES = "amx-tile"


@functools.cache
def refusal() -> str | None:
    """Ask for tiles, once in a process: why they are refused, as a clause; None where they are
    given."""
    if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64"):
        return f"{sys.platform} on {platform.machine()} has no tiles to give"
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0:
        return None
    return f"Linux refuses them to this process ({os.strerror(ctypes.get_errno())})"
