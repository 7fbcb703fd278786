"""The functions that a host program imports: buffers, command buffers, dispatches, parameters.

All functions execute synchronously and in order; fences exist but are never waited for. Source of
the signatures: hal.imports.mlir and io_parameters.imports.mlir of IREE 3.13.
"""

from __future__ import annotations

import fnmatch
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from mxc.errors import RequestError
from mxc.simulator.code.code_object import CodeObjectKernel, read_kernels
from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError
from mxc.simulator.host.vm_module import read_executable
from mxc.simulator.run.launch import Binding, launch
from mxc.simulator.run.state import UNDEFINED
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.observe import Observer

#: Answers of the device to queries.
_ANSWERS = {"hal.device.id": "hip", "hal.executable.format": "rocm-hsaco-fb"}


@dataclass(frozen=True)
class HalBuffer:
    """`length` bytes of an array of bytes, from `offset` on."""

    array: Array
    offset: int
    length: int

    @classmethod
    def over(cls, array: Array) -> HalBuffer:
        """Return a buffer over a whole contiguous array."""
        flat = array.reshape(-1).view(np.uint8)
        return cls(flat, 0, flat.size)

    def part(self, offset: int, length: int) -> HalBuffer:
        """Return a part of the buffer; length -1 means up to its end.

        Raises SimulationError for a part that is not inside.
        """
        size = self.length - offset if length < 0 else length
        if offset < 0 or size < 0 or offset + size > self.length:
            raise SimulationError(
                f"the host program wants {size} bytes at {offset} of a buffer of {self.length}"
            )
        return HalBuffer(self.array, self.offset + offset, size)

    @property
    def bytes(self) -> Array:
        """Its bytes, without a copy."""
        return self.array[self.offset : self.offset + self.length]


@dataclass(frozen=True)
class View:
    """A buffer with a shape, and IREE's numbers of its element type and encoding."""

    buffer: HalBuffer
    shape: tuple[int, ...]
    element: int
    encoding: int


@dataclass(frozen=True)
class SimulatedDispatch:
    """One kernel that ran: its name, workgroup count, and number of executed instructions."""

    kernel: str
    workgroups: tuple[int, int, int]
    stepped: int


class Observe(Protocol):
    """A function that chooses the observer of each dispatch."""

    def __call__(self, kernel: CodeObjectKernel) -> Observer | None:
        """Return the observer of the next run of `kernel`, or None."""


@dataclass
class Executable:
    """The kernels of one executable, each translated when it first runs.

    `code`: the code object that holds each kernel. `names`: kernels by function number.
    """

    kernels: dict[str, CodeObjectKernel]
    code: dict[str, bytes] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    programs: dict[tuple[str, bool], TranslatedKernel] = field(default_factory=dict)

    def program(self, name: str, observed: bool) -> TranslatedKernel:
        """Return the translated kernel."""
        if (name, observed) not in self.programs:
            self.programs[name, observed] = TranslatedKernel(self.kernels[name], observed=observed)
        return self.programs[name, observed]


#: A recorded command, which runs with the binding table of its submission.
Command = Callable[[Sequence[HalBuffer]], None]


