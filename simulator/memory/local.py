"""LDS instructions: loads, stores, atomics, transposing loads, and writes of loads to LDS.

Source: AMD CDNA4 instruction set architecture, chapter 11 and section 9.1.9; for the transposing
loads rocRoller's test on hardware, TransposeLoadsTest. LDS beyond the workgroup's allocation reads
as 0 and is not written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.simulator.code.instruction import M0, Instruction
from mxc.simulator.compute.narrow import pack6, unpack6
from mxc.simulator.compute.operations import Array, i64
from mxc.simulator.compute.signatures import has_two_addresses
from mxc.simulator.errors import SimulationError
from mxc.simulator.memory.access import Reader, Step, put_loaded, size_of, stored_data
from mxc.simulator.memory.atomics import Atomic, keeps_denormals, local_atomic, perform
from mxc.simulator.run.state import Waves

_LANE = np.arange(64, dtype=np.int64)[None]


def local_step(i: Instruction, read: Reader) -> Step | None:
    """Return the step of an LDS instruction; None where it is not modelled."""
    if i.has("gds"):
        return None
    if "addtid" in i.name:
        return _by_lane(i)
    address = read(i.operands[0])
    if has_two_addresses(i.name):
        return _pair(i, address)
    offset = np.uint32(i.has("offset"))
    if "_tr_" in i.name:
        return _transposed(i, address, offset)
    atomic = local_atomic(i.name)
    if atomic is not None:
        return _atomic(i, atomic, address, offset)
    sized = size_of(i)
    if sized is None or not i.name.startswith(("ds_read", "ds_write")):
        return None
    size, signed, high = sized
    stores = i.name.startswith("ds_write")
    data = i.operands[-1]

    def step(w: Waves) -> None:
        # Address and offset wrap at 32 bits.
        place = w.wide(i64(address(w) + offset))
        if stores:
            local_store(w, i, place, stored_data(w, data, size, high), size)
        else:
            put_loaded(w, i, local_load(w, i, place, size), size, signed, high)

    return step


def _by_lane(i: Instruction) -> Step:
    """ds_read_addtid_b32, ds_write_addtid_b32: consecutive lanes from M0 + offset on."""
    stores = i.name.startswith("ds_write")
    offset = i.has("offset")

    def step(w: Waves) -> None:
        place = w.wide(i64(w.s[M0] & 0xFFFF) + offset + 4 * _LANE)
        if stores:
            local_store(w, i, place, stored_data(w, i.operands[-1], 4, False), 4)
        else:
            put_loaded(w, i, local_load(w, i, place, 4), 4, False, False)

    return step


def _pair(i: Instruction, address: Callable[[Waves], Array]) -> Step:
    """Access two elements of one or two registers, at offsets in units of 1 or 64 elements."""
    stores, loads = len(i.operands) > 1, bool(i.results)
    width = i.operands[1].count if stores else i.results[0].count // 2
    unit = 4 * width * (64 if "st64" in i.name else 1)
    offsets = [np.uint32(i.has(name) * unit) for name in ("offset0", "offset1")]

    def step(w: Waves) -> None:
        start = address(w)
        places = [w.wide(i64(start + offset)) for offset in offsets]
        data = [stored_data(w, o, 4 * width, False) for o in i.operands[1:3]]
        if loads:
            parts = [local_load(w, i, place, 4 * width) for place in places]
            target = i.results[0]
            w.put_group(target.bank, target.index, np.concatenate(parts, axis=-1))
        if offsets[0] == offsets[1]:
            # Equal addresses are written once (section 11.3.1).
            places, data = places[:1], data[:1]
        for place, values in zip(places, data, strict=False):
            local_store(w, i, place, values, 4 * width)

    return step


def _atomic(
    i: Instruction, atomic: Atomic, address: Callable[[Waves], Array], offset: np.uint32
) -> Step:
    size = 4 * atomic.dwords

    def step(w: Waves) -> None:
        place = w.wide(i64(address(w) + offset))
        local_change(w, i, atomic, place, [stored_data(w, o, size, False) for o in i.operands[1:]])

    return step


def local_change(w: Waves, i: Instruction, atomic: Atomic, place: Array, data: list[Array]) -> None:
    """Do an atomic on LDS for the active lanes at byte addresses [waves, 64]."""
    size = 4 * atomic.dwords
    if w.observer is not None:
        w.observer.local_atomic(w, i, place, size)
    lanes = w.lanes & (place >= 0) & (place + size <= w.lds_size)
    if not lanes.any():
        return
    parts = [np.broadcast_to(d, (*w.shape, d.shape[-1]))[lanes] for d in data]
    keep = keeps_denormals(atomic, w.mode)
    at = (place + w.lds_base)[lanes]
    found = perform(atomic, at, parts, w.lds.load, w.lds.store, keep=keep)
    if i.results:
        values = np.zeros((*w.shape, atomic.dwords), np.uint32)
        values[lanes] = found
        w.put_group(i.results[0].bank, i.results[0].index, values)


def _transposed(i: Instruction, address: Callable[[Waves], Array], offset: np.uint32) -> Step:
    """ds_read_b64_tr_b16 and similar: each group of 16 lanes loads a matrix and transposes it.

    The elements that 16 lanes load, in lane order, are rows of 16. Lane n of the group receives
    column n.
    """
    bits = int(i.name.rsplit("_b", 1)[1])
    size = 12 if bits == 6 else 8
    target = i.results[0]

    def step(w: Waves) -> None:
        some, each = w.lanes.any(axis=1), w.lanes.all(axis=1)
        if (some & ~each).any():
            raise SimulationError("EXEC must be all ones (CDNA4 ISA, section 11.4)")
        raw = local_load(w, i, w.wide(i64(address(w) + offset)), size)
        elements = _split(np.ascontiguousarray(raw), bits)
        rows = elements.reshape(w.count, 4, -1, 16)
        columns = np.ascontiguousarray(rows.transpose(0, 1, 3, 2)).reshape(w.count, 64, -1)
        w.put_group(target.bank, target.index, _concat(columns, bits))

    return step


def _split(words: Array, bits: int) -> Array:
    """Unpack the elements of each lane, [waves, 64, n]."""
    if bits == 16:
        return words.view(np.uint16)
    if bits == 8:
        return words.view(np.uint8)
    if bits == 4:
        pairs = words.view(np.uint8)
        return np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:-1], -1)
    padded = np.zeros((*words.shape[:-1], 6), np.uint32)
    padded[..., :3] = words
    return unpack6(padded)[..., :16]


def _concat(elements: Array, bits: int) -> Array:
    """Pack elements [waves, 64, n] back to registers, the inverse of `_split`."""
    if bits >= 8:
        return np.ascontiguousarray(elements).view(np.uint32)
    if bits == 4:
        pairs = np.ascontiguousarray(elements[..., ::2] | elements[..., 1::2] << 4)
        return pairs.view(np.uint32)
    padded = np.zeros((*elements.shape[:-1], 32), np.uint32)
    padded[..., :16] = elements
    return pack6(padded)[..., :3]


def into_lds(w: Waves, i: Instruction, values: Array, size: int) -> None:
    """Store the result of a load to LDS, for consecutive lanes from M0 + offset on.

    Lanes are 4 bytes apart, or 16 for loads of 3 and 4 dwords.
    """
    start = w.s[M0] & (0x3FFFF if i.encoding == "MUBUF" else 0x3FFFC)
    place = i64(start) + i.has("offset") + _LANE * (4 if size == 4 else 16)
    local_store(w, i, w.wide(place), values, size)


def local_load(w: Waves, i: Instruction, place: Array, size: int) -> Array:
    """Load LDS at byte addresses [waves, 64]: uint32 [waves, 64, registers]."""
    if w.observer is not None:
        w.observer.local(w, i, place, size, None)
    if w.every and place.min() >= 0 and place.max() + size <= w.lds_size:
        return w.lds.load(place + w.lds_base, size)
    lanes = w.lanes & (place >= 0) & (place + size <= w.lds_size)
    values = np.zeros((*w.shape, max(1, size // 4)), np.uint32)
    if lanes.any():
        values[lanes] = w.lds.load((place + w.lds_base)[lanes], size)
    return values


def local_store(w: Waves, i: Instruction, place: Array, values: Array, size: int) -> None:
    """Store uint32 [waves, 64, registers] to LDS at byte addresses [waves, 64]."""
    if w.observer is not None:
        w.observer.local(w, i, place, size, values)
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
