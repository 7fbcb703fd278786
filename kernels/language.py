"""A kernel: statements on tiles, inside loops that cut the tiles.

    Array     element type, axes, space, layout
    Do        out = op(ins) on the current tile; a Do with an atom runs one machine instruction
              per fragment of the tile
    For       cuts the current tile along an axis; arrays are addressed by coordinates, so that
              no index is written down
    Kernel    sizes, arrays, derived coordinates, the loop nest

A kernel without loops defines the result. Schedule steps (schedule.py) keep a kernel runnable
(interpret.py) and printable (printer.py). A kernel whose statements have atoms can be lowered to
MLIR (lowering/). A local array lives in the innermost loop that contains all of its uses.

The size of an axis need not be a multiple of the steps of its loops, and may be known only at the
call (None). A loop starts no iteration past the end of its axis. The guard of an array says what
happens to the part of the last iteration that is past the end:

    padded    the memory extends past the end; values read there are arbitrary and must not
              influence a result
    masked    nothing is stored there
    clamped   coordinates stop at the last one, which is read again and stored again with an
              equal value
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from mxc.kernels.layout import Layout

#: The empty layout, for an array whose layout is not chosen yet. In memory it means plain row-major
#: order.
NOWHERE = Layout()
#: Where an array is: memory of the program, scratch of a workgroup, tile registers, vector
#: registers.
Space = Literal["global", "stack", "tile", "register"]
#: What happens past the end of an axis: see the module docstring.
Guard = Literal["padded", "masked", "clamped"]
#: What a statement computes. zero: start a sum. decode: turn codes (and scales) into operands.
#: copy: move elements. dot: add a dot product to `out`. scale: add a sum times scales to `out`.
#: map: apply the epilogue. round: quantize results to MX blocks.
Op = Literal["zero", "decode", "copy", "dot", "scale", "map", "round"]
Numbers: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Element:
    """An element type. `numpy`: the dtype that holds an element or a code. `values`: the value of
    each code, None for a type of plain numbers. `excess`: the bias added to signed numbers to store
    them as elements of this unsigned type."""

    name: str
    bits: int
    numpy: Any = field(compare=False)
    values: Numbers | None = field(default=None, compare=False)
    excess: int = 0


@dataclass(frozen=True)
class Chains:
    """How many copies an accumulator has. Dot products add to the copies in turn, so that
    consecutive dot products do not depend on each other.

    `wanted`: number of accumulator registers, over all copies, that hides the latency. `room`: most
    registers that all copies may take. `most`: most copies. `always`: if not 0, the number of
    copies, whatever the other fields say; it is set where the order of the sum depends on it.
    """

    wanted: int = 0
    room: int = 0
    most: int = 4
    always: int = 0

    def __str__(self) -> str:
        """The text in printed kernels: the number of sums wanted, or of copies."""
        if self.always:
            return f"{self.always} of each sum"
        return f"{self.wanted} sums, at most {self.room}"

    def of(self, registers: int) -> int:
        """Number of copies of an accumulator that takes `registers` registers."""
        if self.always:
            return self.always
        room = max(1, self.room // registers)
        return min(self.most, -(-self.wanted // registers), room)


@dataclass(frozen=True)
class Array:
    """An array of a kernel.

    `grain`: number of coordinates along an axis that share an entry, as scales do. `pitch`: number
    of fragments along an axis in memory, where memory holds more than the size needs. `slots`:
    number of coordinates along an axis after which scratch is reused. `guards`: by axis. `chains`:
    copies of accumulators in registers.
    """

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
        """Number of copies of the accumulators of a region of these sizes; 1 without `chains`."""
        if self.chains is None:
            return 1
        return self.chains.of(self.count(sizes) >> len(self.layout.item + self.layout.lane))

    def extent(self, axis: str) -> int:
        """Number of coordinates along an axis that a fragment covers."""
        return self.layout.extent(axis) * self.grain.get(axis, 1)

    def fragments(self, axis: str, size: int) -> int:
        """Number of fragments along an axis in a region of `size` coordinates."""
        size = min(size, self.slots.get(axis, size))
        return self.pitch.get(axis, -(-size // self.extent(axis)))

    def count(self, sizes: Mapping[str, int]) -> int:
        """Number of elements in memory for a region of these sizes."""
        total = 1 << len(self.layout.bits)
        for axis in self.axes:
            total *= self.fragments(axis, sizes[axis])
        return total

    def address(self, at: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
        """The offset, in elements, of coordinates within a region: ints, numpy arrays, or `Index`
        values.

        Fragments lie row-major by `axes`; elements within a fragment lie as the layout says.
        """
        found: Any = 0
        stride = 1 << len(self.layout.bits)
        for axis in reversed(self.axes):
            place, count = at[axis] // self.extent(axis), self.fragments(axis, sizes[axis])
            if sizes[axis] > self.slots.get(axis, sizes[axis]):
                place = place % count
            found = found + place * stride
            stride *= count
        for place, (axis, bit) in enumerate(self.layout.bits):
            inside = at[axis] // self.grain.get(axis, 1) % self.layout.extent(axis)
            found = found + ((inside >> bit) & 1) * (1 << place)
        return found


@dataclass(frozen=True)
class Atom:
    """A machine instruction, or the few that make one step. `layouts`: the layout of the result,
    then of each operand. `run` computes the result as the machine does, on numpy arrays [registers,
    lanes, items], and sees no coordinates. A lowering chooses what to emit by `name`."""

    name: str
    layouts: tuple[Layout, ...]
    run: Callable[..., Numbers] = field(compare=False)


@dataclass(frozen=True)
class Early:
    """When and on which tile a statement runs, if not in every iteration on its own tile. It runs
    only in the last iteration of the innermost loop over `last` around it, and on the tile `by`
    coordinates further along `axis`, if the axis reaches that far. `by` 0: on its own tile."""

    axis: str
    by: int
    last: str


@dataclass(frozen=True)
class Do:
    """One statement: `out` = `op`(`ins`). `ahead`: distance, in elements along K, at which the
    input is prefetched. `early`: set if the statement does not run in every iteration of its loops.
    """

    op: Op
    out: str
    ins: tuple[str, ...] = ()
    atom: Atom | None = None
    ahead: int = 0
    early: Early | None = None

    @property
    def adds(self) -> bool:
        """Whether the statement adds to its result."""
        return self.op in ("dot", "scale")

    @property
    def label(self) -> str:
        """The name of the statement in schedule steps: the result and `=0`, `=` or `+=`."""
        return self.out + ("+=" if self.adds else "=0" if self.op == "zero" else "=")


@dataclass(frozen=True)
class For:
    """A loop. `kind`: serial, one workgroup per iteration ("grid"), or the first iteration alone
    ("first"). `rest`: narrower widths for the last iteration, widest first; a width is used where
    no more coordinates than that are left."""

    axis: str
    by: int
    body: Body
    kind: Literal["serial", "grid", "first"] = "serial"
    rest: tuple[int, ...] = ()

    def width(self, left: int) -> int:
        """Width of an iteration that has `left` coordinates before the end of the axis."""
        return min([self.by, *(rest for rest in self.rest if left <= rest)])


Body: TypeAlias = tuple[Do | For, ...]


@dataclass(frozen=True)
class Derived:
    """A coordinate that is computed from the coordinates of other axes.

    It is `table[group]`, or `group * times` without a table, plus the coordinate `plus`, if any.
    `times` None stands for the size of m. `through`: the name of an array in which the number
    computed so far, plus `behind`, is looked up; its entry is the result. `below`: if not 0, the
    result is at most `below` - 1. `share`: number of consecutive results that map to the same
    coordinate.
    """

    group: str
    times: int | None = 1
    table: str = ""
    plus: str = ""
    through: str = ""
    behind: int = 0
    below: int = 0
    share: int = 1

    def __str__(self) -> str:
        """The coordinate as an expression."""
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
    """A kernel. `sizes`: size of each axis; None for a size that comes with the call or differs by
    group. `derived`: the coordinates that are computed, by axis. `spans`: for each axis whose size
    differs by group, a table and the axis of groups; the size is table[group + 1] - table[group].
    """

    name: str
    sizes: Mapping[str, int | None]
    arrays: Mapping[str, Array]
    body: Body
    derived: Mapping[str, Derived] = field(default_factory=dict)
    spans: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def held(self, body: Body) -> list[Array]:
        """The local arrays whose lifetime is this body: all of their uses are in it, and not in a
        single loop of it."""
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
        """Return this kernel with these arrays, which replace those of the same names."""
        return replace(self, arrays={**self.arrays, **{each.name: each for each in arrays}})


def statements(body: Body) -> Iterator[Do]:
    """Yield every statement of a body and of the loops in it, in order."""
    for each in body:
        if isinstance(each, Do):
            yield each
        else:
            yield from statements(each.body)


def labels(body: Body) -> set[str]:
    """The labels of all statements, by which schedule steps name them."""
    return {do.label for do in statements(body)}


def used(body: Body) -> set[str]:
    """The names of the arrays that are read or written."""
    return {name for do in statements(body) for name in (do.out, *do.ins)}


def uses(body: Body, name: str) -> int:
    """Number of statements that read or write an array."""
    return sum(name in (do.out, *do.ins) for do in statements(body))
