"""What is known of every byte of LDS: who wrote it and who read it, and since when that is seen.

Each workgroup has an epoch, which a barrier ends. A store is seen by other waves from the epoch
after the one in which its own wave waited for it. An access is kept as one number, the epoch above
the wave; whole dwords have one, and a dword of which single bytes were written one for each byte.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mxc.runtime.simulator.compute.operations import Array
from mxc.runtime.simulator.run.state import Waves

_SHIFT = 20
_WAVE = (1 << _SHIFT) - 1
#: Stands for several waves.
_SEVERAL = _WAVE
#: Epochs of stores that were not waited for: by LDS instructions, by loads to LDS.
_PENDING, _PENDING_DIRECT = 1 << 30, (1 << 30) + 1

_WRITES = "LDS that another wave writes, without a wait and a barrier between"
_WRITES_TOO = "LDS that another wave writes too, without a barrier between"
_READS = "LDS that another wave reads, without a barrier between"


class Shadow:
    """State of the LDS of all workgroups of a batch."""

    def __init__(self, w: Waves) -> None:
        """Nothing written."""
        dwords = w.lds.size // 4 + 4
        self.epoch: Array = np.ones(int(w.workgroup.max()) + 1, np.int64)
        self.written: Array = np.zeros(dwords, np.int64)
        self.written_bytes: Array = np.zeros((dwords, 4), np.int64)
        self.split: Array = np.zeros(dwords, bool)
        self.read: Array = np.zeros(dwords, np.int64)
        self.read_bytes: Array = np.zeros((dwords, 4), np.int64)
        self.bytes_are_read = False

    def barrier(self, workgroups: Array) -> None:
        """These workgroups passed a barrier."""
        self.epoch[workgroups] += 1

    def load(
        self, w: Waves, place: Array, lanes: Array, size: int, *, direct: bool
    ) -> Iterator[tuple[str, str]]:
        """A read of `size` bytes; gives what is wrong with it."""
        flat = (place + w.lds_base)[lanes]
        wave, now = self._who(w, lanes)
        if _whole(flat, size):
            index = (flat >> 2)[:, None] + np.arange(size // 4)
            yield from _check_load(self.written[index], wave, now, self.split[index])
            if self.split[index].any():
                yield from _check_load(
                    self.written_bytes[index],
                    wave[..., None],
                    now[..., None],
                    ~self.split[index][..., None],
                )
            _mark(self.read, index, wave, now)
            return
        index = flat[:, None] + np.arange(size)
        split = self.split[index >> 2]
        single = self.written_bytes.reshape(-1)[index]
        keys = np.where(split, single, self.written[index >> 2])
        yield from _check_load(keys, wave, now, np.zeros((1, 1), bool))
        _mark(self.read_bytes.reshape(-1), index, wave, now)
        self.bytes_are_read = True

    def store(
        self, w: Waves, place: Array, lanes: Array, size: int, *, direct: bool
    ) -> Iterator[tuple[str, str]]:
        """A write of `size` bytes; gives what is wrong with it."""
        flat = (place + w.lds_base)[lanes]
        wave, now = self._who(w, lanes)
        key = ((_PENDING_DIRECT if direct else _PENDING) << _SHIFT) | wave
        if _whole(flat, size):
            index = (flat >> 2)[:, None] + np.arange(size // 4)
            if self.split[index].any():
                bytes_of = np.where(self.split[index][..., None], self.written_bytes[index], 0)
                if _others(bytes_of, wave[..., None], now[..., None]):
                    yield "race", _WRITES_TOO
            target, known = self.written, np.where(self.split[index], 0, self.written[index])
            read = _others(self.read[index], wave, now) or (
                self.bytes_are_read
                and _others(self.read_bytes[index], wave[..., None], now[..., None])
            )
            self.split[index] = False
        else:
            index = flat[:, None] + np.arange(size)
            self._split(np.unique(index >> 2))
            target = self.written_bytes.reshape(-1)
            known = target[index]
            single = self.read_bytes.reshape(-1)[index]
            read = _others(self.read[index >> 2], wave, now) or _others(single, wave, now)
        if _others(known, wave, now):
            yield "race", _WRITES_TOO
        if read:
            yield "race", _READS
        target[index] = key
        if (target[index] != key).any():
            yield "race", "LDS that another wave writes at the same time"

    def complete(self, w: Waves, places: Array, size: int, waves: Array) -> None:
        """Stores of some waves were waited for. places: flat bytes, -1 where there was none."""
        lanes = (places >= 0) & waves[:, None]
        if not lanes.any():
            return
        flat = places[lanes]
        wave, now = self._who(w, lanes)
        if _whole(flat, size):
            index = (flat >> 2)[:, None] + np.arange(size // 4)
            _seen(self.written, index, wave, now)
            if self.split[index].any():
                # Bytes were stored over it since: the others are of this store.
                parts = (index[..., None] * 4 + np.arange(4)).reshape(len(index), -1)
                _seen(self.written_bytes.reshape(-1), parts, wave, now)
            return
        _seen(self.written_bytes.reshape(-1), flat[:, None] + np.arange(size), wave, now)

    def _split(self, dwords: Array) -> None:
        """Keep what is known of these dwords byte by byte."""
        whole = dwords[~self.split[dwords]]
        self.written_bytes[whole] = self.written[whole][:, None]
        self.split[whole] = True

    def _who(self, w: Waves, lanes: Array) -> tuple[Array, Array]:
        """Wave, and epoch in the place where it is kept, of each lane that accesses."""
        rows = np.nonzero(lanes)[0]
        return rows[:, None], (self.epoch[w.workgroup[rows]] << _SHIFT)[:, None]


def _whole(flat: Array, size: int) -> bool:
    return size >= 4 and not int(np.bitwise_or.reduce(flat)) & 3


def _others(keys: Array, wave: Array, now: Array) -> bool:
    """Whether another wave is among the accesses of this epoch."""
    late = keys >= now
    return bool(late.any() and (late & (keys & _WAVE != wave)).any())


def _check_load(keys: Array, wave: Array, now: Array, skip: Array) -> Iterator[tuple[str, str]]:
    if ((keys == 0) & ~skip).any():
        yield "undefined", "LDS that was never written"
    late = keys >= now
    if late.any():
        late = late & ~skip
        own = keys & _WAVE == wave
        if (late & ~own).any():
            yield "race", _WRITES
        if (late & own & (keys >> _SHIFT == _PENDING_DIRECT)).any():
            yield "dma", "LDS that a load of this wave fills, without a wait"


def _mark(table: Array, index: Array, wave: Array, now: Array) -> None:
    """Note a read: of one wave, or of several in this epoch."""
    known = table[index]
    shared = (known >= now) & (known != (now | wave))
    key = np.where(shared, now | _SEVERAL, now | wave)
    table[index] = key
    # Lanes of several waves may read the same place at once.
    lost = table[index] != key
    if lost.any():
        table[index[lost]] = np.broadcast_to(now | _SEVERAL, index.shape)[lost]


def _seen(table: Array, index: Array, wave: Array, now: Array) -> None:
    """Stores that are complete; another one may have come to the same place since."""
    keys = table[index]
    still = (keys & _WAVE == wave) & (keys >= _PENDING << _SHIFT)
    table[index] = np.where(still, now | wave, keys)
