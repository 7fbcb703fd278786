"""Checks a report against the compiled module: kernels and dispatches, as read from its bytes.

The report is written from the program and from the assembly of its kernels. This module reads the
compiled module instead: it decodes kernels from machine code, takes registers and memory from the
metadata that the loader uses, and runs the host program with functions that record dispatches and
their buffers and compute nothing. `disagreements` are the differences from the report.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mxc.artifact.code_objects.metadata import read_resources
from mxc.artifact.manifest import Function
from mxc.compiler.report import Report
from mxc.compiler.report.assembly import KernelCode as Reported
from mxc.runtime.arrays import DTYPES
from mxc.simulator.code.code_object import read_kernels
from mxc.simulator.code.decode import decode
from mxc.simulator.host.hal import HalBuffer, HalDevice, View
from mxc.simulator.host.vm import Machine
from mxc.simulator.host.vm_module import read_executable, read_module
from mxc.targets.target import Target

#: Suffixes that name an encoding, not another instruction; and padding, which assembly text may
#: have as a directive.
_SUFFIX = re.compile(r"_(e32|e64|e64_dpp|dpp|sdwa)$")
_PADDING = ("s_nop", "s_code_end")
#: Instructions whose counts must be equal: multiplications, conversions of blocks, accesses to LDS
#: and memory, and barriers. The assembly is what LLVM makes of a copy of the module, in which the
#: uses of values have another order: counts of other instructions may differ, in all by this share.
_EXACT = re.compile(r"v_(s?mfma|dot|cvt_scale)|ds_|buffer_|global_|flat_|scratch_|s_barrier")
_SHARE = 0.02
#: Numbers of rows with which a program with dynamic rows is called: few, some and many, as each has
#: a kernel of its own.
ROWS = (1, 64, 4096)
#: Groups of a call, if groups and rows of a group are both dynamic.
_GROUPS = 3
#: Bytes of the buffer of a parameter: address space that is never touched.
_PARAMETER = 1 << 34


@dataclass(frozen=True)
class CodeKernel:
    """A kernel of a code object: bytes of LDS and scratch, registers, spilled registers, and how
    often each instruction occurs in its code."""

    lds_bytes: int
    scratch_bytes: int
    vgpr: int
    spills: int
    instructions: Counter[str]


@dataclass(frozen=True)
class Call:
    """A dispatch of the host program: its kernel, and the bytes of its buffers. Bytes in two of its
    bindings count once."""

    kernel: str
    bytes: int


@dataclass
class Module:
    """What was found in a module: its kernels, and the dispatches of loading it and of one call.

    A call with static sizes is recorded as a command buffer when the module is loaded.
    """

    kernels: dict[str, CodeKernel] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)


def read(file: Path, function: Function, name: str, rows: int = 1) -> Module:
    """Read the module in `file`, and call `name` once.

    Dynamic sizes are `rows`. If an input has two of them, the first one of each input is `_GROUPS`.
    """
    found = Module()
    machine = Machine(read_module(file), _Recorder(found).functions())
    grouped = any(
        sum(size is None or size < 0 for size in kind.shape) > 1 for kind in function.inputs
    )
    arguments = []
    for kind in function.inputs:
        given = iter([_GROUPS, rows] if grouped else [rows])
        shape = tuple(next(given) if size is None or size < 0 else size for size in kind.shape)
        arguments.append(_argument(shape, kind.dtype))
    machine.call(name, *arguments)
    return found


def _argument(shape: tuple[int, ...], dtype: str) -> View:
    size = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
    return View(_untouched(size), shape, 0, 1)


def _untouched(size: int) -> HalBuffer:
    """Return a buffer that nothing reads or writes, so the system never commits its memory."""
    return HalBuffer(np.empty(max(size, 1), np.uint8), 0, size)


def _parameters(*arguments: Any) -> list[HalBuffer]:
    """Return a buffer for each parameter that io_parameters.load asks for."""
    return [_untouched(_PARAMETER) for _ in range(len(arguments[8]) // 8)]


class _Recorder(HalDevice):
    """A device that records kernels and dispatches in `found`, and computes nothing."""

    def __init__(self, found: Module) -> None:
        super().__init__()
        self.found = found

    def functions(self) -> dict[str, Any]:
        nothing = dict.fromkeys(
            (
                "hal.buffer_view.assert", "hal.command_buffer.fill_buffer",
                "hal.command_buffer.copy_buffer", "hal.command_buffer.update_buffer",
                "hal.device.queue.fill", "hal.device.queue.copy", "hal.device.queue.read",
                "hal.device.queue.update", "io_parameters.gather",
            ),
            lambda *_: None,
        )  # fmt: skip
        return super().functions() | nothing | {
            "hal.allocator.allocate": lambda *a: _untouched(a[4]),
            "hal.device.queue.alloca": lambda *a: _untouched(a[7]),
            "hal.executable.create": lambda _d, _a, _f, data, _c: self._executable(data),
            "hal.executable.lookup.function": lambda names, name: names.index(bytes(name).decode()),
            "hal.command_buffer.dispatch": self._note,
            "io_parameters.load": _parameters,
        }  # fmt: skip

    def _executable(self, data: memoryview) -> list[str]:
        objects, functions = read_executable(data)
        for code in objects:
            self.found.kernels |= _kernels(code)
        return list(functions)

    def _note(self, _commands: Any, names: Sequence[str], function: int, *rest: Any) -> None:
        """Record a dispatch with the bytes of its buffers."""
        parts: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for _, slot, buffer, offset, length in rest[-1]:
            parts.setdefault((slot, id(buffer)), []).append((offset, offset + length))
        self.found.calls.append(Call(names[function], sum(map(_covered, parts.values()))))


def _covered(ranges: list[tuple[int, int]]) -> int:
    """Return how many bytes are in at least one of the ranges."""
    total, done = 0, 0
    for first, end in sorted(ranges):
        total += max(0, end - max(first, done))
        done = max(done, end)
    return total


def _kernels(code: bytes) -> dict[str, CodeKernel]:
    """Return the kernels of a code object by name."""
    stated = read_resources(code)
    known = read_kernels(code)
    entries = sorted(kernel.descriptor.entry for kernel in known.values())
    found = {}
    for name, kernel in known.items():
        number = entries.index(kernel.descriptor.entry) + 1
        end = kernel.address + len(kernel.code)
        stop = entries[number] if number < len(entries) else end
        found[name] = CodeKernel(
            lds_bytes=kernel.descriptor.lds_bytes,
            scratch_bytes=kernel.descriptor.scratch_bytes,
            vgpr=stated[name].vgpr,
            spills=stated[name].spills,
            instructions=_decoded(kernel.code, kernel.descriptor.entry, stop, kernel.address),
        )
    return found


def _decoded(code: bytes, entry: int, stop: int, base: int) -> Counter[str]:
    """Count the instructions from `entry` to `stop`, without padding. base: address of `code`."""
    found: Counter[str] = Counter()
    at = entry
    while at < stop:
        one = decode(code, at - base, at)
        at += one.size
        found[_plain(one.name)] += 1
    return Counter({name: count for name, count in found.items() if name not in _PADDING})


def _plain(name: str) -> str:
    return _SUFFIX.sub("", name)


def disagreements(
    report: Report, modules: Sequence[Module], target: Target, *, alone: bool, gathers: bool
) -> list[str]:
    """Return the differences of a report from its module, which was called with different rows.

    alone: whether the program is one contraction with its epilogue, and nothing else. gathers:
    whether kernels read only parts of their buffers, so that bytes cannot be compared.
    """
    kernels = {name: each for module in modules for name, each in module.kernels.items()}
    found = []
    stated = {kernel.name: kernel for kernel in report.kernels}
    for name in sorted(kernels.keys() ^ stated.keys()):
        found.append(f"@{name} is only in the {'module' if name in kernels else 'report'}")
    for name in kernels.keys() & stated.keys():
        found += [f"@{name}: {text}" for text in _kernel(stated[name], kernels[name])]
    found += _products(report, kernels, target)
    for module in modules:
        found += _calls(report, module, alone, gathers)
    return list(dict.fromkeys(found))


def _kernel(stated: Reported, real: CodeKernel) -> list[str]:
    """Return the differences of a kernel in the report from the kernel in the code object."""
    counts: Counter[str] = Counter()
    for name, count in stated.instructions.items():
        counts[_plain(name)] += count
    counts = Counter({name: count for name, count in counts.items() if name not in _PADDING})
    pairs = [
        ("bytes of LDS", stated.lds_bytes, real.lds_bytes),
        ("bytes of scratch", stated.scratch_bytes, real.scratch_bytes),
        ("registers", stated.vgpr, real.vgpr),
        ("spilled registers", stated.spills, real.spills),
        *((name, counts[name], real.instructions[name])
          for name in sorted(counts.keys() | real.instructions.keys()) if _EXACT.match(name)),
    ]  # fmt: skip
    found = [f"{what}: {said} in the report, {is_} in the code"
             for what, said, is_ in pairs if said != is_]  # fmt: skip
    others = sum(
        abs(counts[name] - real.instructions[name])
        for name in counts.keys() | real.instructions.keys() if not _EXACT.match(name)
    )  # fmt: skip
    if others > max(2, _SHARE * real.instructions.total()):
        found.append(f"{others} other instructions of {real.instructions.total()} differ")
    scratch = sum(count for name, count in real.instructions.items() if name.startswith("scratch_"))
    if scratch and not (stated.spills or stated.scratch_bytes):
        found.append(f"{scratch} accesses of scratch, none in the report")
    return found


def _products(report: Report, kernels: Mapping[str, CodeKernel], target: Target) -> list[str]:
    """Check that the report has each kernel with a matrix instruction as that of a contraction, and
    that the kernel of each contraction has the instructions in the report."""
    found = []
    named = {operation.kernel for operation in report.operations}
    products = {matmul.kernel for matmul in report.matmuls}
    entries = {kernel.name: kernel.entry for kernel in report.kernels}
    for name, kernel in kernels.items():
        matrix = [
            each for each in kernel.instructions
            if (m := target.multiplier(each)) is not None and "matrix" in m.kind
        ]  # fmt: skip
        base = entries.get(name, name)
        if matrix and base not in products:
            found.append(f"@{name} has {matrix[0]}, and no contraction of the report is in it")
        if base not in named:
            found.append(f"@{name} is no operation of the report")
    for matmul in report.matmuls:
        own = [each for name, each in kernels.items() if entries.get(name, name) == matmul.kernel]
        if not own:
            found.append(f"{matmul.name}: its kernel @{matmul.kernel} is not in the module")
        for part in matmul.lowering.replace(",", " +").split(" + "):
            if part in ("not found", "no multiplication"):
                continue
            if not any(_plain(part) in each.instructions for each in own):
                found.append(f"{matmul.name}: no {part} in @{matmul.kernel}")
    return found


def _calls(report: Report, module: Module, alone: bool, gathers: bool) -> list[str]:
    """Return the differences in the number of dispatches and in the bytes that they move."""
    found = []
    count = len(module.calls)
    if count != report.dispatches:
        found.append(f"{report.dispatches} dispatches in the report, {count} in the host program")
    kernels = sum(matmul.kernels for matmul in report.matmuls)
    if alone and kernels != count:
        found.append(f"{kernels} kernels of the contraction, {count} dispatches")
    moved = [operation.bytes_moved for operation in report.operations]
    known = [size for size in moved if size is not None]
    total = sum(call.bytes for call in module.calls)
    if len(known) == len(moved) and not gathers and not _fits(sum(known), module):
        found.append(f"{sum(known)} bytes moved in the report, buffers of {total}")
    return found


def _fits(said: int, module: Module) -> bool:
    """Whether the report's bytes, `said`, fit those of the buffers, which are padded to whole tiles
    and words.

    With several kernels there is no lower bound: values that lie side by side are one buffer, which
    counts as a whole for each kernel.
    """
    real = sum(call.bytes for call in module.calls)
    return said <= real * 1.02 + 64 and (len(module.calls) > 1 or said >= real * 0.98 - 64)