class HalDevice:
    """The device that a host program sees. `dispatches` grows with every kernel that runs."""

    def __init__(
        self, parameters: Mapping[str, Array] | None = None, observe: Observe | None = None
    ) -> None:
        """parameters: bytes by name. observe: called before each dispatch for its observer."""
        self.parameters = parameters or {}
        self.observe = observe
        self.dispatches: list[SimulatedDispatch] = []

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return the functions that a host program may import, by name."""
        nothing: dict[str, Callable[..., Any]] = {
            f"hal.{name}": lambda *_: None
            for name in (
                *("command_buffer.execution_barrier", "command_buffer.finalize"),
                *("command_buffer.begin_debug_group", "command_buffer.end_debug_group"),
                *("command_buffer.advise_buffer", "device.queue.dealloca"),
                *("device.queue.barrier", "device.queue.flush", "fence.signal"),
                *("buffer.allocation.preserve", "buffer_view.trace"),
            )
        }
        zero: dict[str, Callable[..., Any]] = {
            f"hal.{name}": lambda *_: 0
            for name in (
                *("fence.await", "fence.query"),
                *("buffer.allocation.discard", "buffer.allocation.is_terminal"),
            )
        }
        return {
            **nothing,
            **zero,
            "hal.devices.count": lambda: 1,
            "hal.devices.get": lambda _: self,
            "hal.device.allocator": lambda _: self,
            "hal.device.query.i64": _query,
            "hal.fence.create": lambda *_: object(),
            "hal.fence.join": lambda *_: object(),
            "hal.fence.fail": _fail,
            "hal.allocator.allocate": lambda *a: _allocate(a[4]),
            "hal.allocator.import": lambda *a: _constant(a[5]).part(a[6], a[7]),
            "hal.allocator.select": lambda _m, _u, _f, devices: devices[0],
            "hal.device.queue.alloca": lambda *a: _allocate(a[7]),
            "hal.device.queue.fill": lambda *a: _fill(a[4].part(a[5], a[6]), a[7], a[8]),
            "hal.device.queue.copy": lambda *a: _copy(a[4].part(a[5], a[8]), a[6].part(a[7], a[8])),
            # Constants of the program, which it reads like a file.
            "hal.ex.file.from_memory": lambda *a: _constant(a[3]).part(a[4], a[5]),
            "hal.device.queue.read": lambda *a: _copy(a[4].part(a[5], a[8]), a[6].part(a[7], a[8])),
            "hal.device.queue.update": lambda *a: _copy(
                _constant(a[4]).part(a[5], a[8]), a[6].part(a[7], a[8])
            ),
            "hal.device.queue.execute": lambda *a: _submit(a[4], ()),
            "hal.device.queue.execute.indirect": lambda *a: _submit(a[4], a[6]),
            "hal.buffer.assert": _check_buffer,
            "hal.buffer.length": lambda buffer: buffer.length,
            "hal.buffer.load": _load,
            "hal.buffer.store": _store,
            "hal.buffer.subspan": lambda buffer, offset, length: buffer.part(offset, length),
            "hal.buffer_view.create": lambda b, offset, length, element, encoding, shape: View(
                b.part(offset, length), shape, element, encoding
            ),
            "hal.buffer_view.assert": _check_view,
            "hal.buffer_view.buffer": lambda view: view.buffer,
            "hal.buffer_view.dim": lambda view, n: view.shape[n],
            "hal.buffer_view.rank": lambda view: len(view.shape),
            "hal.buffer_view.element_type": lambda view: view.element,
            "hal.buffer_view.encoding_type": lambda view: view.encoding,
            "hal.executable.create": lambda _d, _a, _f, data, _c: _executable(data),
            "hal.executable.lookup.function": _find,
            "hal.command_buffer.create": lambda *_: [],
            "hal.command_buffer.dispatch": self._dispatch,
            "hal.command_buffer.fill_buffer": _record_fill,
            "hal.command_buffer.copy_buffer": _record_copy,
            "hal.command_buffer.update_buffer": _record_update,
            "io_parameters.load": self._load_parameters,
            "io_parameters.gather": self._gather_parameters,
        }

    def _dispatch(
        self,
        commands: list[Command],
        executable: Executable,
        function: int,
        x: int,
        y: int,
        z: int,
        _flags: int,
        constants: tuple[int, ...],
        bindings: tuple[tuple[int, int, HalBuffer | None, int, int], ...],
    ) -> None:
        name = executable.names[function]

        def run(table: Sequence[HalBuffer]) -> None:
            buffers = [
                _slot(buffer, slot, table).part(offset, length)
                for _, slot, buffer, offset, length in bindings
            ]
            parts = [Binding(b.array, b.offset, b.length) for b in buffers]
            self.run(executable, name, (x, y, z), parts, constants)

        commands.append(run)

    def run(
        self,
        executable: Executable,
        name: str,
        workgroups: tuple[int, int, int],
        parts: Sequence[Binding],
        constants: Sequence[int],
    ) -> None:
        """Run one kernel on its buffers."""
        observer = self.observe(executable.kernels[name]) if self.observe else None
        program = executable.program(name, bool(observer and observer.every_instruction))
        stepped = launch(program, workgroups, parts, constants, observer=observer)
        self.dispatches.append(SimulatedDispatch(name, workgroups, stepped))

    def _named(
        self, scope: memoryview, table: memoryview, text: memoryview, ranges: memoryview
    ) -> list[tuple[Array, int, int, int]]:
        """Return (parameter, offset in it, offset in the buffer, length) of each range."""
        found = []
        for n, (offset, place, length) in enumerate(struct.iter_unpack("<QQQ", ranges)):
            start, size = struct.unpack_from("<II", table, 8 * n)
            name = bytes(text[start : start + size]).decode()
            if name not in self.parameters:
                raise RequestError(f"no parameter {name!r} in scope {bytes(scope).decode()!r}")
            found.append((self.parameters[name], offset, place, length))
        return found

    def _load_parameters(self, *a: Any) -> list[HalBuffer]:
        return [
            HalBuffer.over(data).part(offset, length)
            for data, offset, _, length in self._named(a[4], a[8], a[9], a[10])
        ]

    def _gather_parameters(self, *a: Any) -> None:
        for data, offset, place, length in self._named(a[4], a[6], a[7], a[8]):
            _copy(HalBuffer.over(data).part(offset, length), a[5].part(place, length))


def _query(_: HalDevice, category: memoryview, key: memoryview) -> tuple[int, int]:
    wanted = _ANSWERS.get(bytes(category).decode())
    if wanted is None:
        return 0, 0
    return 1, int(fnmatch.fnmatch(wanted, bytes(key).decode()))


def _fail(_: object, status: int) -> None:
    raise RequestError(f"the program failed with status {status}")


def _allocate(size: int) -> HalBuffer:
    """Allocate a buffer filled with UNDEFINED, a NaN that makes reads before writes visible."""
    if size < 0:
        raise SimulationError(f"the host program wants a buffer of {size} bytes")
    words = np.full((size + 3) // 4, UNDEFINED, np.uint32)
    return HalBuffer(words.view(np.uint8), 0, size)


def _constant(data: memoryview) -> HalBuffer:
    return HalBuffer.over(np.frombuffer(data, np.uint8))


def _slot(buffer: HalBuffer | None, slot: int, table: Sequence[HalBuffer]) -> HalBuffer:
    return table[slot] if buffer is None else buffer


def _submit(commands: list[Command] | None, table: tuple[tuple[HalBuffer, int, int], ...]) -> None:
    bound = [
        buffer if buffer is None else buffer.part(offset, length)
        for buffer, offset, length in table
    ]
    for command in commands or ():
        command(bound)


def _fill(target: HalBuffer, pattern: int, length: int) -> None:
    raw = (pattern & (1 << 8 * length) - 1).to_bytes(length, "little")
    target.bytes[:] = np.resize(np.frombuffer(raw, np.uint8), target.length)


def _copy(source: HalBuffer, target: HalBuffer) -> None:
    target.bytes[:] = source.bytes


def _record_fill(
    commands: list[Command],
    target: HalBuffer | None,
    offset: int,
    length: int,
    slot: int,
    pattern: int,
    pattern_length: int,
    _flags: int,
) -> None:
    commands.append(
        lambda table: _fill(
            _slot(target, slot, table).part(offset, length), pattern, pattern_length
        )
    )


def _record_copy(
    commands: list[Command],
    source_slot: int,
    target_slot: int,
    source: HalBuffer | None,
    source_offset: int,
    target: HalBuffer | None,
    target_offset: int,
    length: int,
    _flags: int,
) -> None:
    commands.append(
        lambda table: _copy(
            _slot(source, source_slot, table).part(source_offset, length),
            _slot(target, target_slot, table).part(target_offset, length),
        )
    )


def _record_update(
    commands: list[Command],
    source: memoryview,
    source_offset: int,
    target: HalBuffer | None,
    target_offset: int,
    length: int,
    slot: int,
    _flags: int,
) -> None:
    commands.append(
        lambda table: _copy(
            _constant(source).part(source_offset, length),
            _slot(target, slot, table).part(target_offset, length),
        )
    )


def _check_buffer(buffer: HalBuffer, message: memoryview, *rest: Any) -> None:
    if buffer.length < rest[1]:
        raise RequestError(
            f"{bytes(message).decode()}: a buffer of {buffer.length} bytes, wanted {rest[1]}"
        )


def _check_view(
    view: View, message: memoryview, element: int, _encoding: int, shape: tuple[int, ...]
) -> None:
    fits = len(view.shape) == len(shape) and all(
        want in (-1, got) for want, got in zip(shape, view.shape, strict=True)
    )
    if not fits or view.element != element:
        raise RequestError(
            f"{bytes(message).decode()}: shape {view.shape} of type {view.element:#x}, "
            f"wanted {shape} of type {element:#x}"
        )


def _load(buffer: HalBuffer, offset: int, length: int) -> int:
    raw = bytes(buffer.part(offset, length).bytes)
    return int.from_bytes(raw, "little", signed=True)


def _store(value: int, buffer: HalBuffer, offset: int, length: int) -> None:
    raw = (value & (1 << 8 * length) - 1).to_bytes(length, "little")
    buffer.part(offset, length).bytes[:] = np.frombuffer(raw, np.uint8)


def _executable(data: memoryview) -> Executable:
    objects, functions = read_executable(data)
    kernels = [read_kernels(code) for code in objects]
    chosen = {}
    for name, function in functions.items():
        if name not in kernels[function.code]:
            raise SimulationError(f"no kernel {name!r} in the code object of its executable")
        chosen[name] = replace(kernels[function.code][name], dynamic_lds=function.dynamic_lds)
    code = {name: objects[function.code] for name, function in functions.items()}
    return Executable(chosen, code, list(functions))


def _find(executable: Executable, name: memoryview) -> int:
    wanted = bytes(name).decode()
    if wanted not in executable.names:
        raise SimulationError(f"no kernel {wanted!r} in the executable")
    return executable.names.index(wanted)
