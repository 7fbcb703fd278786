"""An AMD GPU through HIP's C interface: memory, kernels of a code object, times.

IREE's driver runs whole programs; verification needs single kernels, with the buffers of one
dispatch before and after it. Source: AMD, HIP Runtime API Reference 6 and 7, hip_runtime_api.h.
`library` is libamdhip64.so or an object with the same functions, such as SimulatedHip.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxc.errors import RequestError
from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.compute.operations import Array

#: Names of the library: in ROCm's development packages, ROCm 7 and ROCm 6.
LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")
#: The remedy in messages where there is no GPU.
CURE = (
    "run this on a machine with an AMD GPU and ROCm 6 or later, or give --simulator, which runs "
    "the same without one"
)
_NO_DEVICE = 100
_TO_DEVICE, _TO_HOST = 1, 2
#: hipDeviceProp_tR0600: its size, the offset of gcnArchName, and the size of its names.
PROPERTIES, ARCHITECTURE, _NAME = 1472, 1160, 256
#: Bytes that are written before a cold run: more than the last-level cache (256 MiB on MI300).
_FLUSHED = 512 << 20


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of one run of a kernel.

    `seconds`: the median of several runs with cold caches. `warm`: the average of consecutive runs,
    the least of several such series.
    """

    seconds: float
    warm: float


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A GPU of this machine: its index, product name, and LLVM processor name with features."""

    index: int
    name: str
    architecture: str


def open_library() -> Any:
    """Open HIP's library. Raises RequestError where it is not installed."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise RequestError(
        f"no AMD GPU here: HIP's library ({LIBRARIES[0]}) was not found; where ROCm is installed "
        f"add its lib folder to LD_LIBRARY_PATH, else {CURE}"
    )


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One run of a kernel of the code object `code`.

    `addresses`: addresses of its buffers. `constants`: its 32-bit arguments. Both are in order.
    """

    code: bytes
    kernel: CodeObjectKernel
    workgroups: tuple[int, int, int]
    addresses: Sequence[int]
    constants: Sequence[int]


class Hip:
    """One GPU. A HIP call that fails raises RequestError with HIP's error number."""

    def __init__(self, library: Any) -> None:
        """Start HIP and list its devices. Raises RequestError where there is none."""
        self._library = library
        count = ctypes.c_int(0)
        status = library.hipGetDeviceCount(ctypes.byref(count))
        if status == _NO_DEVICE or (not status and not count.value):
            raise RequestError(f"no AMD GPU here: HIP finds no device; {CURE}")
        self._check("hipGetDeviceCount", status)
        self._modules: dict[bytes, ctypes.c_void_p] = {}
        self._functions: dict[tuple[bytes, str], ctypes.c_void_p] = {}
        self._flush: ctypes.c_void_p | None = None
        self.chips = [self._chip(index) for index in range(count.value)]

    @property
    def versions(self) -> dict[str, int]:
        """The version numbers of driver and runtime."""
        found = {}
        for name in ("Driver", "Runtime"):
            number = ctypes.c_int(0)
            self._call(f"hip{name}GetVersion", ctypes.byref(number))
            found[name.lower()] = number.value
        return found

    def use(self, chip: Chip) -> None:
        """Select the GPU for all further calls."""
        self._call("hipSetDevice", ctypes.c_int(chip.index))

    @contextmanager
    def memory(self, data: Sequence[Array]) -> Iterator[list[int]]:
        """Copy byte arrays to the GPU; yield their addresses, which are freed with the context."""
        held: list[ctypes.c_void_p] = []
        try:
            for each in data:
                pointer = ctypes.c_void_p()
                size = ctypes.c_size_t(max(1, each.nbytes))
                self._call("hipMalloc", ctypes.byref(pointer), size)
                held.append(pointer)
                if each.nbytes:
                    self._copy(pointer, ctypes.c_void_p(each.ctypes.data), each, _TO_DEVICE)
            yield [pointer.value or 0 for pointer in held]
        finally:
            for pointer in held:
                self._call("hipFree", pointer)

    def read(self, address: int, like: Array) -> Array:
        """Return the bytes at an address, as many as `like` has."""
        found = np.empty_like(like)
        if found.nbytes:
            self._copy(
                ctypes.c_void_p(found.ctypes.data), ctypes.c_void_p(address), found, _TO_HOST
            )
        return found

    def launch(self, launch: Launch) -> None:
        """Run a kernel and wait for its end."""
        self._start(launch)
        self._call("hipDeviceSynchronize")

    def measure(self, launch: Launch, *, repetitions: int) -> Times:
        """Time a kernel; its results are overwritten by every run."""
        cold = []
        for _ in range(repetitions):
            self._overwrite_caches()
            cold.append(self._timed(launch, 1))
        warm = [self._timed(launch, repetitions) / repetitions for _ in range(3)]
        return Times(seconds=float(np.median(cold)), warm=min(warm))

    def _timed(self, launch: Launch, runs: int) -> float:
        """Return the seconds of `runs` runs, between two events of the GPU."""
        first, last = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (first, last):
            self._call("hipEventCreate", ctypes.byref(event))
        try:
            self._call("hipEventRecord", first, None)
            for _ in range(runs):
                self._start(launch)
            self._call("hipEventRecord", last, None)
            self._call("hipEventSynchronize", last)
            milliseconds = ctypes.c_float()
            self._call("hipEventElapsedTime", ctypes.byref(milliseconds), first, last)
        finally:
            for event in (first, last):
                self._call("hipEventDestroy", event)
        return milliseconds.value / 1e3

    def _overwrite_caches(self) -> None:
        if self._flush is None:
            self._flush = ctypes.c_void_p()
            self._call("hipMalloc", ctypes.byref(self._flush), ctypes.c_size_t(_FLUSHED))
        self._call("hipMemset", self._flush, ctypes.c_int(0), ctypes.c_size_t(_FLUSHED))
        self._call("hipDeviceSynchronize")

    def _start(self, launch: Launch) -> None:
        kernel = launch.kernel
        values = _values(kernel, launch.addresses, launch.constants)
        places = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        parameters = (ctypes.c_void_p * len(places))(*places)
        sizes = (*launch.workgroups, *kernel.workgroup, kernel.dynamic_lds)
        self._call(
            "hipModuleLaunchKernel",
            self._function(launch.code, kernel.name),
            *(ctypes.c_uint(size) for size in sizes),
            None,
            parameters,
            None,
        )

    def _function(self, code: bytes, name: str) -> ctypes.c_void_p:
        if (code, name) not in self._functions:
            function = ctypes.c_void_p()
            named = ctypes.c_char_p(name.encode())
            module = self._module(code)
            self._call("hipModuleGetFunction", ctypes.byref(function), module, named)
            self._functions[code, name] = function
        return self._functions[code, name]

    def _module(self, code: bytes) -> ctypes.c_void_p:
        if code not in self._modules:
            module = ctypes.c_void_p()
            self._call("hipModuleLoadData", ctypes.byref(module), ctypes.c_char_p(code))
            self._modules[code] = module
        return self._modules[code]

    def _chip(self, index: int) -> Chip:
        properties = ctypes.create_string_buffer(PROPERTIES)
        self._call("hipGetDevicePropertiesR0600", properties, ctypes.c_int(index))
        raw = properties.raw
        return Chip(
            index=index,
            name=_text(raw[:_NAME]),
            architecture=_text(raw[ARCHITECTURE : ARCHITECTURE + _NAME]),
        )

    def _copy(self, to: ctypes.c_void_p, source: ctypes.c_void_p, data: Array, kind: int) -> None:
        self._call("hipMemcpy", to, source, ctypes.c_size_t(data.nbytes), ctypes.c_int(kind))

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            raise RequestError(
                f"HIP failed: {name} gave error {status}; see AMD's list of hipError_t, and "
                "whether rocminfo lists the GPU"
            )


def _values(
    kernel: CodeObjectKernel, addresses: Sequence[int], constants: Sequence[int]
) -> list[ctypes.c_uint64 | ctypes.c_uint32]:
    """Return a kernel's explicit arguments; HIP supplies the hidden ones."""
    pointers, words = iter(addresses), iter(constants)
    found: list[ctypes.c_uint64 | ctypes.c_uint32] = []
    for argument in kernel.arguments:
        if argument.kind == "global_buffer":
            found.append(ctypes.c_uint64(next(pointers)))
        elif argument.kind == "by_value" and argument.size == 8:
            found.append(ctypes.c_uint64(next(words) & 0xFFFFFFFF | next(words) << 32))
        elif argument.kind == "by_value":
            found.append(ctypes.c_uint32(next(words) & 0xFFFFFFFF))
    return found


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")
