"""How much of this machine others use: other processes, and the host of a virtual machine.

The host of a virtual machine may run other machines on its cores. Linux counts the time in which a
core wanted to run and did not as stolen (proc(5)).
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

#: What is left of a machine that others use this many cores of is not what it can do.
QUIET_CORES = 0.1

_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class _Used:
    """Seconds since some moment: of wall time, and of processors, stolen time included."""

    wall: float
    others: float
    stolen: float


class OtherLoad:
    """How many cores others have used since this was made; 0 where the system does not say."""

    def __init__(self) -> None:
        """Begin to count."""
        self._before = _used()

    def cores(self) -> float:
        """The mean number of cores of other processes, and of the host."""
        now = _used()
        return max(0.0, now.others - self._before.others) / (now.wall - self._before.wall)

    def stolen(self) -> float:
        """The mean number of cores of the host alone."""
        now = _used()
        return (now.stolen - self._before.stolen) / (now.wall - self._before.wall)

    def __str__(self) -> str:
        """Both numbers."""
        return described(self.cores(), self.stolen())


def described(cores: float, stolen: float) -> str:
    """Return the cores that others used, and what the host has of them if they are many."""
    text = f"{cores:.2f} cores"
    return text if cores < QUIET_CORES else f"{text}, {stolen:.2f} of them stolen by the host"


def _used() -> _Used:
    wall = time.perf_counter()
    if not _STAT.is_file():
        return _Used(wall, 0.0, 0.0)
    # user nice system idle iowait irq softirq steal: proc(5)
    ticks = [int(word) for word in _STAT.read_text().split("\n")[0].split()[1:9]]
    second = os.sysconf("SC_CLK_TCK")
    others = (sum(ticks) - ticks[3] - ticks[4]) / second
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        others -= usage.ru_utime + usage.ru_stime
    return _Used(wall, others, ticks[7] / second)
