"""Memory: buffers at virtual addresses, and flat local memories (LDS, scratch).

Buffers are used in place, without copies. Each has 64 GiB of address space to itself, so that a
wrong address does not reach another buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError

_SPACING = 36
_FIRST = 1 << 8


class Bytes:
    """Bytes that can be gathered and scattered by index.

    base: the address of the first byte for kernels. home: the host address of the array that they
    represent. is_read_only: the array is read-only, or the compiler states that the kernel does not
    write to it.
    """

    def __init__(self, data: Array, base: int = 0) -> None:
        """data: contiguous uint8, with a length that is a multiple of 4."""
        self.bytes = data
        self.words = data.view(np.uint32)
        self.base = base
        self.home = data.ctypes.data
        self.is_read_only = not data.flags.writeable
        self.size = data.size

    def load(self, index: Array, size: int) -> Array:
        """Load uint32 [..., size // 4] at byte indices; [..., 1] for less than four bytes."""
        if size >= 4 and not (np.bitwise_or.reduce(index, axis=None) & 3):
            if size == 4:
                return self.words.take(index >> 2)[..., None]
            return np.asarray(self.words.take((index >> 2)[..., None] + np.arange(size // 4)))
        raw = self.bytes.take(index[..., None] + np.arange(size))
        if size >= 4:
            return np.asarray(raw.view(np.uint32))
        return np.asarray(raw.view(np.uint8 if size == 1 else np.uint16).astype(np.uint32))

    def store(self, index: Array, values: Array, size: int) -> None:
        """Store uint32 [..., size // 4] (or the low bytes of [..., 1]) at byte indices."""
        if size >= 4 and not (np.bitwise_or.reduce(index, axis=None) & 3):
            self.words[(index >> 2)[..., None] + np.arange(size // 4)] = values
            return
        raw = np.ascontiguousarray(values).view(np.uint8)
        self.bytes[index[..., None] + np.arange(size)] = raw[..., :size]


class Memory:
    """The address space of a kernel: its buffers, its arguments, and its code object."""

    def __init__(self) -> None:
        """Create an empty address space."""
        self._spaces: list[Bytes] = []
        self._image: Bytes | None = None
        self._copies: list[tuple[Array, Array]] = []

    def add(self, data: Array, size: int | None = None, *, is_read_only: bool = False) -> int:
        """Make the bytes of an array addressable; return the address of the first.

        data: any contiguous array, to which stores go directly; where it is not aligned, or its
        length is not a multiple of 4, a copy is used until `finish`. size: number of addressable
        bytes, by default all. is_read_only: see Bytes.
        """
        flat = data.reshape(-1).view(np.uint8)
        used = flat
        if flat.size % 4 or flat.ctypes.data % 4 or not flat.size:
            used = np.zeros((flat.size + 7) // 4 * 4, np.uint8)
            used[: flat.size] = flat
            self._copies.append((flat, used))
        base = (_FIRST + len(self._spaces)) << _SPACING
        space = Bytes(used, base)
        space.home = flat.ctypes.data
        space.is_read_only = is_read_only or not flat.flags.writeable
        space.size = flat.size if size is None else size
        self._spaces.append(space)
        return base

    def add_image(self, data: bytes) -> None:
        """Make the bytes of a code object readable, from address 0."""
        raw = np.frombuffer(data + bytes(-len(data) % 4), np.uint8)
        self._image = Bytes(raw)
        self._image.size = len(data)

    @property
    def buffers(self) -> Sequence[Bytes]:
        """All buffers, in the order in which they were added."""
        return self._spaces

    def numbers(self, address: Array) -> list[int]:
        """Return the numbers of the buffers in whose address space some of the addresses are."""
        low, high = int(address.min()) >> _SPACING, int(address.max()) >> _SPACING
        if low == high:
            return [low - _FIRST]
        return [int(number) - _FIRST for number in np.unique(address >> _SPACING)]

    def _space(self, address: int) -> Bytes | None:
        number = (address >> _SPACING) - _FIRST
        if number == -_FIRST:
            return self._image
        return self._spaces[number] if 0 <= number < len(self._spaces) else None

    def finish(self) -> None:
        """Write back the buffers that could not be used in place."""
        for flat, used in self._copies:
            if flat.flags.writeable:
                flat[:] = used[: flat.size]

    def ranges(self) -> Sequence[tuple[int, int]]:
        """Return first and last address (exclusive) of everything that is addressable."""
        image = [self._image] if self._image else []
        return [(s.base, s.base + s.size) for s in (*image, *self._spaces)]

    def find(self, address: Array, size: int, what: str) -> tuple[Bytes, Array]:
        """Return the one buffer that holds `size` bytes at all addresses, and indices into it.

        address: int64, not empty. what: the access, for messages. Raises SimulationError where an
        address is in no buffer, and _Mixed where the addresses are in more than one.
        """
        low, high = int(address.min()), int(address.max())
        space = self._space(low)
        if space is not None and high + size <= space.base + space.size:
            return space, address - space.base
        if low >> _SPACING != high >> _SPACING and self._valid(address, size):
            raise _Mixed
        bad = next(a for a in address.flat if not self._valid(np.array([a]), size))
        raise SimulationError(
            f"{what} of {size} bytes at 0x{int(bad):x}, outside of every buffer"
            f"{self._near(int(bad))}"
        )

    def _valid(self, address: Array, size: int) -> bool:
        inside = np.zeros(address.shape, bool)
        for first, last in self.ranges():
            inside |= (address >= first) & (address + size <= last)
        return bool(inside.all())

    def _near(self, address: int) -> str:
        number = (address >> _SPACING) - _FIRST
        if 0 <= number < len(self._spaces):
            space = self._spaces[number]
            return f" (byte {address - space.base} of binding {number}, which has {space.size})"
        return ""

    def load(self, address: Array, size: int) -> Array:
        """Load at virtual addresses; see Bytes.load."""
        try:
            space, index = self.find(address, size, "a load")
        except _Mixed:
            return self._each_load(address, size)
        return space.load(index, size)

    def store(self, address: Array, values: Array, size: int) -> None:
        """Store at virtual addresses; see Bytes.store."""
        try:
            space, index = self.find(address, size, "a store")
        except _Mixed:
            for number in np.unique(address >> _SPACING):
                here = address >> _SPACING == number
                self.store(
                    address[here],
                    np.broadcast_to(values, (*address.shape, values.shape[-1]))[here],
                    size,
                )
            return
        if not space.bytes.flags.writeable:
            what = "the code object" if space is self._image else "a buffer that is read-only"
            raise SimulationError(f"a store of {size} bytes to {what}")
        space.store(index, values, size)

    def _each_load(self, address: Array, size: int) -> Array:
        result = np.zeros((*address.shape, max(1, size // 4)), np.uint32)
        for number in np.unique(address >> _SPACING):
            here = address >> _SPACING == number
            result[here] = self.load(address[here], size)
        return result


class _Mixed(Exception):
    """The lanes of an access address more than one buffer."""
