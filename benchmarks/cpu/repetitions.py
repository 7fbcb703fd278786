"""Timing on a shared machine: interleaved repetitions, of which the minimum counts.

Other load can only make a repetition longer. The candidates alternate round by round, so that a
slow minute affects all of them equally.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any, TypeVar

#: Names a call that is timed.
Key = TypeVar("Key")

#: Pause before each call: the workers of an OpenMP runtime spin for some milliseconds after their
#: last work, which would slow down the next call.
SETTLE_SECONDS = 0.01


@dataclass(frozen=True)
class Time:
    """Least and median seconds of a call, over a number of repetitions."""

    least: float
    median: float
    repetitions: int

    def each_of(self, count: int) -> Time:
        """Return the time of one of `count` equal parts of the call."""
        return Time(self.least / count, self.median / count, self.repetitions)


def interleave(
    calls: Mapping[Key, Callable[[], Any]],
    *,
    seconds: float,
    rounds: int = 3,
    most: int = 200,
    settle: float = SETTLE_SECONDS,
) -> dict[Key, Time]:
    """Time each call once a round, after one round that does not count. Return times by name.

    Goes on for `seconds`, but for at least `rounds` and at most `most` rounds, with a pause of
    `settle` seconds before each call. Each round has a random order: a call that follows a large
    read of memory is up to 15 % slower, and this must not always be the same call.
    """
    taken: dict[Key, list[float]] = {name: [] for name in calls}
    collects = gc.isenabled()
    gc.disable()
    try:
        for call in calls.values():
            call()
        begin, order, draw = time.perf_counter(), list(calls), Random(0)
        for done in range(most):
            if done >= rounds and time.perf_counter() - begin >= seconds:
                break
            draw.shuffle(order)
            for name in order:
                if settle:
                    time.sleep(settle)
                start = time.perf_counter()
                calls[name]()
                taken[name].append(time.perf_counter() - start)
    finally:
        if collects:
            gc.enable()
    return {name: Time(min(list_), median(list_), len(list_)) for name, list_ in taken.items()}
