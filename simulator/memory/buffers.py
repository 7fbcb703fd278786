"""Vector memory instructions with a buffer resource: raw, structured, swizzled, add-thread-id.

Source: AMD CDNA4 instruction set architecture, section 9.1. Loads out of bounds return 0, stores
and atomics out of bounds do nothing. A raw buffer is checked per dword without the scalar offset (a
dword with a byte outside is out of bounds), a structured buffer by its index.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.operations import Array, i64
from mxc.simulator.compute.signatures import memory_widths
from mxc.simulator.errors import SimulationError
from mxc.simulator.memory.access import (
    Reader,
    Step,
    change,
    dwords_to_lds,
    gather,
    put_loaded,
    scatter,
    size_of,
    stored_data,
)
from mxc.simulator.memory.atomics import memory_atomic
from mxc.simulator.memory.local import into_lds
from mxc.simulator.run.state import Waves

_LANE = np.arange(64, dtype=np.int64)[None]
#: inside(skip, size): whether `size` bytes, from `skip` bytes after the address, are in bounds.
Inside = Callable[[int, int], Array]
Addressing = Callable[[Waves], tuple[Array, Inside]]


def buffer_step(i: Instruction, read: Reader) -> Step | None:
    """Return the step of a buffer instruction; None where it is not modelled (formats)."""
    where = _addressing(i, read)
    atomic = memory_atomic(i.name)
    if atomic is not None:
        data = i.operands[0]

        def step(w: Waves) -> None:
            address, inside = where(w)
            lanes = w.lanes & inside(0, 4 * atomic.dwords)
            change(w, i, atomic, data, address, lanes)

        return step
    sized = size_of(i)
    if sized is None or "format" in i.name or "atomic" in i.name:
        return None
    if i.has("lds"):
        return _to_lds(i, where)
    return _access(i, where, *sized)


def _addressing(i: Instruction, read: Reader) -> Addressing:
    vector, resource, scalar = i.operands[-3], i.operands[-2].index, read(i.operands[-1])
    registers = [] if vector.bank == "off" else list(range(vector.index, vector.index + 2))
    indexed, offset_given = i.has("idxen"), i.has("offen")
    immediate = np.uint32(i.has("offset"))
    size = 4 * max(memory_widths(i.name))

    def where(w: Waves) -> tuple[Array, Inside]:
        base = i64(w.s[resource]) | i64(w.s[resource + 1] & 0xFFFF) << 32
        index = w.v[registers[0]] if indexed else None
        start = w.v[registers[1 if indexed else 0]] + immediate if offset_given else None
        offset = i64(np.full((1, 1), immediate) if start is None else start)
        limit = i64(w.s[resource + 2])
        moved = base + i64(scalar(w))
        word, flags = w.s[resource + 1], w.s[resource + 3]
        threads = _one(w, flags >> 23 & 1, "whether a buffer adds the thread")
        swizzled = _one(w, word >> 31, "whether a buffer is swizzled")
        if not (indexed or threads or swizzled):
            return moved + offset, lambda skip, size: offset + (skip + size) <= limit
        stride = i64(word >> 16 & 0x3FFF)
        if threads:
            stride = stride | i64(flags >> 15 & 15) << 14
        if threads == bool(indexed) or (not threads and (stride == 0).any()):
            raise SimulationError(
                "the bounds of this kind of buffer are not documented (structured buffers have "
                "an index and a stride, those of threads have no index)"
            )
        place = i64(index) if index is not None else np.zeros((1, 1), np.int64)
        inside: Array = np.ones((1, 1), bool) if threads else place < limit
        place = place + _LANE if threads else place
        within = place * stride + offset
        if swizzled:
            if size > 4:
                raise SimulationError(f"{size} bytes of a buffer that is swizzled by 4")
            within = _swizzled(flags, place, offset, stride)
        return moved + within, lambda skip, size: inside

    return where


def _one(w: Waves, flag: Array, what: str) -> bool:
    """Return a flag that must be the same in all executing waves, else SimulationError."""
    chosen = flag if w.active is None or len(flag) == 1 else flag[w.active[:, 0]]
    if chosen.min() != chosen.max():
        raise SimulationError(f"waves differ in {what}")
    return bool(chosen.flat[0])


def _swizzled(flags: Array, index: Array, offset: Array, stride: Array) -> Array:
    """Return swizzled offsets (section 9.1.5.2); elements have 4 bytes on gfx9 (LLVM)."""
    run = i64(np.uint32(8) << (flags >> 21 & 3))
    element = 4
    row = index // run * stride + offset // element * element
    within: Array = row * run + index % run * element + offset % element
    return within


def _access(i: Instruction, where: Addressing, size: int, signed: bool, high: bool) -> Step:
    stores = "_store_" in i.name
    data = i.operands[0]

    def some(w: Waves, allowed: Array) -> Array | None:
        """Return the lanes that access memory, or None for all."""
        if allowed.all():
            return None if w.every else w.lanes
        return np.asarray(np.broadcast_to(allowed, w.shape) & w.lanes)

    def step(w: Waves) -> None:
        address, inside = where(w)
        first = inside(0, min(size, 4))
        lanes = some(w, first)
        if w.observer is not None:
            w.observer.vector(w, i, address, lanes, size, stores)
        partial = size > 4 and bool((first & ~inside(0, size)).any())
        if stores:
            values = stored_data(w, data, size, high)
            if not partial:
                scatter(w, address, lanes, values, size)
                return
            for n in range(size // 4):
                here = some(w, inside(4 * n, 4))
                scatter(w, address + 4 * n, here, values[..., n : n + 1], 4)
            return
        if partial:
            parts = [
                gather(w, address + 4 * n, some(w, inside(4 * n, 4)), 4) for n in range(size // 4)
            ]
            values = np.concatenate(parts, axis=-1)
        else:
            values = gather(w, address, lanes, size)
        put_loaded(w, i, values, size, signed, high)

    return step


def _to_lds(i: Instruction, where: Addressing) -> Step | None:
    size = 4 * dwords_to_lds(i.name)
    if not size:
        return None

    def step(w: Waves) -> None:
        address, inside = where(w)
        lanes = w.lanes & inside(0, 4)
        if w.observer is not None:
            w.observer.vector(w, i, address, lanes, size, False)
        # A load that ends after the buffer loads the dwords that are in bounds.
        if (lanes & ~inside(0, size)).any():
            parts = [
                gather(w, address + 4 * n, w.lanes & inside(4 * n, 4), 4) for n in range(size // 4)
            ]
            into_lds(w, i, np.concatenate(parts, axis=-1), size)
        else:
            into_lds(w, i, gather(w, address, lanes, size), size)

    return step
