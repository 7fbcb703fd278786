"""Scalar loads, from addresses and from buffers.

Source: AMD CDNA4 instruction set architecture, chapter 8.
"""

from __future__ import annotations

import numpy as np

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.operations import Array, i64
from mxc.simulator.memory.access import Reader, Step
from mxc.simulator.run.state import Waves, join


def scalar_step(i: Instruction, read: Reader) -> Step | None:
    """Return the step of a scalar load; None for other scalar memory instructions."""
    if not i.name.startswith(("s_load_dword", "s_buffer_load_dword")):
        return None
    target, count = i.results[0].index, i.results[0].count
    base, register = i.operands[0].index, i.operands[1]
    immediate = np.int64(i.has("offset"))
    more = read(register) if register.is_register else None
    buffer = i.name.startswith("s_buffer")

    def step(w: Waves) -> None:
        offset: Array = np.full((1, 1), immediate)
        if more is not None:
            offset = offset + i64(more(w))
        high = w.s[base + 1] & 0xFFFF if buffer else w.s[base + 1]
        # The low two bits of a scalar address are ignored.
        address = (join(w.s[base], high).view(np.int64) + offset) & ~np.int64(3)
        if buffer:
            _from_buffer(w, i, base, address, offset)
            return
        if w.active is not None and len(address) > 1:
            address = np.where(w.active, address, address[w.active.argmax()])
        values = w.memory.load(address, 4 * count)
        if w.observer is not None:
            w.observer.scalar(w, i, address, 4 * count)
        for n in range(count):
            w.s[target + n] = w.put_scalar(w.s[target + n], values[..., n])

    return step


def _from_buffer(w: Waves, i: Instruction, base: int, address: Array, offset: Array) -> None:
    """Load dwords of a buffer; 0 for dwords outside of it.

    num_records is in bytes, or in units of the stride if that is not 0.
    """
    target = i.results[0]
    stride = i64(w.s[base + 1] >> 16 & 0x3FFF)
    limit = i64(w.s[base + 2]) * np.where(stride == 0, 1, stride)
    waves = np.ones((w.count, 1), bool) if w.active is None else w.active
    address, offset, limit = (
        np.broadcast_to(x, (w.count, 1)) for x in (address, offset & ~np.int64(3), limit)
    )
    if w.observer is not None:
        w.observer.scalar(w, i, address, 4 * target.count)
    for n in range(target.count):
        inside = waves & (offset + 4 * n + 4 <= limit)
        values = np.zeros((w.count, 1), np.uint32)
        if inside.any():
            values[inside] = w.memory.load(address[inside] + 4 * n, 4)[:, 0]
        place = target.index + n
        w.s[place] = w.put_scalar(w.s[place], values)
