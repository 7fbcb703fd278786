"""Instructions that read and write memory: scalar loads, buffers, global, scratch, LDS.

Source: AMD CDNA4 instruction set architecture, chapters on scalar and vector memory and on LDS.
Buffer resources are raw: a dword of which a byte lies at or beyond `num_records` reads as 0 and
is not written. LDS beyond the workgroup's allocation reads as 0 and is not written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.runtime.simulator.errors import SimulationError
from mxc.runtime.simulator.instruction import M0, Instruction, Operand
from mxc.runtime.simulator.operations import Array, i64, u64
from mxc.runtime.simulator.signatures import memory_widths
from mxc.runtime.simulator.state import Waves, join

Step = Callable[[Waves], None]
#: A reader of an operand as uint32.
Reader = Callable[[Operand], Callable[[Waves], Array]]

_LANE = np.arange(64, dtype=np.int64)[None]
#: Bytes in memory and whether the value is sign-extended, by the end of the name.
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


def memory_step(i: Instruction, read: Reader) -> Step | None:
    """What a memory instruction does; None where it is not modelled."""
    if i.encoding == "SMEM":
        return _scalar_load(i, read) if "load_dword" in i.name else None
    if "atomic" in i.name or i.has("gds"):
        return None
    if i.encoding == "MUBUF":
        return _buffer(i, read)
    if i.encoding == "FLAT":
        return _flat(i, read)
    return _local(i, read)


def _scalar_load(i: Instruction, read: Reader) -> Step | None:
    if "buffer" in i.name or "scratch" in i.name:
        return None
    target, count = i.results[0].index, i.results[0].count
    base, register = i.operands[0].index, i.operands[1]
    offset = np.int64(i.has("offset"))
    more = read(register) if register.is_register else None

    def step(w: Waves) -> None:
        address = join(w.s[base], w.s[base + 1]).view(np.int64) + offset
        if more is not None:
            address = address + i64(more(w))
        # The low two bits of a scalar address do not count.
        address = address & ~np.int64(3)
        if w.active is not None and len(address) > 1:
            address = np.where(w.active, address, address[w.active.argmax()])
        values = w.memory.load(address, 4 * count)
        if w.observer is not None:
            w.observer.scalar(w, i, address, 4 * count)
        for n in range(count):
            w.s[target + n] = w.put_scalar(w.s[target + n], values[..., n])

    return step


def _size(i: Instruction) -> tuple[int, bool, bool] | None:
    """Bytes for each lane, sign extension, and whether the upper half of a register is meant."""
    last = i.name.replace("_d16_hi", "").replace("_d16", "").rsplit("_", 1)[-1]
    high = i.name.endswith("_d16_hi")
    if last in _NARROW:
        size, signed = _NARROW[last]
        return size, signed, high
    if "dword" in last or last in ("b32", "b64", "b96", "b128"):
        return 4 * max(memory_widths(i.name)), False, False
    return None


def _extended(value: Array, size: int, signed: bool) -> Array:
    if not signed:
        return value
    shift = 32 - 8 * size
    return (value.view(np.int32) << shift >> shift).view(np.uint32)


def _put(w: Waves, i: Instruction, values: Array, size: int, signed: bool, high: bool) -> None:
    """Write what was loaded; narrow values alone or into one half."""
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


def _data(w: Waves, operand: Operand, size: int, high: bool) -> Array:
    """What a store writes: uint32 [waves, 64, registers]."""
    registers = w.bank(operand.bank)
    if size >= 4:
        return w.group(operand.bank, operand.index, size // 4)
    value = w.wide(registers[operand.index])
    return (value >> 16 if high else value)[..., None]


def _some(w: Waves, address: Array, allowed: Array | None) -> Array | None:
    """The lanes that access memory, or None for all."""
    if allowed is None:
        return None if w.every else w.lanes
    if allowed.all():
        return None if w.every else w.lanes
    return np.asarray(np.broadcast_to(allowed, w.shape) & w.lanes)


def _gather(w: Waves, address: Array, lanes: Array | None, size: int) -> Array:
    """Load from virtual addresses; 0 in lanes that do not."""
    if lanes is None:
        return w.memory.load(w.wide(address), size)
    result = np.zeros((*w.shape, max(1, size // 4)), np.uint32)
    if lanes.any():
        result[lanes] = w.memory.load(w.wide(address)[lanes], size)
    return result


def _scatter(w: Waves, address: Array, lanes: Array | None, values: Array, size: int) -> None:
    if lanes is None:
        w.memory.store(w.wide(address), values, size)
    elif lanes.any():
        w.memory.store(w.wide(address)[lanes], values[lanes], size)


def _buffer(i: Instruction, read: Reader) -> Step | None:
    sized = _size(i)
    if sized is None or i.has("idxen") or "format" in i.name:
        return None
    size, signed, high = sized
    to_lds = bool(i.has("lds"))
    stores = "_store_" in i.name
    vector, resource, scalar = i.operands[-3], i.operands[-2].index, read(i.operands[-1])
    lane_offset = read(vector) if i.has("offen") else None
    immediate = np.uint32(i.has("offset"))
    if to_lds:
        size = 4 * _dwords(i.name)
    data = i.operands[0]

    def step(w: Waves) -> None:
        s = w.s
        base = i64(s[resource]) | i64(s[resource + 1] & 0xFFFF) << 32
        swizzled = s[resource + 1] >> 31 != 0
        if (swizzled if w.active is None else swizzled & w.active).any():
            raise SimulationError("a swizzled buffer resource is not modelled")
        start = lane_offset(w) + immediate if lane_offset else np.full((1, 1), immediate)
        offset = i64(start) + i64(scalar(w))
        limit = i64(s[resource + 2])
        address = base + offset
        inside = offset + min(size, 4) <= limit
        lanes = _some(w, address, inside)
        if w.observer is not None:
            w.observer.vector(w, i, address, lanes, size, stores)
        last = offset + size <= limit
        partial = size > 4 and bool((inside & ~last).any())
        if to_lds:
            _into_lds(w, i, _gather(w, address, lanes, size), size)
        elif stores:
            values = _data(w, data, size, high)
            if not partial:
                _scatter(w, address, lanes, values, size)
                return
            for n in range(size // 4):
                here = _some(w, address, offset + 4 * n + 4 <= limit)
                _scatter(w, address + 4 * n, here, values[..., n : n + 1], 4)
        else:
            if partial:
                parts = [
                    _gather(w, address + 4 * n, _some(w, address, offset + 4 * n + 4 <= limit), 4)
                    for n in range(size // 4)
                ]
                values = np.concatenate(parts, axis=-1)
            else:
                values = _gather(w, address, lanes, size)
            _put(w, i, values, size, signed, high)

    return step


def _dwords(name: str) -> int:
    tail = name.rsplit("dword", 1)
    return int(tail[1].removeprefix("x") or 1) if len(tail) == 2 else 1


def _into_lds(w: Waves, i: Instruction, values: Array, size: int) -> None:
    """A load whose result goes to LDS: lane after lane from M0 on."""
    place = i64(w.s[M0] & 0xFFFF) + i.has("offset") + _LANE * size
    _local_store(w, i, w.wide(place), values, size)


def _flat(i: Instruction, read: Reader) -> Step | None:
    sized = _size(i)
    if i.name.startswith("scratch_"):
        return _scratch(i, read, sized)
    to_lds = "_load_lds_" in i.name
    if sized is None and not to_lds:
        return None
    size, signed, high = sized or (4, False, False)
    if to_lds:
        if "dword" not in i.name:
            return None
        size = 4 * _dwords(i.name)
    stores = "_store_" in i.name
    vector = i.operands[0]
    scalar = i.operands[-1] if i.name.startswith("global_") else Operand("off", 0)
    data = i.operands[1] if stores else vector
    offset = np.int64(i.has("offset"))

    def step(w: Waves) -> None:
        if scalar.bank == "s":
            start = join(w.s[scalar.index], w.s[scalar.index + 1]) + u64(w.v[vector.index])
        else:
            start = join(w.v[vector.index], w.v[vector.index + 1])
        address = start.view(np.int64) + offset
        lanes = None if w.every else w.lanes
        if w.observer is not None:
            w.observer.vector(w, i, address, lanes, size, stores)
        if to_lds:
            _into_lds(w, i, _gather(w, address, lanes, size), size)
        elif stores:
            _scatter(w, address, lanes, _data(w, data, size, high), size)
        else:
            _put(w, i, _gather(w, address, lanes, size), size, signed, high)

    return step


def _scratch(i: Instruction, read: Reader, sized: tuple[int, bool, bool] | None) -> Step | None:
    if sized is None:
        return None
    size, signed, high = sized
    stores = "_store_" in i.name
    parts = [read(o) for o in (i.operands[0], i.operands[-1]) if o.is_register]
    data = i.operands[1] if stores else i.operands[0]
    offset = i.has("offset")

    def step(w: Waves) -> None:
        place: Array = np.full((1, 1), offset, np.int64)
        for part in parts:
            place = place + i64(part(w))
        place = w.wide(place)
        if w.observer is not None:
            w.observer.scratch(w, i, place, size, stores)
        lanes = w.lanes
        used = place[lanes]
        if used.size and (used.min() < 0 or used.max() + size > w.scratch_size):
            raise SimulationError(
                f"scratch access of {size} bytes outside of the {w.scratch_size} of a work item"
            )
        index = (w.scratch_base + place)[lanes]
        if stores:
            w.scratch.store(index, _data(w, data, size, high)[lanes], size)
        else:
            values = np.zeros((*w.shape, max(1, size // 4)), np.uint32)
            values[lanes] = w.scratch.load(index, size)
            _put(w, i, values, size, signed, high)

    return step


def _local(i: Instruction, read: Reader) -> Step | None:
    if not i.name.startswith(("ds_read", "ds_write")) or "addtid" in i.name:
        return None
    address = read(i.operands[0])
    if "2_b" in i.name or "2st64_b" in i.name:
        return _local_pair(i, address)
    sized = (8, False, False) if "_tr_" in i.name else _size(i)
    if sized is None:
        return None
    size, signed, high = sized
    offset = np.uint32(i.has("offset"))
    if "_tr_" in i.name:
        return _transposed(i, address, offset)
    stores = i.name.startswith("ds_write")
    data = i.operands[-1]

    def step(w: Waves) -> None:
        # Address and offset wrap at 32 bits.
        place = w.wide(i64(address(w) + offset))
        if stores:
            _local_store(w, i, place, _data(w, data, size, high), size)
        else:
            _put(w, i, _local_load(w, i, place, size), size, signed, high)

    return step


def _local_pair(i: Instruction, address: Callable[[Waves], Array]) -> Step:
    """Two elements of one or two registers each, at offsets in elements (or 64 of them)."""
    stores = i.name.startswith("ds_write")
    width = i.operands[1].count if stores else i.results[0].count // 2
    unit = 4 * width * (64 if "st64" in i.name else 1)
    offsets = [np.uint32(i.has(name) * unit) for name in ("offset0", "offset1")]

    def step(w: Waves) -> None:
        start = address(w)
        places = [w.wide(i64(start + offset)) for offset in offsets]
        if stores:
            for place, data in zip(places, i.operands[1:3], strict=True):
                _local_store(w, i, place, _data(w, data, 4 * width, False), 4 * width)
        else:
            parts = [_local_load(w, i, place, 4 * width) for place in places]
            target = i.results[0]
            w.put_group(target.bank, target.index, np.concatenate(parts, axis=-1))

    return step


def _transposed(
    i: Instruction, address: Callable[[Waves], Array], offset: np.uint32
) -> Step | None:
    """ds_read_b64_tr_b16: 16 lanes load a tile of 4 rows of 16 elements and hold its columns.

    Each lane reads 8 bytes, four elements of a row; lane l of 16 receives column l.
    """
    if not i.name.endswith("_tr_b16"):
        return None

    def step(w: Waves) -> None:
        raw = _local_load(w, i, w.wide(i64(address(w) + offset)), 8)
        elements = np.ascontiguousarray(raw).view(np.uint16).reshape(w.count, 4, 4, 16)
        columns = np.ascontiguousarray(elements.transpose(0, 1, 3, 2)).reshape(w.count, 64, -1)
        target = i.results[0]
        w.put_group(target.bank, target.index, columns.view(np.uint32))

    return step


def _local_load(w: Waves, i: Instruction, place: Array, size: int) -> Array:
    """LDS at [waves, 64] byte addresses: uint32 [waves, 64, registers]."""
    if w.observer is not None:
        w.observer.local(w, i, place, size, False)
    if w.every and place.min() >= 0 and place.max() + size <= w.lds_size:
        return w.lds.load(place + w.lds_base, size)
    lanes = w.lanes & (place >= 0) & (place + size <= w.lds_size)
    values = np.zeros((*w.shape, max(1, size // 4)), np.uint32)
    if lanes.any():
        values[lanes] = w.lds.load((place + w.lds_base)[lanes], size)
    return values


def _local_store(w: Waves, i: Instruction, place: Array, values: Array, size: int) -> None:
    if w.observer is not None:
        w.observer.local(w, i, place, size, True)
    if w.every and place.min() >= 0 and place.max() + size <= w.lds_size:
        w.lds.store(place + w.lds_base, values, size)
        return
    lanes = w.lanes & (place >= 0) & (place + size <= w.lds_size)
    if lanes.any():
        w.lds.store(
            (place + w.lds_base)[lanes],
            np.broadcast_to(values, (*w.shape, values.shape[-1]))[lanes],
            size,
        )
