"""The functions of HIP's library that `hip.py` calls, implemented on the simulator.

They let verification run without a GPU. Times are those of the simulator.
"""

from __future__ import annotations

import ctypes
import struct
import time
from dataclasses import replace
from typing import Any

import numpy as np

from mxc.runtime.verification.hip import ARCHITECTURE
from mxc.simulator.code.code_object import CodeObjectKernel, read_kernels
from mxc.simulator.compute.operations import Array
from mxc.simulator.run.launch import Binding, launch
from mxc.simulator.run.translate import TranslatedKernel

_OUT_OF_RANGE, _NOT_FOUND = 1, 500


class SimulatedHip:
    """One simulated device; `architecture`: its LLVM processor name."""

    def __init__(self, architecture: str) -> None:
        """Create a device without memory and modules."""
        self._architecture = architecture
        self._memory: dict[int, Array] = {}
        self._handles: list[Any] = []
        self._events: dict[int, float] = {}

    def hipGetDeviceCount(self, count: Any) -> int:
        """Report one device."""
        count._obj.value = 1
        return 0

    def hipGetDevicePropertiesR0600(self, properties: Any, _index: Any) -> int:
        """Fill in name and architecture; the rest is zero."""
        for at, text in ((0, "simulator"), (ARCHITECTURE, self._architecture)):
            properties[at : at + len(text)] = text.encode()
        return 0

    def hipDriverGetVersion(self, number: Any) -> int:
        """Leave the version 0: there is no driver."""
        return 0

    def hipRuntimeGetVersion(self, number: Any) -> int:
        """Leave the version 0: there is no runtime."""
        return 0

    def hipSetDevice(self, _index: Any) -> int:
        """Do nothing: there is one device."""
        return 0

    def hipDeviceSynchronize(self) -> int:
        """Do nothing: all calls are synchronous."""
        return 0

    def hipMalloc(self, pointer: Any, size: Any) -> int:
        """Allocate memory of this process."""
        data = np.zeros((size.value + 7) // 4 * 4, np.uint8)
        self._memory[data.ctypes.data] = data
        pointer._obj.value = data.ctypes.data
        return 0

    def hipFree(self, pointer: Any) -> int:
        """Free memory of hipMalloc."""
        return 0 if self._memory.pop(pointer.value, None) is not None else _OUT_OF_RANGE

    def hipMemset(self, _pointer: Any, _value: Any, _size: Any) -> int:
        """Do nothing: it is only called to overwrite caches, and there are none."""
        return 0

    def hipMemcpy(self, to: Any, source: Any, size: Any, _kind: Any) -> int:
        """Copy bytes; all memory is in this process."""
        ctypes.memmove(to, source, size.value)
        return 0

    def hipModuleLoadData(self, module: Any, code: Any) -> int:
        """Read the code object at an address; its ELF header gives its size."""
        address = ctypes.cast(code, ctypes.c_void_p).value or 0
        table, *_, entry, count, _ = struct.unpack_from("<40xQIHHHHHH", _bytes(address, 64))
        size = table + entry * count
        module._obj.value = self._handle(read_kernels(_bytes(address, size)))
        return 0

    def hipModuleGetFunction(self, function: Any, module: Any, name: Any) -> int:
        """Find a kernel of a module by name."""
        kernels: dict[str, CodeObjectKernel] = self._handles[module.value - 1]
        kernel = kernels.get(name.value.decode())
        if kernel is None:
            return _NOT_FOUND
        function._obj.value = self._handle(TranslatedKernel(kernel))
        return 0

    def hipModuleLaunchKernel(self, function: Any, *given: Any) -> int:
        """Run a kernel to its end."""
        program: TranslatedKernel = self._handles[function.value - 1]
        kernel = program.kernel
        x, y, z, bx, by, bz, lds = (size.value for size in given[:7])
        parameters = given[8]
        bindings, constants = [], []
        shown = [a for a in kernel.arguments if not a.kind.startswith("hidden")]
        for argument, place in zip(shown, parameters, strict=True):
            raw = ctypes.string_at(place, argument.size)
            if argument.kind == "global_buffer":
                bindings.append(self._binding(int.from_bytes(raw, "little")))
            else:
                constants += np.frombuffer(raw, np.uint32).tolist()
        if (bx, by, bz) != kernel.workgroup or 0 in (x, y, z):
            return _OUT_OF_RANGE
        if lds != kernel.dynamic_lds:
            program = TranslatedKernel(replace(kernel, dynamic_lds=lds))
        launch(program, (x, y, z), bindings, constants)
        return 0

    def hipEventCreate(self, event: Any) -> int:
        """Create an event."""
        event._obj.value = self._handle(None)
        return 0

    def hipEventRecord(self, event: Any, _stream: Any) -> int:
        """Record the current time."""
        self._events[event.value] = time.perf_counter()
        return 0

    def hipEventSynchronize(self, _event: Any) -> int:
        """Do nothing: events are recorded at once."""
        return 0

    def hipEventDestroy(self, event: Any) -> int:
        """Remove an event."""
        self._events.pop(event.value, None)
        return 0

    def hipEventElapsedTime(self, milliseconds: Any, first: Any, last: Any) -> int:
        """Return the wall time between two events, which is that of the simulator."""
        passed = self._events[last.value] - self._events[first.value]
        milliseconds._obj.value = 1e3 * passed
        return 0

    def _handle(self, thing: Any) -> int:
        self._handles.append(thing)
        return len(self._handles)

    def _binding(self, address: int) -> Binding:
        for start, data in self._memory.items():
            if start <= address < start + data.size:
                return Binding(data, address - start)
        raise ValueError(f"a kernel was given the address 0x{address:x}, which is no memory")


def _bytes(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)
