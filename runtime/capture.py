"""Time every dispatch of a call, with IREE's own profiler.

The Python bindings of IREE 3.13 cannot profile: they have no sink for the events. The tools of
the same package (iree-base-runtime) have one, so the call is repeated in `iree-benchmark-module`
with the same files, arguments and number of threads, and `iree-profile` decodes the file that it
writes. On CPUs the profiler records "host-execution" events: for each dispatch the time from its
first workgroup to its last, and the sum of the times of its workgroups on all threads.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import SCOPE
from mxc.errors import RequestError
from mxc.runtime import tiled_child
from mxc.runtime.device import topology

#: Most profiles of one call on several devices. Now and then the file of IREE 3.13's profiler is
#: then damaged (DATA_LOSS), mostly on a busy machine.
_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class CapturedDispatch:
    """One dispatch, on the device of this number.

    `start` and `end` are nanoseconds of a monotonic clock; `busy` is the time of its workgroups in
    nanoseconds, summed over all threads.
    """

    kernel: str
    start: int
    end: int
    busy: int
    device: int = 0


@dataclass(frozen=True, kw_only=True)
class CapturedCall:
    """One call of a function: wall time in seconds, and its dispatches ordered by start."""

    seconds: float
    dispatches: tuple[CapturedDispatch, ...]


@dataclass(frozen=True, kw_only=True)
class CapturedProgram:
    """An artifact's compiled module and weight archives, and what runs them: the URIs of devices,
    separated by ",", and the number of threads of each. `tiles`: it uses tiles of AMX."""

    module: Path
    archives: tuple[Path, ...]
    device: str
    threads: int
    tiles: bool = False


def capture(
    program: CapturedProgram, function: str, inputs: Sequence[str], repetitions: int, folder: Path
) -> list[CapturedCall]:
    """Call `function` `repetitions` times under the profiler and return each call.

    inputs: arguments in the syntax of `iree-run-module --input` ("7", "1xi32=5",
    "4x2xbf16=@file.bin"). folder: an existing folder for the profiler's files, which are large.
    Raises RequestError where a tool of IREE is missing or fails, or where the recorded dispatches
    are not the same in each call.
    """
    tries = _TRIES if "," in program.device else 1
    for _ in range(tries - 1):
        try:
            return _capture(program, function, inputs, repetitions, folder)
        except _Damaged:
            continue
    return _capture(program, function, inputs, repetitions, folder)


class _Damaged(RequestError):
    """The file of the profiler cannot be read, or lacks dispatches."""


def _capture(
    program: CapturedProgram, function: str, inputs: Sequence[str], repetitions: int, folder: Path
) -> list[CapturedCall]:
    bundle, timings = folder / "calls.ireeprof", folder / "calls.json"
    words = [
        f"--module={program.module}",
        "--module_mode=mmap",
        *(f"--device={uri}" for uri in program.device.split(",")),
        *topology(program.threads),
        f"--function={function}",
        *(f"--input={value}" for value in inputs),
        *(f"--parameters={SCOPE}={archive}" for archive in program.archives),
        f"--benchmark_repetitions={repetitions}",
        "--benchmark_min_time=1x",
        f"--benchmark_out={timings}",
        "--benchmark_out_format=json",
        "--device_profiling_mode=host-execution",
        f"--device_profiling_output={bundle}",
    ]
    _run("iree-benchmark-module", words, program.tiles)
    measured = json.loads(timings.read_text(encoding="utf-8"))["benchmarks"]
    seconds = [
        _seconds(row) for row in measured if row["run_type"] == "iteration" and "real_time" in row
    ]
    try:
        text = _run("iree-profile", ["export", "--format=ireeperf-jsonl", str(bundle)])
        return split(events(text), seconds, function)
    except RequestError as error:
        raise _Damaged(str(error)) from error


def events(text: str) -> list[CapturedDispatch]:
    """Parse the output of `iree-profile export --format=ireeperf-jsonl`; dispatches by start."""
    found = []
    for line in text.splitlines():
        row = json.loads(line)
        if row["record_type"] == "host_execution_event" and row["op"] == "dispatch":
            found.append(
                CapturedDispatch(
                    kernel=row["key"],
                    start=row["start_host_time_ns"],
                    end=row["end_host_time_ns"],
                    busy=row["tile_duration_sum_ns"],
                    device=row["physical_device_ordinal"],
                )
            )
    return sorted(found, key=lambda each: each.start)


def split(
    dispatches: list[CapturedDispatch], seconds: list[float], function: str
) -> list[CapturedCall]:
    """Divide the dispatches among consecutive calls, whose wall times are `seconds`.

    Calls with equal arguments have the same dispatches. Raises RequestError where the calls differ
    in their dispatches, since the profile would then be wrong.
    """
    calls = len(seconds)
    if not calls:
        raise RequestError(f"{function}: IREE's profiler timed no call of it; report this")
    # Dispatches of the module's initializers come before the calls.
    own = dispatches[len(dispatches) % calls :]
    size = len(own) // calls
    found = [
        CapturedCall(seconds=wall, dispatches=tuple(own[index * size : (index + 1) * size]))
        for index, wall in enumerate(seconds)
    ]
    kinds = {frozenset(Counter(d.kernel for d in call.dispatches).items()) for call in found}
    if len(kinds) != 1:
        raise RequestError(
            f"{function}: IREE's profiler recorded {len(dispatches)} dispatches, which are not "
            f"the same in each of {calls} calls; report this"
        )
    return found


def _seconds(row: dict[str, Any]) -> float:
    unit = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[row["time_unit"]]
    return float(row["real_time"]) * unit


def _run(tool: str, words: Sequence[str], tiles: bool = False) -> str:
    """Run a tool of iree-base-runtime, with permission for tiles, and return its output."""
    from iree._runtime import libs

    file = Path(libs.library_path) / tool
    if not file.is_file():
        raise RequestError(f"{file}: missing; install iree-base-runtime again")
    if tiles:
        done = tiled_child.run([file, *words])
    else:
        done = subprocess.run([file, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:500]
        raise RequestError(f"{tool} failed (status {done.returncode}): {said or 'it says nothing'}")
    return done.stdout
