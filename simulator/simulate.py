"""Runs one kernel on numpy arrays: a code object or assembly text in, buffers out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.code.code_object import CodeObjectKernel, Workgroup, read_kernels
from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import AssemblyError, SimulationError
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.observe import Observer

#: The file name in messages about text that is not from a file.
_NAMELESS = "<text>"


def simulate(
    code: bytes | str | os.PathLike[str],
    workgroups: tuple[int, int, int],
    buffers: Sequence[Array],
    constants: Sequence[int] = (),
    *,
    kernel: str | None = None,
    workgroup: Workgroup | None = None,
    dynamic_lds: int = 0,
    observer: Observer | None = None,
) -> list[Array]:
    """Run one kernel; return copies of `buffers` as the kernel leaves them.

    code: a code object (HSACO) for gfx950 or gfx942, assembly text for gfx950, or the path of
    either. A str of several lines is text. workgroups: number of workgroups in x, y, z. buffers: an
    array for each pointer argument, in order. constants: the 32-bit arguments. kernel: the kernel's
    name, needed where there are several. workgroup: work items of a workgroup in x, y, z, needed
    where the metadata does not state them. dynamic_lds: bytes of LDS besides those that the kernel
    states. observer: a Sanitizer, Counter or Trace.

    Raises CodeObjectError for a code object that is malformed or for another processor,
    AssemblyError (with file and line) for text that cannot be read, and SimulationError for an
    instruction that is not modelled when it is reached, or a fault.
    """
    kernels = load_kernels(
        code, workgroup=workgroup, buffers=len(buffers), constants=len(constants)
    )
    chosen = replace(choose(kernels, kernel), dynamic_lds=dynamic_lds)
    program = TranslatedKernel(chosen, observed=observer is not None and observer.every_instruction)
    results = [buffer.copy(order="C") for buffer in buffers]
    launch(program, workgroups, results, constants, observer=observer)
    return results


def load_kernels(
    code: bytes | str | os.PathLike[str],
    *,
    workgroup: Workgroup | None = None,
    buffers: int = 0,
    constants: int = 0,
) -> dict[str, CodeObjectKernel]:
    """Return the kernels of a code object or of assembly text, by name; see `simulate`.

    buffers, constants: numbers of arguments of kernels whose text does not state them.
    """
    name = _NAMELESS
    data: bytes
    if isinstance(code, bytes):
        data = code
    elif isinstance(code, str) and "\n" in code:
        data = code.encode()
    else:
        name, data = os.fspath(code), Path(code).read_bytes()
    if data[:4] == b"\x7fELF":
        return read_kernels(data, workgroup=workgroup)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise AssemblyError(
            f"{name}: neither a code object (an ELF file) nor assembly text (UTF-8)"
        ) from None
    return read_assembly(text, name, workgroup=workgroup, buffers=buffers, constants=constants)


def choose(kernels: Mapping[str, CodeObjectKernel], name: str | None) -> CodeObjectKernel:
    """Return the kernel called `name`, or the only one; SimulationError if there is none."""
    if name is None and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name is None or name not in kernels:
        raise SimulationError(f"no kernel {name!r}; the code object has: {', '.join(kernels)}")
    return kernels[name]
