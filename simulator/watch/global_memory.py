"""What is known of the global memory that a dispatch may write: which wave accessed it last.

Two accesses of a dispatch to one byte are a race if they are of different waves, one is a store
that is not atomic, and nothing orders them:

- a barrier of the workgroup, where both waves are of one. A wait is not needed: the waves of a
  workgroup share a vector cache, which takes their accesses in order (LLVM, User Guide for AMDGPU
  Backend, memory model of gfx942, where a workgroup is not split among compute units);
- atomic operations: what a wave did before one is seen by a wave that does one on the same place
  afterwards, and by those that learn of it in the same way. Loads and stores for more than a
  wave (sc0, sc1) are atomic. Between workgroups, which may be on chips with an L2 each, fences are
  needed (the same document): the first wave has released before (buffer_wbl2 sc1, then a wait for
  vmcnt(0)), and the second one has acquired afterwards (buffer_inv sc1).

Loads may meet atomic operations, as in loops of compare and swap, which begin with a load.
A store of the value that a byte has changes nothing, and is no race. Waves may end in the
simulator before others begin; that orders nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from mxc.simulator.compute.operations import Array
from mxc.simulator.memory.spaces import Bytes, Memory
from mxc.simulator.run.state import LANES, Waves

#: An access is one number: the time above a bit for atomic ones above the wave, counted from one.
#: Wave 0 is none in particular: several, that stored the same.
_SHIFT = 24
_ATOMIC = 1 << _SHIFT - 1
_WAVE = _ATOMIC - 1
#: What orders accesses.
_Event = Literal["barrier", "atomic", "release", "acquire"]
#: Bytes that have one number, as long as no access is for less of them.
_UNIT = 16


@dataclass
class _Region:
    """Bytes on this machine that the buffers of a dispatch share. Two of the waves that have read
    a place are kept, as many see what others write."""

    first: int
    size: int

    def __post_init__(self) -> None:
        self.unit = _UNIT
        self.is_written = False
        self.is_read = False
        # Pages of zeros take no memory until they are written.
        self.written, self.read, self.read_too = self._tables(self.size // _UNIT + 2)

    def _tables(self, units: int) -> tuple[Array, Array, Array]:
        tables = np.zeros((3, units), np.int64)
        return tables[0], tables[1], tables[2]

    def places(self, at: Array, size: int) -> Array:
        """The units [accesses, units of one] of `size` bytes at offsets [accesses]."""
        bits = int(np.bitwise_or.reduce(at)) | size
        if bits & (self.unit - 1):
            self._divide(bits & -bits)
        shift = self.unit.bit_length() - 1
        first = (at >> shift)[:, None]
        return first if size == self.unit else first + np.arange(size >> shift)

    def _divide(self, unit: int) -> None:
        ratio = self.unit // unit
        old = (self.written, self.read, self.read_too)
        new = self._tables(self.size // unit + 2 * ratio)
        for table, finer in zip(old, new, strict=True):
            used = np.flatnonzero(table)
            finer[(used * ratio)[:, None] + np.arange(ratio)] = table[used][:, None]
        self.written, self.read, self.read_too = new
        self.unit = unit


@dataclass
class _Knowledge:
    """What became of an access after so many events. Waves that know of it, `since` when;
    those of them that have `released` it; those that have `heard` of it and are to acquire it.
    Addresses at which it was told, to all, and to a workgroup."""

    since: dict[int, int]
    events: int = 0
    released: set[int] = field(default_factory=set)
    heard: set[int] = field(default_factory=set)
    places: set[int] = field(default_factory=set)
    near: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True)
class _Access:
    """What some lanes access: offsets in a region, and for each the number that is kept."""

    region: _Region
    space: Bytes
    at: Array
    key: Array

    @property
    def shift(self) -> int:
        """What the offsets in the region are more than those in the buffer."""
        return self.space.home - self.region.first


class GlobalMemory:
    """State of the global memory of one dispatch."""

    def __init__(self, memory: Memory) -> None:
        """Nothing accessed. What the kernel cannot write is left out."""
        self.memory = memory
        self._time = 0
        self._waves = 0
        self._each = 1
        self._barriers: Array = np.zeros(0, np.int64)
        #: By time: the waves and the addresses of an atomic operation, the waves of a fence, with
        #: the times up to which they release, or workgroups at a barrier.
        self._order: list[tuple[int, _Event, Array, Array]] = []
        self._known: dict[tuple[int, int], _Knowledge] = {}
        self._regions = _regions(memory)

    def start(self, w: Waves) -> None:
        """Some more workgroups of the dispatch begin."""
        groups = int(w.workgroup.max()) + 1
        self._each = w.count // groups
        self._first = self._waves
        self._mine = np.repeat(np.arange(w.count), LANES) + (self._first + 1)
        self._waves += w.count
        self._back: Array = np.zeros(w.count, np.int64)
        self._barriers = np.append(self._barriers, np.zeros(groups, np.int64))

    def barrier(self, workgroups: Array) -> None:
        """These workgroups of those that run passed a barrier."""
        self._time += 1
        groups = workgroups + self._first // self._each
        self._barriers[groups] = self._time
        self._order.append((self._time, "barrier", groups, groups))

    def written_back(self, waves: Array) -> None:
        """These waves, bool, begin to write back what the device is to see."""
        self._time += 1
        self._back[waves] = self._time

    def waited(self, waves: Array) -> None:
        """These waves have waited for all that they began."""
        waves = waves & (self._back > 0)
        if waves.any():
            self._fence("release", waves, self._back[waves])
            self._back[waves] = 0

    def acquired(self, waves: Array) -> None:
        """These waves load nothing any more that is older than what the device sees."""
        self._fence("acquire", waves, self._back[waves])

    def _fence(self, kind: _Event, waves: Array, times: Array) -> None:
        self._time += 1
        self._order.append((self._time, kind, np.flatnonzero(waves) + self._first, times))

    def load(
        self, w: Waves, address: Array, lanes: Array | None, size: int, *, atomic: bool
    ) -> Iterator[str]:
        """A read of `size` bytes at addresses [waves, 64]; gives what is wrong with it."""
        for access in self._accesses(w, address, lanes, size, atomic):
            region = access.region
            places = region.places(access.at, size)
            key = access.key[:, None]
            if region.is_written:
                known = region.written[places]
                if known.any():
                    plain = np.where(known & _ATOMIC, 0, known)
                    yield from self._conflicts(access, places, plain, "writes")
            region.is_read = True
            known = region.read[places]
            if known.any():
                others = (known ^ key) & _WAVE != 0
                region.read_too[places[others]] = known[others]
            region.read[places] = key
            lost = region.read[places] != key
            if lost.any():
                region.read_too[places[lost]] = np.broadcast_to(key, places.shape)[lost]

    def store(
        self,
        w: Waves,
        address: Array,
        lanes: Array | None,
        values: Array,
        size: int,
        *,
        atomic: bool,
    ) -> Iterator[str]:
        """A write of uint32 [waves, 64, registers]; gives what is wrong with it."""
        words = np.broadcast_to(values, (*w.shape, values.shape[-1]))
        for access, chosen in self._pairs(w, address, lanes, size, atomic):
            those = words.reshape(-1, words.shape[-1]) if chosen is None else words[chosen]
            data = np.ascontiguousarray(those).view(np.uint8)[:, :size]
            yield from self._write(access, size, data)

    def change(self, w: Waves, address: Array, lanes: Array | None, size: int) -> Iterator[str]:
        """An atomic operation: reads and writes."""
        for access in self._accesses(w, address, lanes, size, True):
            yield from self._write(access, size, None)

    def _write(self, access: _Access, size: int, data: Array | None) -> Iterator[str]:
        """data: uint8 [accesses, size]; None where it counts as another value than that there."""
        region = access.region
        places = region.places(access.at, size)
        key = access.key[:, None]
        tables = [(region.written, "writes too")] if region.is_written else []
        if region.is_read and not key[0, 0] & _ATOMIC:
            tables += [(region.read, "reads"), (region.read_too, "reads")]
        same: Array | None = None
        for table, what in tables:
            known = table[places]
            if not ((known ^ key) & _WAVE != 0)[known != 0].any():
                continue
            if same is None:
                same = _unchanged(access, places, data)
            yield from self._conflicts(access, places, np.where(same, 0, known), what)
        known = region.written[places]
        region.is_written = True
        region.written[places] = key
        if same is not None and same.any():
            # Whoever stored it, it is there: others may have stored it as their own.
            again = same & self._unordered(known, key)
            region.written[places[again]] = np.broadcast_to(key & ~_WAVE, places.shape)[again]
        lost = (region.written[places] ^ key) & _WAVE != 0
        if lost.any() and not key[0, 0] & _ATOMIC:
            assert data is not None
            yield from self._together(access, places, data)

    def _together(self, access: _Access, places: Array, data: Array) -> Iterator[str]:
        """Waves that store at once to the same places."""
        region = access.region
        parts = data.reshape(*places.shape, -1)
        flat, values = places.reshape(-1), parts.reshape(places.size, -1)
        waves = np.broadcast_to(access.key[:, None] & _WAVE, places.shape).reshape(-1)
        _, first, place = np.unique(flat, return_index=True, return_inverse=True)
        first = first[place.reshape(-1)]
        several = waves != waves[first]
        differ = several & (values != values[first]).any(axis=1)
        if differ.any():
            n = int(differ.argmax())
            yield self._detail(
                access, int(flat[n]), int(waves[first[n]]), "writes at the same time"
            )
        shared = flat[several]
        region.written[shared] = self._time << _SHIFT

    def _conflicts(self, access: _Access, places: Array, known: Array, what: str) -> Iterator[str]:
        """Accesses that are not ordered after those that are known."""
        key = np.broadcast_to(access.key[:, None], places.shape)
        loose = self._unordered(known, key)
        if not loose.any():
            return
        pairs = np.stack([known[loose], key[loose]], axis=1)
        found, first = np.unique(pairs, axis=0, return_index=True)
        for (before, now), n in zip(found.tolist(), first.tolist(), strict=True):
            if not self._learned(before, now):
                yield self._detail(access, int(places[loose][n]), before & _WAVE, what)
                return

    def _unordered(self, known: Array, key: Array) -> Array:
        """Where two waves access, not both atomically, and no barrier is between."""
        wave, mine = known & _WAVE, key & _WAVE
        group = (mine - 1) // self._each
        parted = ((wave - 1) // self._each == group) & (known >> _SHIFT < self._barriers[group])
        loose: Array = (wave != 0) & (wave != mine) & ~parted & (known & key & _ATOMIC == 0)
        return loose

    def _learned(self, before: int, now: int) -> bool:
        """Whether atomic operations and barriers led from one access to another."""
        if not self._order:
            return False
        wave, began = (before & _WAVE) - 1, before >> _SHIFT
        known = self._known.setdefault((wave, began), _Knowledge({wave: began}))
        for time, kind, who, what in self._order[known.events :]:
            if time > began:
                for each, detail in zip(who.tolist(), what.tolist(), strict=True):
                    self._learn(known, time, kind, each, detail)
        known.events = len(self._order)
        return (now & _WAVE) - 1 in known.since

    def _learn(self, known: _Knowledge, time: int, kind: _Event, each: int, detail: int) -> None:
        """What an event of a wave, or of a workgroup at a barrier, changes."""
        since, group = known.since, each // self._each
        if kind == "barrier":
            members = range(each * self._each, (each + 1) * self._each)
            if any(member in since for member in members):
                for member in members:
                    since.setdefault(member, time)
        elif kind == "release":
            if each in since and since[each] < detail:
                known.released.add(each)
        elif kind == "acquire":
            if each in known.heard:
                since.setdefault(each, time)
        else:
            if (detail, group) in known.near:
                since.setdefault(each, time)
            elif detail in known.places:
                known.heard.add(each)
            if each in since:
                known.near.add((detail, group))
            if each in known.released:
                known.places.add(detail)

    def _detail(self, access: _Access, place: int, wave: int, what: str) -> str:
        byte = max(0, place * access.region.unit - access.shift)
        group, one = divmod(wave - 1, self._each)
        (number,) = self.memory.numbers(np.array([access.space.base]))
        return (
            f"byte {byte} of binding {number}, which wave {one} of workgroup {group} {what}: "
            "nothing orders the two"
        )

    def _accesses(
        self, w: Waves, address: Array, lanes: Array | None, size: int, atomic: bool
    ) -> Iterator[_Access]:
        return (access for access, _ in self._pairs(w, address, lanes, size, atomic))

    def _pairs(
        self, w: Waves, address: Array, lanes: Array | None, size: int, atomic: bool
    ) -> Iterator[tuple[_Access, Array | None]]:
        """The accesses of each buffer that may be written, and the lanes of each."""
        self._time += 1
        waves = self._mine if lanes is None else np.nonzero(lanes)[0] + (self._first + 1)
        if not waves.size:
            return
        where = np.broadcast_to(address, w.shape)
        flat = where.reshape(-1) if lanes is None else where[lanes]
        for number in self.memory.numbers(flat):
            region = self._regions.get(number)
            if region is None:
                continue
            space = self.memory.buffers[number]
            at, own, chosen = flat - (space.base + region.first - space.home), waves, lanes
            here = (at >= space.home - region.first) & (at + size <= region.size)
            if not here.all():
                chosen = np.ones(w.shape, bool) if lanes is None else lanes.copy()
                chosen[chosen] = here
                at, own = at[here], own[here]
            key = own + ((self._time << _SHIFT) + _ATOMIC * atomic)
            if atomic:
                self._order.append((self._time, "atomic", own - 1, at + region.first))
            yield _Access(region, space, at, key), chosen


def _regions(memory: Memory) -> dict[int, _Region]:
    """By the number of each buffer that shares memory with one that may be written, their bytes."""
    parts: list[tuple[int, int, list[int]]] = []
    for number, space in sorted(enumerate(memory.buffers), key=lambda each: each[1].home):
        # Units begin at the same bytes in all buffers that share them.
        first, end, numbers = space.home // _UNIT * _UNIT, space.home + space.size, [number]
        if parts and first < parts[-1][1]:
            before, last, others = parts.pop()
            first, end, numbers = before, max(last, end), [*others, number]
        parts.append((first, end, numbers))
    found = {}
    for first, end, numbers in parts:
        if not all(memory.buffers[number].is_read_only for number in numbers):
            found.update(dict.fromkeys(numbers, _Region(first, end - first)))
    return found


def _unchanged(access: _Access, places: Array, data: Array | None) -> Array:
    """The places that have what is stored there."""
    if data is None:
        return np.zeros(places.shape, bool)
    start = access.at - access.shift
    there = access.space.bytes[start[:, None] + np.arange(data.shape[1])]
    return np.asarray((there == data).reshape(*places.shape, -1).all(axis=-1))
