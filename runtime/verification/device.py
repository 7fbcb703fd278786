"""A device for host programs that runs dispatches on a GPU, and once each on the simulator too.

The first dispatch of a kernel with a given number of workgroups runs on both, with the same
buffers. The program continues with the simulator's results, so that an error does not reach later
kernels. All other dispatches run on the GPU only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mxc.runtime.verification.compare import Comparison, compare
from mxc.runtime.verification.hip import Hip, Launch, Times
from mxc.simulator.compute.operations import Array
from mxc.simulator.host.hal import Executable, HalDevice
from mxc.simulator.run.launch import Binding


@dataclass(frozen=True, kw_only=True)
class Check:
    """A dispatch that ran on both: its arguments, the comparison of results, its times.

    `buffers`: sizes in bytes.
    """

    kernel: str
    workgroups: tuple[int, int, int]
    workgroup: tuple[int, int, int]
    buffers: tuple[int, ...]
    constants: tuple[int, ...]
    comparison: Comparison
    times: Times


class VerifyingDevice(HalDevice):
    """Runs dispatches on `hip`; calls `checked` for each that also ran on the simulator."""

    def __init__(
        self,
        parameters: Mapping[str, Array],
        hip: Hip,
        types: Mapping[str, Sequence[str]],
        checked: Callable[[Check], None],
        repetitions: int,
    ) -> None:
        """types: MLIR types of results by kernel name. repetitions: number of timed runs."""
        super().__init__(parameters)
        self._hip, self._types, self._checked = hip, types, checked
        self._repetitions = repetitions
        self._seen: set[tuple[str, tuple[int, int, int]]] = set()
        #: The kernel that runs at the moment, for messages about a failure.
        self.current = ""

    def run(
        self,
        executable: Executable,
        name: str,
        workgroups: tuple[int, int, int],
        parts: Sequence[Binding],
        constants: Sequence[int],
    ) -> None:
        """Run one kernel on its buffers; nothing without workgroups, which HIP refuses."""
        if 0 in workgroups:
            return
        self.current = name
        kernel, code = executable.kernels[name], executable.code[name]
        windows = [_window(part) for part in parts]
        before = [window.copy() for window in windows]
        ranges, places = _ranges(parts)
        with self._hip.memory(ranges) as bases:
            launch = Launch(
                code=code,
                kernel=kernel,
                workgroups=workgroups,
                addresses=[bases[each] + offset for each, offset in places],
                constants=constants,
            )
            self._hip.launch(launch)
            found = [
                self._hip.read(address, like)
                for address, like in zip(launch.addresses, before, strict=True)
            ]
            if (name, workgroups) in self._seen:
                for window, old, new in zip(windows, before, found, strict=True):
                    if (changed := old != new).any():
                        np.copyto(window, new, where=changed)
                return
            self._seen.add((name, workgroups))
            times = self._hip.measure(launch, repetitions=self._repetitions)
        super().run(executable, name, workgroups, parts, constants)
        self._checked(
            Check(
                kernel=name,
                workgroups=workgroups,
                workgroup=kernel.workgroup,
                buffers=tuple(window.size for window in windows),
                constants=tuple(constants),
                comparison=compare(before, windows, found, self._types.get(name, ())),
                times=times,
            )
        )


def _window(part: Binding) -> Array:
    flat = part.array.reshape(-1).view(np.uint8)
    end = flat.size if part.length is None else part.offset + part.length
    return flat[part.offset : end]


def _ranges(parts: Sequence[Binding]) -> tuple[list[Array], list[tuple[int, int]]]:
    """Return the distinct memory ranges of the bindings, and (range, offset) of each binding.

    Bindings that are parts of one buffer share one range, so that they share memory on the GPU too.
    """
    ranges: dict[int, tuple[Array, int, int]] = {}
    for part in parts:
        window = _window(part)
        flat = part.array.reshape(-1).view(np.uint8)
        _, first, last = ranges.get(flat.ctypes.data, (flat, part.offset, part.offset))
        end = part.offset + window.size
        ranges[flat.ctypes.data] = (flat, min(first, part.offset), max(last, end))
    order = {data: number for number, data in enumerate(ranges)}
    places = []
    for part in parts:
        data = part.array.reshape(-1).view(np.uint8).ctypes.data
        places.append((order[data], part.offset - ranges[data][1]))
    return [flat[first:last] for flat, first, last in ranges.values()], places
