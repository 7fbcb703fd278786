"""Shadow memory of LDS: the last writer and reader of every byte, for race detection.

Each workgroup has an epoch, which a barrier ends. A store is visible to other waves from the epoch
after the one in which its own wave waited for it. An access is encoded as one number, the epoch in
the high bits and the wave in the low bits. A dword has one entry, or one entry per byte after
single bytes were written.

A store of the value that a byte already has changes nothing: waves that store the same value do not
race, and each of them may read it as its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mxc.simulator.compute.operations import Array
from mxc.simulator.run.state import Waves

_SHIFT = 20
_WAVE = (1 << _SHIFT) - 1
#: The wave number that stands for several waves.
_SEVERAL = _WAVE
#: Flags of an access: a store that its wave has not waited for yet, which has the number of the
#: store in place of an epoch; and whether this store is a load to LDS.
_PENDING, _DIRECT = 1 << 61, 1 << 60

_WRITES = "LDS that another wave writes, without a wait and a barrier between"
_WRITES_TOO = "LDS that another wave writes too, without a barrier between"
_READS = "LDS that another wave reads, without a barrier between"


class Shadow:
    """Access history of the LDS of all workgroups of a batch."""

    def __init__(self, w: Waves) -> None:
        """Start with all bytes unwritten."""
        dwords = w.lds.size // 4 + 4
        self.epoch: Array = np.ones(int(w.workgroup.max()) + 1, np.int64)
        self.written: Array = np.zeros(dwords, np.int64)
        self.written_bytes: Array = np.zeros((dwords, 4), np.int64)
        self.split: Array = np.zeros(dwords, bool)
        self.read: Array = np.zeros(dwords, np.int64)
        self.read_bytes: Array = np.zeros((dwords, 4), np.int64)
        self.bytes_are_read = False
        #: The entry of the last store without its wave: the argument `entry` of `complete`.
        self.latest = _PENDING
        self._memory = w.lds.bytes
        self._waves = w.count // len(self.epoch)
        #: For each byte whose value several waves of the workgroup have stored, a bit per wave;
        #: allocated at first use.
        self._writers: Array | None = None

    def barrier(self, workgroups: Array) -> None:
        """Begin a new epoch for workgroups that passed a barrier."""
        self.epoch[workgroups] += 1

    def load(self, w: Waves, place: Array, lanes: Array, size: int) -> Iterator[tuple[str, str]]:
        """Record a read of `size` bytes; yield (kind, detail) of its findings."""
        flat = (place + w.lds_base)[lanes]
        wave, now = self._who(w, lanes)
        if _whole(flat, size):
            index = (flat >> 2)[:, None] + np.arange(size // 4)
            own = self._is_writer(index[..., None] * 4 + np.arange(4), wave[..., None])
            mine = np.all(own, axis=-1)
            yield from _check_load(self.written[index], wave, now, self.split[index], mine)
            if self.split[index].any():
                yield from _check_load(
                    self.written_bytes[index],
                    wave[..., None],
                    now[..., None],
                    ~self.split[index][..., None],
                    own,
                )
            _mark(self.read, index, wave, now)
            return
        index = flat[:, None] + np.arange(size)
        split = self.split[index >> 2]
        single = self.written_bytes.reshape(-1)[index]
        keys = np.where(split, single, self.written[index >> 2])
        own = self._is_writer(index, wave)
        yield from _check_load(keys, wave, now, np.zeros((1, 1), bool), own)
        _mark(self.read_bytes.reshape(-1), index, wave, now)
        self.bytes_are_read = True

    def store(
        self, w: Waves, place: Array, lanes: Array, size: int, stored: Array, *, direct: bool
    ) -> Iterator[tuple[str, str]]:
        """Record a write of `size` bytes of `stored`; yield (kind, detail) of its findings.

        direct: whether a load to LDS writes.
        """
        flat = (place + w.lds_base)[lanes]
        wave, now = self._who(w, lanes)
        number = (self.latest & ~_DIRECT) + (1 << _SHIFT)
        self.latest = number | _DIRECT if direct else number
        key = self.latest | wave
        parts = flat[:, None] + np.arange(size)
        words = np.broadcast_to(stored, (*w.shape, stored.shape[-1]))[lanes]
        data = np.ascontiguousarray(words).view(np.uint8)[:, :size]
        whole = _whole(flat, size)
        index = (flat >> 2)[:, None] + np.arange(size // 4) if whole else parts
        plain = whole and self._writers is None and not self.bytes_are_read
        if (
            not plain
            or self.split[index].any()
            or _others(self.written[index], wave, now).any()
            or _others(self.read[index], wave, now).any()
        ):
            yield from self._conflicts(parts, wave, now, data)
        if whole:
            self.split[index] = False
            target = self.written
        else:
            self._split(np.unique(index >> 2))
            target = self.written_bytes.reshape(-1)
        target[index] = key
        if (target[index] != key).any():
            yield from self._together(parts, wave, data)

    def _conflicts(
        self, parts: Array, wave: Array, now: Array, data: Array
    ) -> Iterator[tuple[str, str]]:
        """Yield races with accesses of other waves in this epoch to bytes `parts`.

        data: the new values of the bytes.
        """
        dwords = parts >> 2
        single = self.written_bytes.reshape(-1)[parts]
        keys = np.where(self.split[dwords], single, self.written[dwords])
        late = _others(keys, wave, now)
        read = _others(self.read[dwords], wave, now)
        read |= _others(self.read_bytes.reshape(-1)[parts], wave, now)
        changed = self._memory[parts] != data
        if (late & changed).any():
            yield "race", _WRITES_TOO
        if (read & changed).any():
            yield "race", _READS
        again = late & ~changed
        if self._writers is not None:
            self._writers[parts[~again]] = 0
        self._join(parts, keys & _WAVE, again)
        self._join(parts, wave, again)

    def _together(self, parts: Array, wave: Array, data: Array) -> Iterator[tuple[str, str]]:
        """Yield races among waves that store to the same bytes in one instruction."""
        waves = np.broadcast_to(wave, parts.shape).reshape(-1)
        values = data.reshape(-1)
        _, first, place = np.unique(parts, return_index=True, return_inverse=True)
        place = place.reshape(-1)
        several, differ = np.zeros((2, len(first)), bool)
        several[place[waves != waves[first][place]]] = True
        differ[place[values != values[first][place]]] = True
        if (several & differ).any():
            yield "race", "LDS that another wave writes at the same time"
        self._join(parts, wave, (several & ~differ)[place].reshape(parts.shape))

    def _join(self, parts: Array, waves: Array, where: Array) -> None:
        """Record that these waves have also stored the current values of the bytes `parts`."""
        if not where.any():
            return
        if self._writers is None:
            self._writers = np.zeros(self._memory.size, np.uint16)
        bits = np.broadcast_to(1 << waves % self._waves, parts.shape).astype(np.uint16)
        np.bitwise_or.at(self._writers, parts[where], bits[where])

    def _is_writer(self, parts: Array, wave: Array) -> Array | bool:
        """Return where a wave is one of several that stored the current value."""
        if self._writers is None:
            return False
        return np.asarray(self._writers[parts] >> wave % self._waves & 1, bool)

    def complete(self, w: Waves, places: Array, size: int, waves: Array, entry: int) -> None:
        """Record that waves have waited for a store.

        places: flat byte indices, -1 for none. entry: `latest` after the store.
        """
        lanes = (places >= 0) & waves[:, None]
        if not lanes.any():
            return
        flat = places[lanes]
        wave, now = self._who(w, lanes)
        if _whole(flat, size):
            index = (flat >> 2)[:, None] + np.arange(size // 4)
            _seen(self.written, index, wave, now, entry)
            if self.split[index].any():
                # Single bytes were overwritten since; the other bytes still are of this store.
                parts = (index[..., None] * 4 + np.arange(4)).reshape(len(index), -1)
                _seen(self.written_bytes.reshape(-1), parts, wave, now, entry)
            return
        _seen(self.written_bytes.reshape(-1), flat[:, None] + np.arange(size), wave, now, entry)

    def _split(self, dwords: Array) -> None:
        """Split the entries of these dwords into one entry per byte."""
        whole = dwords[~self.split[dwords]]
        self.written_bytes[whole] = self.written[whole][:, None]
        self.split[whole] = True

    def _who(self, w: Waves, lanes: Array) -> tuple[Array, Array]:
        """Return the wave, and the shifted epoch, of each accessing lane: [lanes, 1] each."""
        rows = np.nonzero(lanes)[0]
        return rows[:, None], (self.epoch[w.workgroup[rows]] << _SHIFT)[:, None]


def _whole(flat: Array, size: int) -> bool:
    return size >= 4 and not int(np.bitwise_or.reduce(flat)) & 3


def _others(keys: Array, wave: Array, now: Array) -> Array:
    """Return which accesses are of this epoch and of another wave."""
    return np.asarray((keys >= now) & (keys & _WAVE != wave))


def _check_load(
    keys: Array, wave: Array, now: Array, skip: Array, writer: Array | bool
) -> Iterator[tuple[str, str]]:
    """Yield the findings of a load of bytes with the write entries `keys`.

    skip: entries to ignore. writer: where the wave is one of several that stored the value.
    """
    if ((keys == 0) & ~skip).any():
        yield "undefined", "LDS that was never written"
    late = keys >= now
    if late.any():
        late = late & ~skip
        own = keys & _WAVE == wave
        if (late & ~own & ~np.asarray(writer)).any():
            yield "race", _WRITES
        if (late & own & (keys >= _PENDING | _DIRECT)).any():
            yield "dma", "LDS that a load of this wave fills, without a wait"


def _mark(table: Array, index: Array, wave: Array, now: Array) -> None:
    """Record a read, with _SEVERAL if several waves have read in this epoch."""
    known = table[index]
    shared = (known >= now) & (known != (now | wave))
    key = np.where(shared, now | _SEVERAL, now | wave)
    table[index] = key
    # Lanes of several waves may read the same place at once.
    lost = table[index] != key
    if lost.any():
        table[index[lost]] = np.broadcast_to(now | _SEVERAL, index.shape)[lost]


def _seen(table: Array, index: Array, wave: Array, now: Array, entry: int) -> None:
    """Mark a completed store where no other store has replaced it since."""
    keys = table[index]
    table[index] = np.where(keys == (entry | wave), now | wave, keys)
