"""What is known of every byte of LDS: who wrote it and who read it, and since when that is seen.

Each workgroup has an epoch, which a barrier ends. A store is seen by other waves from the epoch
after the one in which its own wave waited for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mxc.runtime.simulator.operations import Array
from mxc.runtime.simulator.state import Waves

_NOBODY, _SEVERAL = -1, -2
#: Epochs of stores that were not waited for: by LDS instructions, by loads to LDS.
_PENDING, _PENDING_DIRECT = 1 << 30, (1 << 30) + 1


class Shadow:
    """State of the LDS of all workgroups of a batch."""

    def __init__(self, w: Waves) -> None:
        """Nothing written."""
        size = (w.lds.size + 19) // 4 * 4
        self.epoch: Array = np.ones(int(w.workgroup.max()) + 1, np.int32)
        self.writer: Array = np.full(size, _NOBODY, np.int32)
        self.written: Array = np.zeros(size, np.int32)
        self.reader: Array = np.full(size, _NOBODY, np.int32)
        self.read: Array = np.zeros(size, np.int32)

    def barrier(self, workgroups: Array) -> None:
        """These workgroups passed a barrier."""
        self.epoch[workgroups] += 1

    def load(
        self, w: Waves, place: Array, lanes: Array, size: int, *, direct: bool
    ) -> Iterator[tuple[str, str]]:
        """A read of `size` bytes; gives what is wrong with it."""
        flat = (place + w.lds_base)[lanes]
        index, width = _units(flat, size)
        wave, epoch = self._who(w, lanes)
        writers, readers = self.writer.reshape(-1, width), self.reader.reshape(-1, width)
        written, read = self.written.reshape(-1, width), self.read.reshape(-1, width)
        writer, since = writers[index], written[index]
        if writer.min() == _NOBODY:
            yield "undefined", "LDS that was never written"
        # Nearly always the last epoch is over: one look at all.
        if (since >= epoch).any():
            late = (since >= epoch) & (writer != _NOBODY)
            if (late & (writer != wave)).any():
                yield "race", "LDS that another wave writes, without a wait and a barrier between"
            if (late & (writer == wave) & (since == _PENDING_DIRECT)).any():
                yield "dma", "LDS that a load of this wave fills, without a wait"
        same = (read[index] == epoch) & (readers[index] != wave)
        # Lanes of several waves may read the same byte at once.
        readers[index] = np.where(same, _SEVERAL, wave)
        lost = (readers[index] != wave) & ~same
        if lost.any():
            readers[index] = np.where(lost | same, _SEVERAL, readers[index])
        read[index] = epoch

    def store(
        self, w: Waves, place: Array, lanes: Array, size: int, *, direct: bool
    ) -> Iterator[tuple[str, str]]:
        """A write of `size` bytes; gives what is wrong with it."""
        flat = (place + w.lds_base)[lanes]
        index, width = _units(flat, size)
        wave, epoch = self._who(w, lanes)
        writers, readers = self.writer.reshape(-1, width), self.reader.reshape(-1, width)
        written, read = self.written.reshape(-1, width), self.read.reshape(-1, width)
        writer = writers[index]
        if ((writer != wave) & (writer != _NOBODY) & (written[index] >= epoch)).any():
            yield "race", "LDS that another wave writes too, without a barrier between"
        if ((read[index] == epoch) & (readers[index] != wave)).any():
            yield "race", "LDS that another wave reads, without a barrier between"
        writers[index] = wave
        if (writers[index] != wave).any():
            yield "race", "LDS that another wave writes at the same time"
        written[index] = _PENDING_DIRECT if direct else _PENDING

    def complete(self, w: Waves, places: Array, size: int, waves: Array) -> None:
        """Stores of some waves were waited for. places: flat bytes, -1 where there was none."""
        lanes = (places >= 0) & waves[:, None]
        if not lanes.any():
            return
        index, width = _units(places[lanes], size)
        wave, epoch = self._who(w, lanes)
        writers, written = self.writer.reshape(-1, width), self.written.reshape(-1, width)
        # Another store may have come to the same byte since.
        still = (writers[index] == wave) & (written[index] >= _PENDING)
        written[index] = np.where(still, epoch, written[index])

    def _who(self, w: Waves, lanes: Array) -> tuple[Array, Array]:
        """Wave and epoch of each lane that accesses: [lanes, 1, 1]."""
        rows = np.nonzero(lanes)[0]
        epoch = self.epoch[w.workgroup[rows]]
        return rows.astype(np.int32)[:, None, None], epoch[:, None, None]


def _units(flat: Array, size: int) -> tuple[Array, int]:
    """Indices [lanes, units] of an access, and how many bytes a unit has: 4 where that goes."""
    if size >= 4 and not (np.bitwise_or.reduce(flat) & 3):
        return (flat >> 2)[:, None] + np.arange(size // 4), 4
    return flat[:, None] + np.arange(size), 1
