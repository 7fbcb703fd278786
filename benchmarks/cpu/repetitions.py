"""Timing on a shared machine: interleaved repetitions, of which the minimum counts.

Other load can only make a repetition longer. The candidates alternate round by round, so that a
slow minute affects all of them equally.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

#: Names a call that is timed.
Key = TypeVar("Key")

#: Between two that take turns: the workers of an OpenMP runtime look for more work for some
#: milliseconds after their last, at the cost of whoever runs next.
SETTLE_SECONDS = 0.01


#: What is left of a machine that others use this many cores of is not what it can do.
QUIET_CORES = 0.1


class Others:
    """How many cores other processes, and the machine's host, have used since this was made."""

    def __init__(self) -> None:
        self._wall, self._others = time.perf_counter(), _others_seconds()

    def cores(self) -> float:
        """On average; 0 where the system does not say."""
        wall = time.perf_counter() - self._wall
        return max(0.0, _others_seconds() - self._others) / wall

    def __str__(self) -> str:
        cores = self.cores()
        text = f"other processes used {cores:.2f} cores meanwhile"
        return text if cores < QUIET_CORES else f"{text}: measure again on a quiet machine"


def _others_seconds() -> float:
    """Processor time of everything but this process and its children, stolen time included."""
    stat = Path("/proc/stat")
    if not stat.is_file():
        return 0.0
    # user nice system idle iowait irq softirq steal: proc(5)
    ticks = [int(word) for word in stat.read_text().split("\n")[0].split()[1:9]]
    used = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used -= usage.ru_utime + usage.ru_stime
    return used


@dataclass(frozen=True)
class Time:
    """Seconds of one piece of work: the least, the median, and over how many repetitions."""

    least: float
    median: float
    repetitions: int

    def each_of(self, count: int) -> Time:
        """The time of one of `count` equal parts."""
        return Time(self.least / count, self.median / count, self.repetitions)


def interleave(
    calls: Mapping[Key, Callable[[], Any]],
    *,
    seconds: float,
    rounds: int = 3,
    most: int = 200,
    settle: float = SETTLE_SECONDS,
) -> dict[Key, Time]:
    """Time each call once a round, after one round that does not count.

    Goes on for `seconds`, for at least `rounds` and at most `most` rounds.
    """
    taken: dict[Key, list[float]] = {name: [] for name in calls}
    collects = gc.isenabled()
    gc.disable()
    try:
        for call in calls.values():
            call()
        begin = time.perf_counter()
        for done in range(most):
            if done >= rounds and time.perf_counter() - begin >= seconds:
                break
            for name, call in calls.items():
                if settle:
                    time.sleep(settle)
                start = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - start)
    finally:
        if collects:
            gc.enable()
    return {name: Time(min(list_), median(list_), len(list_)) for name, list_ in taken.items()}
