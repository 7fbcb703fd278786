"""Helpers shared by all memory instructions: access sizes, loads, stores, atomics.

Source: AMD CDNA4 instruction set architecture, chapters 8 to 11.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.compute.operations import Array
from mxc.simulator.compute.signatures import memory_widths
from mxc.simulator.memory.atomics import Atomic, keeps_denormals, perform
from mxc.simulator.run.state import Waves

Step = Callable[[Waves], None]
#: A reader of an operand as uint32.
Reader = Callable[[Operand], Callable[[Waves], Array]]

#: Bytes in memory and sign extension, by the end of the instruction's name.
_NARROW = {
    "ubyte": (1, False),
    "sbyte": (1, True),
    "ushort": (2, False),
    "sshort": (2, True),
    "byte": (1, False),
    "short": (2, False),
    "u8": (1, False),
    "i8": (1, True),
    "u16": (2, False),
    "i16": (2, True),
    "b8": (1, False),
    "b16": (2, False),
}


def size_of(i: Instruction) -> tuple[int, bool, bool] | None:
    """Return the bytes per lane, sign extension, and use of a register's upper half; else None."""
    last = i.name.replace("_d16_hi", "").replace("_d16", "").rsplit("_", 1)[-1]
    high = i.name.endswith("_d16_hi")
    if last in _NARROW:
        size, signed = _NARROW[last]
        return size, signed, high
    if "dword" in last or last in ("b32", "b64", "b96", "b128"):
        return 4 * max(memory_widths(i.name)), False, False
    return None


def dwords_to_lds(name: str) -> int:
    """Return the dwords per lane that a load to LDS moves; 0 for loads of less than one."""
    tail = name.rsplit("dword", 1)
    return int(tail[1].removeprefix("x") or 1) if len(tail) == 2 else 0


def _extended(value: Array, size: int, signed: bool) -> Array:
    if not signed:
        return value
    shift = 32 - 8 * size
    return (value.view(np.int32) << shift >> shift).view(np.uint32)


def put_loaded(
    w: Waves, i: Instruction, values: Array, size: int, signed: bool, high: bool
) -> None:
    """Write loaded values to registers; a narrow value fills a register, or one half (d16)."""
    target = i.results[0]
    if size >= 4:
        w.put_group(target.bank, target.index, values)
        return
    registers = w.bank(target.bank)
    old = registers[target.index]
    value = _extended(values[..., 0], size, signed)
    if "d16" in i.name:
        value = value & 0xFFFF
        value = (old & 0xFFFF | value << 16) if high else (old & 0xFFFF0000 | value)
    registers[target.index] = w.put(old, value)


def stored_data(w: Waves, operand: Operand, size: int, high: bool) -> Array:
    """Return the data of a store: uint32 [waves, 64, registers]."""
    registers = w.bank(operand.bank)
    if size >= 4:
        return w.group(operand.bank, operand.index, size // 4)
    value = w.wide(registers[operand.index])
    return (value >> 16 if high else value)[..., None]


def gather(w: Waves, address: Array, lanes: Array | None, size: int) -> Array:
    """Load from virtual addresses: uint32 [waves, 64, registers]; 0 in inactive lanes."""
    if w.observer is not None:
        w.observer.load(w, address, lanes, size)
    if lanes is None:
        return w.memory.load(w.wide(address), size)
    result = np.zeros((*w.shape, max(1, size // 4)), np.uint32)
    if lanes.any():
        result[lanes] = w.memory.load(w.wide(address)[lanes], size)
    return result


def scatter(w: Waves, address: Array, lanes: Array | None, values: Array, size: int) -> None:
    """Store to virtual addresses."""
    if w.observer is not None:
        w.observer.store(w, address, lanes, values, size)
    if lanes is None:
        w.memory.store(w.wide(address), values, size)
    elif lanes.any():
        w.memory.store(w.wide(address)[lanes], values[lanes], size)


def change(
    w: Waves, i: Instruction, atomic: Atomic, data: Operand, address: Array, lanes: Array
) -> None:
    """Do an atomic operation on memory for some lanes; the old values go to the result, if any."""
    if w.observer is not None:
        size = 4 * atomic.dwords
        if i.results:
            w.observer.vector(w, i, address, lanes, size, False)
        w.observer.vector(w, i, address, lanes, size, True)
        w.observer.change(w, address, lanes, size)
    if not lanes.any():
        return
    raw = stored_data(w, data, 4 * data.count, False)[lanes]
    # The new value comes first, then the value to compare with.
    parts = [raw[:, : atomic.dwords]]
    if atomic.operands == 2:
        parts = [raw[:, atomic.dwords :], raw[:, : atomic.dwords]]
    keep = keeps_denormals(atomic, None)
    found = perform(atomic, w.wide(address)[lanes], parts, w.memory.load, w.memory.store, keep=keep)
    if i.results:
        values = np.zeros((*w.shape, atomic.dwords), np.uint32)
        values[lanes] = found
        w.put_group(i.results[0].bank, i.results[0].index, values)
