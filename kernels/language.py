"""A kernel: statements on tiles, in loops that cut the tiles.

    Array     element type, axes, space, layout
    Do        out = op(ins) on the current tile; with an atom, a machine instruction at a time
    For       cuts the current tile along an axis; an array knows its coordinates, so that no index
              is written down
    Kernel    sizes, arrays, derived coordinates, the nest

Without a loop a kernel is the definition of what it computes. Schedule steps (schedule.py) keep it
runnable (interpret.py) and printable (printer.py); a kernel whose statements have atoms is lowered
(lowering/). A local array lives in the innermost loop that holds all of its uses.

A size may be no multiple of the steps of its loops, and may come with the call (None). Loops begin
no iteration past the end of an axis. What an iteration has too much is the guard of an array:

    padded    memory goes on; what is read there is any number, and must not matter
    masked    nothing is stored there
    clamped   what is there is the last one again, and equal where it is stored
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from mxc.kernels.layout import Layout

#: The layout of what is not in an order of bits yet.
NOWHERE = Layout()
#: Where an array is: memory of the program, scratch of a workgroup, tile or vector registers.
Space = Literal["global", "stack", "tile", "register"]
Guard = Literal["padded", "masked", "clamped"]
Op = Literal["zero", "decode", "copy", "dot", "scale", "map", "round"]
Numbers: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Element:
    """A type of elements. `values`: of each code, where they are codes; None for numbers. `excess`:
    what is added to numbers that become such elements, where these have no sign."""

    name: str
    bits: int
    numpy: Any = field(compare=False)
    values: Numbers | None = field(default=None, compare=False)
    excess: int = 0


@dataclass(frozen=True)
class Chains:
    """Copies of sums that dot products take alternately, so that they need not wait for each other:
    `wanted` registers of sums in all, and no more than `room`."""

    wanted: int
    room: int
    most: int = 4

    def of(self, registers: int) -> int:
        """How many of so many registers."""
        room = max(1, self.room // registers)
        return min(self.most, -(-self.wanted // registers), room)


@dataclass(frozen=True)
class Array:
    """`grain`: coordinates along an axis that share an entry. `pitch`: fragments along an axis in
    memory, where there are more than the size asks for. `slots`: coordinates along an axis after
    which scratch is used again. `guards`: by axis. `chains`: copies of sums in registers."""

    name: str
    element: Element
    axes: tuple[str, ...]
    space: Space = "stack"
    layout: Layout = NOWHERE
    grain: Mapping[str, int] = field(default_factory=dict)
    pitch: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    guards: Mapping[str, Guard] = field(default_factory=dict)
    chains: Chains | None = None

    def copies(self, sizes: Mapping[str, int]) -> int:
        """Chains of sums of a region."""
        if self.chains is None:
            return 1
        return self.chains.of(self.count(sizes) >> len(self.layout.item + self.layout.lane))

    def extent(self, axis: str) -> int:
        """Coordinates of a fragment along an axis."""
        return self.layout.extent(axis) * self.grain.get(axis, 1)

    def fragments(self, axis: str, size: int) -> int:
        """How many there are along an axis in a region of `size` coordinates."""
        size = min(size, self.slots.get(axis, size))
        return self.pitch.get(axis, -(-size // self.extent(axis)))

    def count(self, sizes: Mapping[str, int]) -> int:
        """Elements in memory of a region."""
        total = 1 << len(self.layout.bits)
        for axis in self.axes:
            total *= self.fragments(axis, sizes[axis])
        return total

    def address(self, at: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
        """The place, in elements, of coordinates in a region: numbers, arrays of them, or `Index`.

        Fragments lie row-major by `axes`, an element of one as its layout says.
        """
        again = {a: by for a, by in self.slots.items() if sizes[a] > by}
        at = {**at, **{axis: at[axis] % by for axis, by in again.items()}}
        found: Any = 0
        stride = 1 << len(self.layout.bits)
        for axis in reversed(self.axes):
            found = found + (at[axis] // self.extent(axis)) * stride
            stride *= self.fragments(axis, sizes[axis])
        for place, (axis, bit) in enumerate(self.layout.bits):
            inside = at[axis] // self.grain.get(axis, 1) % self.layout.extent(axis)
            found = found + ((inside >> bit) & 1) * (1 << place)
        return found


@dataclass(frozen=True)
class Atom:
    """A machine instruction, or the few that make one step. `layouts`: of the result, then of each
    operand. `run` computes it on numpy arrays [registers, lanes, items] as the machine does; it
    sees no coordinate. A lowering knows what to emit by its name."""

    name: str
    layouts: tuple[Layout, ...]
    run: Callable[..., Numbers] = field(compare=False)


@dataclass(frozen=True)
class Do:
    """One statement. `ahead`: elements along k that the input is asked for before its use."""

    op: Op
    out: str
    ins: tuple[str, ...] = ()
    atom: Atom | None = None
    ahead: int = 0

    @property
    def adds(self) -> bool:
        """Whether it adds to its result."""
        return self.op in ("dot", "scale")

    @property
    def label(self) -> str:
        """What a schedule calls it."""
        return self.out + ("+=" if self.adds else "=0" if self.op == "zero" else "=")


@dataclass(frozen=True)
class For:
    """`kind`: serial, or a workgroup per iteration. `rest`: where no more than so much is left, the
    last iteration is only this wide; several, the widest first."""

    axis: str
    by: int
    body: Body
    kind: Literal["serial", "grid"] = "serial"
    rest: tuple[int, ...] = ()

    def width(self, left: int) -> int:
        """Width of an iteration where so much is left."""
        return min([self.by, *(rest for rest in self.rest if left <= rest)])


Body: TypeAlias = tuple[Do | For, ...]


@dataclass(frozen=True)
class Derived:
    """A coordinate that follows from others: `table[group]` or `group * times`, plus `plus`, and
    the entry of the array `through` at that place, `behind` entries later; at most `below` - 1.
    `share`: so many consecutive ones are the same."""

    group: str
    times: int | None = 1
    table: str = ""
    plus: str = ""
    through: str = ""
    behind: int = 0
    below: int = 0
    share: int = 1

    def __str__(self) -> str:
        """As an expression."""
        times = "size of m" if self.times is None else str(self.times)
        start = f"{self.table}[{self.group}]" if self.table else f"{self.group} * {times}"
        if self.times == 1 and not self.table:
            start = self.group
        text = start + (f" + {self.plus}" if self.plus else "")
        begin = f"{self.behind} + " if self.behind else ""
        text = f"{self.through}[{begin}{text}]" if self.through else text
        if self.share > 1:
            text = f"({text}) / {self.share}"
        return text + (f", at most {self.below - 1}" if self.below else "")


@dataclass(frozen=True)
class Kernel:
    """`sizes` of axes; None comes with the call, or, of an axis in `spans`, differs by group: it is
    table[group + 1] - table[group]."""

    name: str
    sizes: Mapping[str, int | None]
    arrays: Mapping[str, Array]
    body: Body
    derived: Mapping[str, Derived] = field(default_factory=dict)
    spans: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def held(self, body: Body) -> list[Array]:
        """The local arrays that live in exactly this body."""
        found = []
        for array in self.arrays.values():
            if array.space == "global":
                continue
            inside = [each for each in body if array.name in used((each,))]
            deeper = len(inside) == 1 and isinstance(inside[0], For)
            if inside and not deeper and uses(body, array.name) == uses(self.body, array.name):
                found.append(array)
        return found

    def summed(self, do: Do) -> list[str]:
        """The axes over which a statement sums."""
        own = set(self.arrays[do.out].axes)
        derived = [self.derived[axis] for axis in own & set(self.derived)]
        own |= {axis for each in derived for axis in (each.group, each.plus)}
        return [
            axis
            for axis in self.sizes
            if axis not in own and any(axis in self.arrays[name].axes for name in do.ins)
        ]

    def with_arrays(self, *arrays: Array) -> Kernel:
        """This kernel with other arrays of these names."""
        return replace(self, arrays={**self.arrays, **{each.name: each for each in arrays}})


def statements(body: Body) -> Iterator[Do]:
    """Every statement, in order."""
    for each in body:
        if isinstance(each, Do):
            yield each
        else:
            yield from statements(each.body)


def labels(body: Body) -> set[str]:
    """What schedules call them."""
    return {do.label for do in statements(body)}


def used(body: Body) -> set[str]:
    """The names of the arrays that are read or written."""
    return {name for do in statements(body) for name in (do.out, *do.ins)}


def uses(body: Body, name: str) -> int:
    """How many statements read or write an array."""
    return sum(name in (do.out, *do.ins) for do in statements(body))
