"""One kernel on arrays: a code object in, buffers out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mxc.runtime.simulator.code_object import Kernel, read_kernels
from mxc.runtime.simulator.errors import SimulationError
from mxc.runtime.simulator.launch import launch
from mxc.runtime.simulator.observe import Observer
from mxc.runtime.simulator.operations import Array
from mxc.runtime.simulator.translate import Program


def simulate(
    code: bytes | str | os.PathLike[str],
    workgroups: tuple[int, int, int],
    buffers: Sequence[Array],
    constants: Sequence[int] = (),
    *,
    kernel: str | None = None,
    observer: Observer | None = None,
) -> list[Array]:
    """Run one kernel; gives copies of `buffers` as the kernel leaves them.

    code: a code object (HSACO) for gfx950, or the path of one. workgroups: how many in x, y, z.
    buffers: an array for each pointer argument, in order. constants: the 32-bit arguments.
    kernel: its name, needed where the code object has several. observer: a Sanitizer, Counter or
    Trace. Raises CodeObjectError for a code object that is malformed or for another processor,
    and SimulationError for an instruction that is not modelled when it is reached, or a fault.
    """
    data = code if isinstance(code, bytes) else Path(code).read_bytes()
    chosen = choose(read_kernels(data), kernel)
    program = Program(chosen, observed=observer is not None and observer.every_instruction)
    results = [buffer.copy(order="C") for buffer in buffers]
    launch(program, workgroups, results, constants, observer=observer)
    return results


def choose(kernels: dict[str, Kernel], name: str | None) -> Kernel:
    """The kernel of that name, or the only one."""
    if name is None and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name is None or name not in kernels:
        raise SimulationError(f"no kernel {name!r}; the code object has: {', '.join(kernels)}")
    return kernels[name]
