"""Permission for the tile registers of AMX: Linux grants them to a process that asks.

Without permission, the first tile instruction ends the process with SIGILL. The permission covers
the whole process, including threads that already exist. It is inherited over fork and lost at exec.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys

#: Number of the system call and its operation: asm/unistd_64.h, asm/prctl.h of Linux 5.16.
ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
#: The state component of tile data: Intel SDM vol. 1, 13.5.
XTILEDATA = 18

#: The LLVM feature of tile registers.
TILES = "amx-tile"


@functools.cache
def refusal() -> str | None:
    """Ask for tiles, once per process. Why they are refused, as a clause; None if granted."""
    if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64"):
        return f"{sys.platform} on {platform.machine()} has no tiles to give"
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0:
        return None
    return f"Linux refuses them to this process ({os.strerror(ctypes.get_errno())})"
