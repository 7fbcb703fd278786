"""Emit the statements of a kernel on vector registers, which hold one column per lane."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.generic import constant
from mxc.kernels.interpret import atom_offsets
from mxc.kernels.language import Array, Do, Kernel
from mxc.kernels.lowering.index import Number, key_of, value_of
from mxc.kernels.lowering.places import CurrentTile, Places

#: Bytes of a lane.
_LANE = 4


@dataclass(frozen=True)
class Vectors(ABC):
    """Emits the statements of a kernel on vector registers.

    Subclasses supply what depends on the instruction set, on the weights and on where activations
    lie. In their methods, `k` is the start of a block along K, `n` a column of the result, and
    `column` a description of a register of columns, as the method `column` returns it.
    """

    kernel: Kernel
    places: Places
    _decoding: dict[str, list[Iterator[ir.Value]]] = field(default_factory=dict, init=False)

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Number of columns of a register."""

    @abstractmethod
    def column(self, e: Number | None, h: Number, n: Number) -> Any:
        """Describe a register of columns by its expert (None without experts), its half of a gate
        and its first column."""

    @abstractmethod
    def decode(self, columns: Sequence[Any], k: Number, ahead: int) -> list[Iterator[ir.Value]]:
        """Return, for each register of columns, an iterator over the operands of the steps of a
        block. An operand is emitted when it is requested, with its part of the prefetches. These
        are for weights `ahead` elements further along K or, past the end of K, at the start of the
        next columns."""

    @abstractmethod
    def operand(self, dwords: ir.Value) -> ir.Value:
        """Convert dwords to an operand of the dot product, without changing bits."""

    @abstractmethod
    def factor(self, column: Any, k: Number) -> ir.Value:
        """The f32 scales of a block of weights."""

    @abstractmethod
    def activations(self, name: str, row: Number, k: Number, step: int = 0) -> ir.Value:
        """Load the entry of array `name` for a row and a block, and broadcast it to all lanes.
        `step`: which step of the block, where the block has an entry for each."""

    @abstractmethod
    def dot(self, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
        """`sums` plus the dot product."""

    @abstractmethod
    def scaled(self, total: ir.Value, sums: ir.Value, factors: Sequence[ir.Value]) -> ir.Value:
        """Add `sums` * `factors`, multiplied in this order, to `total`."""

    @abstractmethod
    def put(self, value: ir.Value, row: Number, n: Number) -> None:
        """Store a register of results."""

    @abstractmethod
    def finish(self, totals: Sequence[ir.Value], row: Number, n: Number) -> ir.Value:
        """Apply the epilogue to totals: one, or the totals of both halves of a gate."""

    @abstractmethod
    def wait(self, value: ir.Value, number: int, n: Number) -> None:
        """Keep a register of results until its block is complete. `number`: row of the tile. `n`:
        first column, relative to the start of the block."""

    @abstractmethod
    def round(self, rows: Sequence[Number], n: Number) -> None:
        """Round and store the complete blocks of the rows of a tile."""

    def enter(self, held: Sequence[Array], tile: CurrentTile) -> None:
        """Compute the coordinates of rows and columns once, at the start of the lifetime of arrays
        that use them."""
        if any(array.space == "register" and "m" in array.axes for array in held):
            for axis in ("r", "y"):
                self._rows(axis, tile)
        if held:
            self._columns(tile)

    def emit(self, do: Do, tile: CurrentTile) -> None:
        """Emit one statement on a tile."""
        makes = {
            "zero": self._zero, "copy": self._copy, "decode": self._decode, "dot": self._dot,
            "scale": self._scale, "map": self._map, "round": self._round,
        }  # fmt: skip
        makes[do.op](do, tile)

    # coordinates

    def _rows(self, axis: str, tile: CurrentTile) -> list[Number]:
        """The coordinate along the derived axis `axis` of each row of a tile."""
        clamped = self.kernel.arrays["Y"].guards.get("m") == "clamped"
        return self.places.rows(axis, tile, clamped=clamped)

    def _cells(self, tile: CurrentTile) -> list[tuple[int, int]]:
        """The half and the first column of each register of a tile."""
        columns = range(0, tile.sizes["n"], self.lanes)
        return [(h, n) for h in range(tile.sizes.get("h", 1)) for n in columns]

    def _columns(self, tile: CurrentTile) -> list[Any]:
        """The description of each register of columns of a tile."""
        at, places = tile.at, self.places

        def make() -> list[Any]:
            e = places.coordinate("e", at) if "e" in self.kernel.derived else None
            half = at.get("h", 0)
            return [self.column(e, half + h, at["n"] + n) for h, n in self._cells(tile)]

        key = ("columns", key_of(at["n"]), tile.sizes["n"])
        return places.remembered(key, make)

    # registers

    def _keys(self, name: str, tile: CurrentTile, m: int, h: int, n: int) -> list[int]:
        """The keys, in `Places.registers`, of the chains of the accumulator at m, h and n."""
        array, region = self.kernel.arrays[name], self.places.region(name)
        first = self.places.key(name, tile.moved({"m": m, "h": h, "n": n}))
        apart = array.count(region) * array.element.bits // 8
        return [first + chain * apart for chain in range(array.copies(region))]

    def _set(self, name: str, tile: CurrentTile, value: ir.Value, *at: int) -> None:
        """Start the sum at `at` (m, h, n) with a value: the first chain gets the value, the others
        zero."""
        if self.kernel.arrays[name].space != "register":
            m, h, n = at
            self._keep(name, tile, 0, value, m=m, h=h, n=n)
            return
        first, *others = self._keys(name, tile, *at)
        registers = self.places.registers[name]
        registers[first] = value
        for key in others:
            registers[key] = self._nothing(name)

    def _nothing(self, name: str) -> ir.Value:
        """A register of zeros of the type of an array of sums."""
        integer = self.kernel.arrays[name].element.name == "i32"
        kind = ir.IntegerType.get_signless(32) if integer else ir.F32Type.get()
        return constant(0 if integer else 0.0, ir.VectorType.get([self.lanes], kind))

    def _total(self, name: str, tile: CurrentTile, *at: int) -> ir.Value:
        """The sum at `at` (m, h, n), over all of its chains. A sum in scratch has one chain."""
        if self.kernel.arrays[name].space != "register":
            m, h, n = at
            place = self._place(name, tile, 0, m=m, h=h, n=n)
            return self._float(vector.load(self._bytes, self.places.memory[name], [place]))
        registers = self.places.registers[name]
        total, *others = (registers[key] for key in self._keys(name, tile, *at))
        for value in others:
            total = total + value
        return total

    @property
    def _bytes(self) -> ir.Type:
        return ir.VectorType.get([_LANE * self.lanes], ir.IntegerType.get_signless(8))

    def _float(self, value: ir.Value) -> ir.Value:
        return vector.bitcast(ir.VectorType.get([self.lanes], ir.F32Type.get()), value)

    # statements

    def _zero(self, do: Do, tile: CurrentTile) -> None:
        for m in range(tile.sizes["m"]):
            for at in self._cells(tile):
                self._set(do.out, tile, self._nothing(do.out), m, *at)

    def _copy(self, do: Do, tile: CurrentTile) -> None:
        """Start sums at an array of the program, or move sums to and from scratch."""
        (name,) = do.ins
        rows = self._rows("r", tile) if self.kernel.arrays[name].space == "global" else []
        starts = [self.activations(name, row, tile.at["k"]) for row in rows]
        for m in range(tile.sizes["m"]):
            for at in self._cells(tile):
                value = starts[m] if starts else self._total(name, tile, m, *at)
                self._set(do.out, tile, value, m, *at)

    def _decode(self, do: Do, tile: CurrentTile) -> None:
        """Decode operands to registers on demand, or decode operands or scales to scratch."""
        array, columns, k = self.kernel.arrays[do.out], self._columns(tile), tile.at["k"]
        if "k" in array.grain:
            for (h, n), column in zip(self._cells(tile), columns, strict=True):
                self._keep(do.out, tile, 0, self.factor(column, k), h=h, n=n)
            return
        made = self.decode(columns, k, do.ahead)
        if array.space == "register":
            self._decoding[do.out] = made
            return
        for number, registers in enumerate(zip(*made, strict=True)):
            for (h, n), found in zip(self._cells(tile), registers, strict=True):
                self._keep(do.out, tile, number, found, h=h, n=n)

    def _keep(self, name: str, tile: CurrentTile, number: int, value: ir.Value, **at: int) -> None:
        """Store register `number` of the fragment at offsets `at` to scratch."""
        place, memory = self._place(name, tile, number, **at), self.places.memory[name]
        vector.store(vector.bitcast(self._bytes, value), memory, [place])

    def _place(self, name: str, tile: CurrentTile, number: int, **at: int) -> ir.Value:
        """The byte offset of register `number` of the fragment at offsets `at`."""
        start = self.places.address(name, tile.moved(at))
        return value_of(start + number * _LANE * self.lanes)

    def _steps(self, do: Do, tile: CurrentTile) -> Iterator[Sequence[ir.Value]]:
        """Yield the operands of each step: decoded on demand, or loaded from scratch. There is one
        for each register of columns."""
        name = do.ins[1]
        if name in self._decoding:
            yield from zip(*self._decoding.pop(name), strict=True)
            return
        for number in range(len(atom_offsets(self.kernel, do, tile.sizes)["k"])):
            yield [self.operand(each) for each in self._kept(name, tile, number)]

    def _kept(self, name: str, tile: CurrentTile, number: int) -> list[ir.Value]:
        """Load register `number` of each register of columns from scratch, as bytes."""
        memory, raw = self.places.memory[name], self._bytes
        places = [self._place(name, tile, number, h=h, n=n) for h, n in self._cells(tile)]
        return [vector.load(raw, memory, [place]) for place in places]

    def _dot(self, do: Do, tile: CurrentTile) -> None:
        registers, cells = self.places.registers[do.out], self._cells(tile)
        rows = list(enumerate(self._rows("r", tile)))
        keys = {(m, *at): self._keys(do.out, tile, m, *at) for m, _ in rows for at in cells}
        for step, weights in enumerate(self._steps(do, tile)):
            for m, row in rows:
                one = self.operand(self.activations(do.ins[0], row, tile.at["k"], step))
                for at, register in zip(cells, weights, strict=True):
                    chains = keys[m, *at]
                    key = chains[step % len(chains)]
                    registers[key] = self.dot(registers[key], register, one)

    def _scale(self, do: Do, tile: CurrentTile) -> None:
        sums, *scales = do.ins
        k, cells = tile.at["k"], self._cells(tile)
        by_column: list[list[ir.Value]] = [[] for _ in cells]
        for name in (name for name in scales if "n" in self.kernel.arrays[name].axes):
            if self.kernel.arrays[name].space == "global":
                by_column = [[self.factor(each, k)] for each in self._columns(tile)]
            else:
                by_column = [[self._float(each)] for each in self._kept(name, tile, 0)]
        by_row = [name for name in scales if "n" not in self.kernel.arrays[name].axes]
        registers = self.places.registers[do.out]
        for m, row in enumerate(self._rows("r", tile)):
            first = [self._float(self.activations(name, row, k)) for name in by_row]
            for (h, n), late in zip(cells, by_column, strict=True):
                total = self._total(sums, tile, m, h, n)
                (key,) = self._keys(do.out, tile, m, h, n)
                registers[key] = self.scaled(registers[key], total, [*first, *late])

    def _map(self, do: Do, tile: CurrentTile) -> None:
        (name,) = do.ins
        halves = range(tile.sizes.get("h", 1))
        for m, row in enumerate(self._rows("y", tile)):
            for n in range(0, tile.sizes["n"], self.lanes):
                totals = [self._total(name, tile, m, h, n) for h in halves]
                column = tile.at["n"] + n
                found = self.finish(totals, row, column)
                if self.kernel.arrays[do.out].space == "global":
                    self.put(found, row, column)
                else:
                    self.wait(found, m, column - self.places.begin(do.out)["n"])

    def _round(self, do: Do, tile: CurrentTile) -> None:
        self.round(self._rows("y", tile), tile.at["n"])
