"""The registers of all waves of a batch, and their active lanes.

A register is one array for all waves: [waves, 64] for a vector register, [waves, 1] for a scalar
register. Either extent may be 1 where the value is the same along it. Arrays are never changed in
place: a write replaces the array, so that copying a register costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mxc.simulator.code.instruction import EXEC
from mxc.simulator.compute.operations import Array, u64
from mxc.simulator.memory.spaces import Bytes, Memory

if TYPE_CHECKING:
    from mxc.simulator.watch.observe import Observer

LANES = 64
#: Contents of unwritten registers and memory: a signalling NaN, so that reads are noticed.
UNDEFINED = 0x7FA5A5A5


class Waves:
    """`count` waves in lockstep.

    s, v, a: the registers. scc: bool. lanes: bool [waves, 64], the active lanes. full: whether
    every lane of every wave that has not ended is active. every: whether all lanes of all waves are
    active. active: bool [waves, 1], the executing waves, None for all that have not ended.
    """

    def __init__(
        self,
        count: int,
        vectors: int,
        accumulators: int,
        memory: Memory,
        lds: Bytes,
        scratch: Bytes,
    ) -> None:
        """Create waves with undefined registers and all lanes active."""
        blank = np.full((1, 1), UNDEFINED, np.uint32)
        self.count = count
        self.shape = (count, LANES)
        self.s: list[Array] = [blank] * 128
        self.v: list[Array] = [blank] * vectors
        self.a: list[Array] = [blank] * accumulators
        self.scc: Array = np.zeros((1, 1), bool)
        self.memory = memory
        self.lds = lds
        self.scratch = scratch
        self.lds_base: Array = np.zeros((count, 1), np.int64)
        self.lds_size = 0
        self.scratch_base: Array = np.zeros(self.shape, np.int64)
        self.scratch_size = 0
        self.workgroup: Array = np.zeros(count, np.int64)
        #: MODE of the executing waves. `modes`: that of each wave, int [waves]; None if all agree.
        self.mode = 0
        self.modes: Array | None = None
        self.alive: Array = np.ones((count, 1), bool)
        self.active: Array | None = None
        self.groups: dict[tuple[str, int], tuple[Array, tuple[Array, ...]]] = {}
        self.fragments: dict[Any, Any] = {}
        self.observer: Observer | None = None
        self.at = 0
        self._masks: dict[int, tuple[Array, Array, Array]] = {}
        self.set_exec(np.full((1, 1), 0xFFFFFFFFFFFFFFFF, np.uint64))

    def bank(self, name: str) -> list[Array]:
        """Return the registers of bank "s", "v" or "a"."""
        return self.s if name == "s" else self.v if name == "v" else self.a

    def put(self, old: Array, new: Array) -> Array:
        """Return a vector register's value after a write: `new` in active lanes, else `old`."""
        return new if self.full else np.where(self.lanes, new, old)

    def put_where(self, old: Array, new: Array, keep: Array) -> Array:
        """`put` restricted to active lanes where `keep` is true."""
        return np.where(self.lanes & keep, new, old)

    def put_scalar(self, old: Array, new: Array) -> Array:
        """Return a scalar register's value after a write by the executing waves."""
        return new if self.active is None else np.where(self.active, new, old)

    def select(self, active: Array | None) -> None:
        """Let only some waves execute, which have the same MODE; None: all that have not ended."""
        self.active = active
        if self.modes is not None:
            self.mode = int(self.modes[0 if active is None else active[:, 0].argmax()])
        self._refresh(self._bits(self.s[EXEC], self.s[EXEC + 1]))

    def set_mode(self, mode: int) -> None:
        """Write MODE in the executing waves."""
        modes = np.full(self.count, self.mode) if self.modes is None else self.modes
        self.modes = None if self.active is None else np.where(self.active[:, 0], mode, modes)
        self.mode = mode

    def set_exec(self, mask: Array) -> None:
        """Write EXEC (uint64) in the executing waves."""
        self.s[EXEC] = self.put_scalar(self.s[EXEC], mask.astype(np.uint32))
        self.s[EXEC + 1] = self.put_scalar(
            self.s[EXEC + 1], (mask >> np.uint64(32)).astype(np.uint32)
        )
        self.refresh_exec()

    def refresh_exec(self) -> None:
        """Recompute the active lanes after a write to EXEC."""
        self._refresh(self._bits(self.s[EXEC], self.s[EXEC + 1]))

    def _refresh(self, bits: Array) -> None:
        lanes = bits if self.active is None else bits & self.active
        self.lanes: Array = self.wide(lanes)
        self.every = bool(lanes.all())
        self.full = self.every or bool((lanes | ~self.alive).all())

    @contextmanager
    def only(self, lanes: Array) -> Iterator[None]:
        """Restrict the active lanes to `lanes` within the context."""
        before = (self.lanes, self.every, self.full)
        self.lanes, self.every = lanes, bool(lanes.all())
        self.full = self.every or bool((lanes | ~self.alive).all())
        try:
            yield
        finally:
            self.lanes, self.every, self.full = before

    def mask(self, index: int) -> Array:
        """Return the lane mask in scalar registers `index` and `index` + 1: bool [waves, 64]."""
        low, high = self.s[index], self.s[index + 1]
        known = self._masks.get(index)
        if known is not None and known[0] is low and known[1] is high:
            return known[2]
        bits = self._bits(low, high)
        self._masks[index] = (low, high, bits)
        return bits

    def _bits(self, low: Array, high: Array) -> Array:
        rows = max(len(low), len(high))
        words = np.empty((rows, 2), np.uint32)
        words[:, :1] = low
        words[:, 1:] = high
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        return bits.view(bool)

    def put_mask(self, index: int, bits: Array) -> None:
        """Write the lane mask of a compare; bits of inactive lanes are 0."""
        if bits.shape[1] != LANES or not self.every:
            bits = np.broadcast_to(bits, (len(bits), LANES)) & self.lanes
        words = np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
        low = self.put_scalar(self.s[index], words[:, :1])
        high = self.put_scalar(self.s[index + 1], words[:, 1:])
        self.s[index], self.s[index + 1] = low, high
        if index == EXEC:
            self.refresh_exec()
        elif self.active is None:
            self._masks[index] = (low, high, bits)

    def wide(self, value: Array) -> Array:
        """Broadcast a value to [waves, 64]."""
        return value if value.shape == self.shape else np.broadcast_to(value, self.shape)

    def first_lane(self, value: Array) -> Array:
        """Return the value of each wave's first active lane (lane 0 if none): [waves, 1]."""
        if value.shape[1] == 1:
            return value
        if self.every:
            return value[:, :1]
        chosen = self.wide(value)[np.arange(self.count), self.lanes.argmax(axis=1)]
        result: Array = chosen[:, None]
        return result

    def put_group(self, bank: str, index: int, values: Array) -> None:
        """Write consecutive vector registers from the last axis of [waves, 64, registers]."""
        registers = self.bank(bank)
        views = tuple(values[..., i] for i in range(values.shape[-1]))
        if self.full:
            registers[index : index + len(views)] = views
            self.groups[bank, index] = (values, views)
            return
        for i, view in enumerate(views):
            registers[index + i] = np.where(self.lanes, view, registers[index + i])

    def group(self, bank: str, index: int, count: int) -> Array:
        """Return consecutive vector registers as [waves, 64, count], without a copy if cached."""
        registers = self.bank(bank)
        known = self.groups.get((bank, index))
        if known is not None and len(known[1]) == count:
            values, views = known
            if all(registers[index + i] is view for i, view in enumerate(views)):
                return values
        parts = [self.wide(registers[index + i]) for i in range(count)]
        values = np.stack(parts, axis=-1)
        if self.full:
            views = tuple(values[..., i] for i in range(count))
            registers[index : index + count] = views
            self.groups[bank, index] = (values, views)
        return values


def join(low: Array, high: Array) -> Array:
    """Return uint64 from two halves."""
    result: Array = u64(low) | (u64(high) << np.uint64(32))
    return result
