"""Launches one kernel on buffers and constants; buffers are changed in place.

The initial state of a wave follows the LLVM documentation "User Guide for AMDGPU Backend", section
Initial Kernel Execution State.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError
from mxc.simulator.memory.spaces import Bytes, Memory
from mxc.simulator.run.execute import execute
from mxc.simulator.run.state import UNDEFINED, Waves
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.observe import Observer

#: Waves per batch: they share the cost of an instruction, and their registers should fit a cache.
_WAVES = 512
#: Bytes of scratch and of LDS that a batch may take.
_SCRATCH, _LDS = 1 << 28, 1 << 24
#: Most instructions of a batch; the longest known kernels take a few million.
_LIMIT = 1 << 32


@dataclass(frozen=True)
class Binding:
    """A buffer of a kernel: bytes offset .. offset + length of an array."""

    array: Array
    offset: int = 0
    length: int | None = None


def launch(
    program: TranslatedKernel,
    workgroups: tuple[int, int, int],
    bindings: Sequence[Array | Binding],
    constants: Sequence[int] = (),
    *,
    observer: Observer | None = None,
    waves: int = _WAVES,
    backwards: bool = False,
) -> int:
    """Run a kernel; return the number of executed instructions.

    workgroups: number of workgroups in x, y, z. bindings: writable arrays in the order of the
    kernel's pointer arguments, changed in place. constants: its 32-bit arguments in order. waves:
    most waves per batch. backwards: run workgroups in reverse order; findings number them in that
    order. Raises SimulationError for arguments that do not fit the kernel, for an unmodelled
    instruction when it is reached, and for a fault (an address in no buffer).
    """
    kernel = program.kernel
    if min(workgroups) < 0 or max(workgroups) >= 1 << 31:
        raise SimulationError(f"{kernel.name}: workgroup count {workgroups}")
    memory = Memory()
    memory.add_image(kernel.image)
    arguments = _arguments(kernel, workgroups, bindings, constants, memory)
    # The argument segment is an ordinary buffer that kernels do not write to.
    arguments.flags.writeable = False
    base = memory.add(arguments)
    packet = memory.add(_packet(kernel, workgroups, base))
    total = workgroups[0] * workgroups[1] * workgroups[2]
    per_workgroup = -(-int(np.prod(kernel.workgroup)) // 64)
    # Memory per workgroup besides registers; a sanitizer's state takes twenty times the LDS.
    scratch = 64 * per_workgroup * max(1, kernel.descriptor.scratch_bytes)
    lds = max(1, kernel.lds_bytes)
    batch = max(1, min(waves // per_workgroup, _SCRATCH // scratch, _LDS // lds))
    stepped = 0
    for first in range(0, total, batch):
        numbers = np.arange(first, min(total, first + batch))
        if backwards:
            numbers = total - 1 - numbers
        w = _start(kernel, memory, (base, packet), arguments, numbers, workgroups, per_workgroup)
        w.observer = observer
        if observer is not None:
            observer.start(w, program)
        stepped += execute(program, w, limit=_LIMIT)
        if observer is not None:
            observer.finish(w)
    memory.finish()
    return stepped


def _arguments(
    kernel: CodeObjectKernel,
    workgroups: tuple[int, int, int],
    bindings: Sequence[Array | Binding],
    constants: Sequence[int],
    memory: Memory,
) -> Array:
    """Return the bytes of the kernel's argument segment; its buffers are added to `memory`."""
    pointers = [a for a in kernel.arguments if a.kind == "global_buffer"]
    values = [a for a in kernel.arguments if a.kind == "by_value"]
    if len(pointers) != len(bindings):
        raise SimulationError(f"{kernel.name}: takes {len(pointers)} buffers, got {len(bindings)}")
    narrow = [a for a in values if a.size > 4 and a.size % 4]
    if narrow:
        raise SimulationError(
            f"{kernel.name}: an argument of {narrow[0].size} bytes; those above 4 bytes are given "
            "as 32-bit numbers, and it is not a whole number of them"
        )
    words = sum(max(1, a.size // 4) for a in values)
    if words != len(constants):
        raise SimulationError(f"{kernel.name}: takes {words} constants, got {len(constants)}")
    segment = np.zeros(max(kernel.descriptor.kernarg_bytes, 8) + 64, np.uint8)

    def write(offset: int, size: int, value: int) -> None:
        if offset < 0 or size < 0 or offset + size > segment.size:
            raise SimulationError(f"{kernel.name}: an argument lies outside of its segment")
        raw = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        segment[offset : offset + size] = np.frombuffer(raw, np.uint8)

    for argument, binding in zip(pointers, bindings, strict=True):
        part = binding if isinstance(binding, Binding) else Binding(binding)
        write(argument.offset, 8, _place(kernel, part, memory, argument.is_read_only))
    left = list(constants)
    for argument in values:
        for n in range(max(1, argument.size // 4)):
            write(argument.offset + 4 * n, min(4, argument.size), int(left.pop(0)))
    for argument in kernel.arguments:
        kind, _, axis = argument.kind.rpartition("_")
        if kind == "hidden_block_count" and axis in "xyz":
            write(argument.offset, argument.size, workgroups["xyz".index(axis)])
        elif kind == "hidden_group_size" and axis in "xyz":
            write(argument.offset, argument.size, kernel.workgroup["xyz".index(axis)])
        elif argument.kind == "hidden_grid_dims":
            write(argument.offset, argument.size, 3)
        elif argument.kind == "hidden_dynamic_lds_size":
            write(argument.offset, argument.size, kernel.dynamic_lds)
    return segment


def _packet(kernel: CodeObjectKernel, workgroups: tuple[int, int, int], arguments: int) -> Array:
    """Return the dispatch packet (HSA Platform System Architecture Specification, section 2.9.6).

    The fields of the kernel's handle and the signal are zero, because neither exists.
    """
    dispatch, dimensions = 2, 3
    sizes = zip(workgroups, kernel.workgroup, strict=True)
    items = [(count * size) & 0xFFFFFFFF for count, size in sizes]
    scratch = kernel.descriptor.scratch_bytes
    words = (dispatch, dimensions, *kernel.workgroup, 0, *items, scratch, kernel.lds_bytes)
    return np.frombuffer(struct.pack("<6H5I4Q", *words, 0, arguments, 0, 0), np.uint8)


def _place(kernel: CodeObjectKernel, part: Binding, memory: Memory, is_read_only: bool) -> int:
    """Return the address of a binding; bindings have separate addresses even within one array."""
    if not part.array.flags.c_contiguous:
        raise SimulationError(f"{kernel.name}: a buffer is not contiguous")
    flat = part.array.reshape(-1).view(np.uint8)
    length = flat.size - part.offset if part.length is None else part.length
    if part.offset < 0 or length < 0 or part.offset + length > flat.size:
        raise SimulationError(
            f"{kernel.name}: a binding of {length} bytes at {part.offset} "
            f"of a buffer of {flat.size}"
        )
    # Only whole words can be used in place, so the length is rounded up to 4 bytes.
    whole = min(flat.size, part.offset + (length + 3) // 4 * 4)
    return memory.add(flat[part.offset : whole], length, is_read_only=is_read_only)


def _start(
    kernel: CodeObjectKernel,
    memory: Memory,
    pointers: tuple[int, int],
    arguments: Array,
    numbers: Array,
    workgroups: tuple[int, int, int],
    per_workgroup: int,
) -> Waves:
    """Return the waves of the workgroups `numbers` in their initial state."""
    d = kernel.descriptor
    count = len(numbers) * per_workgroup
    lds_size = (kernel.lds_bytes + 3) // 4 * 4
    scratch_size = (d.scratch_bytes + 3) // 4 * 4
    blank = np.uint32(UNDEFINED)
    lds = Bytes(np.full(max(1, lds_size // 4) * len(numbers), blank).view(np.uint8))
    scratch = Bytes(np.full(max(1, scratch_size // 4 * 64 * count), blank).view(np.uint8))
    vectors = max(d.first_agpr, 1) if d.first_agpr < d.vgprs else max(d.vgprs, d.first_agpr)
    w = Waves(count, vectors, max(d.vgprs - d.first_agpr, 0), memory, lds, scratch)
    w.mode = d.mode
    w.workgroup = np.repeat(np.arange(len(numbers)), per_workgroup)
    w.lds_base = (w.workgroup * lds_size)[:, None]
    w.lds_size = lds_size
    w.scratch_base = (np.arange(count * 64) * scratch_size).reshape(count, 64)
    w.scratch_size = scratch_size
    _scalars(w, kernel, pointers, arguments, np.repeat(numbers, per_workgroup), workgroups)
    _work_items(w, kernel, per_workgroup)
    return w


def _scalars(
    w: Waves,
    kernel: CodeObjectKernel,
    pointers: tuple[int, int],
    arguments: Array,
    numbers: Array,
    workgroups: tuple[int, int, int],
) -> None:
    d = kernel.descriptor

    def put(index: int, value: int) -> None:
        w.s[index] = np.array([[value]], np.uint32)

    for name, pointer in zip(("kernarg_segment_ptr", "dispatch_ptr"), pointers, strict=True):
        if name in d.user:
            put(d.user[name], pointer & 0xFFFFFFFF)
            put(d.user[name] + 1, pointer >> 32)
    if "private_segment_size" in d.user:
        put(d.user["private_segment_size"], d.scratch_bytes)
    words = arguments[: arguments.size // 4 * 4].view(np.uint32)
    if d.preload_offset + d.preload_dwords > words.size:
        raise SimulationError(f"{kernel.name}: preloads arguments from behind their segment")
    for n in range(d.preload_dwords):
        put(d.preload_sgpr + n, int(words[d.preload_offset + n]))
    x, y, _ = workgroups
    place = d.user_sgprs
    for wanted, ids in zip(
        d.workgroup_ids, (numbers % x, numbers // x % y, numbers // (x * y)), strict=True
    ):
        if wanted:
            w.s[place] = ids.astype(np.uint32)[:, None]
            place += 1


def _work_items(w: Waves, kernel: CodeObjectKernel, per_workgroup: int) -> None:
    """Set v0 to the work item's x, y and z in ten bits each, and EXEC to lanes with work items."""
    x, y, z = kernel.workgroup
    flat = (np.arange(w.count) % per_workgroup * 64)[:, None] + np.arange(64)
    ids = flat % x
    if kernel.descriptor.workitem_dimensions > 1:
        ids = ids | flat // x % y << 10
    if kernel.descriptor.workitem_dimensions > 2:
        ids = ids | flat // (x * y) << 20
    w.v[0] = ids.astype(np.uint32)
    if x * y * z % 64:
        lanes = flat < x * y * z
        words = np.packbits(lanes, axis=1, bitorder="little").view(np.uint64)
        w.set_exec(words)
