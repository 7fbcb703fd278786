"""Race detection in global memory: the last accesses of each place that a dispatch may write.

Two accesses of a dispatch to one byte are a race if different waves make them, one is a store that
is not atomic, and nothing orders them. Two things order accesses:

- A barrier of the workgroup, if both waves belong to it. A wait is not needed: the waves of a
  workgroup share a vector cache, which processes their accesses in order (LLVM, User Guide for
  AMDGPU Backend, memory model of gfx942, where a workgroup is not split among compute units).
- Atomic operations: accesses of a wave before an atomic are visible to a wave that later does an
  atomic on the same place, and transitively. Loads and stores with a scope beyond the wave (sc0,
  sc1) are atomic. Workgroups may run on dies with separate L2 caches, so between workgroups fences
  are needed too (same document): the first wave releases before its atomic (buffer_wbl2 sc1, then a
  wait for vmcnt(0)), and the second wave acquires after its atomic (buffer_inv sc1).

Plain loads may be concurrent with atomic operations, as in compare-and-swap loops, which begin with
a load. A store of the value that a byte already has is not a race. In the simulator, some waves
end before others begin; this does not order their accesses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from mxc.simulator.compute.operations import Array
from mxc.simulator.memory.spaces import Bytes, Memory
from mxc.simulator.run.state import LANES, Waves

#: An access is encoded as one number: from high to low bits the time, a bit for atomic accesses,
#: and the wave, counted from 1. Wave 0 stands for several waves that stored the same value.
_SHIFT = 24
_ATOMIC = 1 << _SHIFT - 1
_WAVE = _ATOMIC - 1
#: Kinds of events that order accesses.
_Event = Literal["barrier", "atomic", "release", "acquire"]
#: Bytes that share one entry, unless an access is smaller or less aligned.
_UNIT = 16


@dataclass
class _Region:
    """A range of host memory of one or more overlapping buffers of a dispatch.

    For each unit of bytes it keeps the last write, and the last reads of two waves. `is_written`
    and `is_read`: whether there are any.
    """

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
        """Return the units [accesses, units per access] of `size` bytes at offsets [accesses]."""
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
    """Propagation of one access through the first `events` events.

    `since`: the waves that are ordered after it, and from which time on. `released`: the waves that
    have released it. `heard`: the waves that have read a release of it by an atomic, and must still
    acquire. `places`: addresses of atomics that publish it to all. `near`: (address, workgroup) of
    atomics that publish it to a workgroup.
    """

    since: dict[int, int]
    events: int = 0
    released: set[int] = field(default_factory=set)
    heard: set[int] = field(default_factory=set)
    places: set[int] = field(default_factory=set)
    near: set[tuple[int, int]] = field(default_factory=set)


@dataclass(frozen=True)
class _Access:
    """Accesses of some lanes: offsets in a region, and the encoded access (`key`) of each."""

    region: _Region
    space: Bytes
    at: Array
    key: Array

    @property
    def shift(self) -> int:
        """Offset of the buffer in the region."""
        return self.space.home - self.region.first


class GlobalMemory:
    """Access history of the global memory of one dispatch."""

    def __init__(self, memory: Memory) -> None:
        """Start without accesses. Memory that the kernel cannot write is not tracked."""
        self.memory = memory
        self._time = 0
        self._waves = 0
        self._each = 1
        self._barriers: Array = np.zeros(0, np.int64)
        #: Events (time, kind, who, detail): waves and addresses of an atomic, waves of a fence and
        #: the times up to which they release, or workgroups at a barrier.
        self._order: list[tuple[int, _Event, Array, Array]] = []
        self._known: dict[tuple[int, int], _Knowledge] = {}
        self._regions = _regions(memory)

    def start(self, w: Waves) -> None:
        """Begin another batch of workgroups of the dispatch."""
        groups = int(w.workgroup.max()) + 1
        self._each = w.count // groups
        self._first = self._waves
        self._mine = np.repeat(np.arange(w.count), LANES) + (self._first + 1)
        self._waves += w.count
        self._back: Array = np.zeros(w.count, np.int64)
        self._barriers = np.append(self._barriers, np.zeros(groups, np.int64))

    def barrier(self, workgroups: Array) -> None:
        """Record that workgroups of the current batch passed a barrier."""
        self._time += 1
        groups = workgroups + self._first // self._each
        self._barriers[groups] = self._time
        self._order.append((self._time, "barrier", groups, groups))

    def written_back(self, waves: Array) -> None:
        """Record that waves (bool) begin to write back their stores for the device."""
        self._time += 1
        self._back[waves] = self._time

    def waited(self, waves: Array) -> None:
        """Record that waves have waited for all their vector memory, which ends a release."""
        waves = waves & (self._back > 0)
        if waves.any():
            self._fence("release", waves, self._back[waves])
            self._back[waves] = 0

    def acquired(self, waves: Array) -> None:
        """Record that waves have invalidated their caches, an acquire."""
        self._fence("acquire", waves, self._back[waves])

    def _fence(self, kind: _Event, waves: Array, times: Array) -> None:
        self._time += 1
        self._order.append((self._time, kind, np.flatnonzero(waves) + self._first, times))

    def load(
        self, w: Waves, address: Array, lanes: Array | None, size: int, *, atomic: bool
    ) -> Iterator[str]:
        """Record a read of `size` bytes at addresses [waves, 64]; yield its races."""
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
        """Record a write of uint32 [waves, 64, registers]; yield its races."""
        words = np.broadcast_to(values, (*w.shape, values.shape[-1]))
        for access, chosen in self._pairs(w, address, lanes, size, atomic):
            those = words.reshape(-1, words.shape[-1]) if chosen is None else words[chosen]
            data = np.ascontiguousarray(those).view(np.uint8)[:, :size]
            yield from self._write(access, size, data)

    def change(self, w: Waves, address: Array, lanes: Array | None, size: int) -> Iterator[str]:
        """Record an atomic operation, which reads and writes; yield its races."""
        for access in self._accesses(w, address, lanes, size, True):
            yield from self._write(access, size, None)

    def _write(self, access: _Access, size: int, data: Array | None) -> Iterator[str]:
        """Record a write; data: uint8 [accesses, size], None for a value that always differs."""
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
            # Several waves have stored this value, so no particular wave owns it.
            again = same & self._unordered(known, key)
            region.written[places[again]] = np.broadcast_to(key & ~_WAVE, places.shape)[again]
        lost = (region.written[places] ^ key) & _WAVE != 0
        if lost.any() and not key[0, 0] & _ATOMIC:
            assert data is not None
            yield from self._together(access, places, data)

    def _together(self, access: _Access, places: Array, data: Array) -> Iterator[str]:
        """Yield races among waves that store to the same places in one instruction."""
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
        """Yield a race of the access with a known one that is not ordered before it."""
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
        """Return where different waves access, not both atomically, without a barrier between."""
        wave, mine = known & _WAVE, key & _WAVE
        group = (mine - 1) // self._each
        parted = ((wave - 1) // self._each == group) & (known >> _SHIFT < self._barriers[group])
        loose: Array = (wave != 0) & (wave != mine) & ~parted & (known & key & _ATOMIC == 0)
        return loose

    def _learned(self, before: int, now: int) -> bool:
        """Whether atomics, fences and barriers order one access before another."""
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
        """Update `known` for an event of a wave, or of a workgroup at a barrier."""
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
        """Yield the accesses to each buffer that may be written, and the lanes of each."""
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
    """Return the region of each buffer that shares memory with a writable one, by its number."""
    parts: list[tuple[int, int, list[int]]] = []
    for number, space in sorted(enumerate(memory.buffers), key=lambda each: each[1].home):
        # Aligned, so that overlapping buffers share units.
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
    """Return the places that already hold the stored values."""
    if data is None:
        return np.zeros(places.shape, bool)
    start = access.at - access.shift
    there = access.space.bytes[start[:, None] + np.arange(data.shape[1])]
    return np.asarray((there == data).reshape(*places.shape, -1).all(axis=-1))
