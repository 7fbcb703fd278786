"""Emit the statements of a kernel on tile registers: copy, dot product, decode and finish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import scf, vector

from mxc.dialects import x86
from mxc.dialects.generic import constant
from mxc.kernels.interpret import pieces
from mxc.kernels.language import Array, Do, Kernel
from mxc.kernels.layout import Layout
from mxc.kernels.lowering.index import Number, of, value_of
from mxc.kernels.lowering.memory import LINE, load_tile, row_stride, store_tile
from mxc.kernels.lowering.places import At, CurrentTile, Places

Decode: TypeAlias = Callable[[At, int, Callable[[Number, ir.Value], None]], None]
Store: TypeAlias = Callable[[Sequence[Sequence[ir.Value]], ir.Value, ir.Value], None]


@dataclass(frozen=True)
class TileStatements:
    """Emits the statements of a kernel on tile registers.

    `decode`: called with coordinates, a prefetch distance in elements along K, and a callback;
    passes the number and the value of each register (64 bytes) of the decoded tile of weights to
    the callback. `store`: called with f32 sums [lanes], a row and a first column; finishes and
    stores them. For each register of columns it gets a list of sums: one, or one per half of a
    gate.
    """

    kernel: Kernel
    places: Places
    decode: Decode
    store: Store

    def enter(self, held: Sequence[Array], tile: CurrentTile) -> None:
        """Do nothing: tiles need no preparation."""

    def emit(self, do: Do, tile: CurrentTile) -> None:
        """Emit one statement on a tile."""
        if do.op == "map":
            self._map(do, tile)
            return
        given = replace(do, op="copy") if do.op == "zero" else do
        for offsets in pieces(self.kernel, given, tile.sizes):
            at = tile.moved(offsets)
            if do.op == "decode":
                self._decode(do, at)
            elif do.op == "dot":
                self._dot(do, at)
            else:
                self._copy(do, at)

    def _dot(self, do: Do, at: At) -> None:
        places, names = self.places, (do.out, *do.ins)
        sums, a, b = (places.registers[name][places.key(name, at)] for name in names)
        places.registers[do.out][places.key(do.out, at)] = x86.tile_dot_bf16(sums, a, b)

    def _decode(self, do: Do, at: At) -> None:
        """Store the registers of a decoded tile next to each other, in the layout of the atom."""
        array, places = self.kernel.arrays[do.out], self.places
        if do.atom is None or array.layout != do.atom.layouts[0]:
            raise ValueError(f"{do.out} does not lie as what decodes it writes it")
        start = places.address(do.out, at)
        here = {axis: places.coordinate(axis, at) for axis in {**at, **self.kernel.derived}}
        raw = ir.VectorType.get([LINE], ir.IntegerType.get_signless(8))

        def put(number: Number, found: ir.Value) -> None:
            place = value_of(start + number * LINE)
            vector.store(vector.bitcast(raw, found), places.memory[do.out], [place])

        self.decode(here, do.ahead, put)

    def _copy(self, do: Do, at: At) -> None:
        """Copy tiles between memory and registers, or zero them."""
        out, places = self.kernel.arrays[do.out], self.places
        how = out.layout
        if not do.ins:
            value = x86.tile_zero()
        else:
            source = self.kernel.arrays[do.ins[0]]
            how = out.layout if out.space == "tile" else source.layout
            if source.space == "tile":
                value = places.registers[source.name][places.key(source.name, at)]
            else:
                value = load_tile(
                    places.pointer(source.name),
                    places.address(source.name, at),
                    self._stride(source.name, how),
                    # Tiles in scratch are to stay in the nearest cache.
                    streamed=source.space == "global",
                )
        if out.space == "tile":
            places.registers[out.name][places.key(out.name, at)] = value
        else:
            place = places.address(out.name, at)
            store_tile(value, places.pointer(out.name), place, self._stride(out.name, how))

    def _stride(self, name: str, how: Layout) -> int:
        """Bytes between the rows of a tile with the layout `how` in an array."""
        return row_stride(self.kernel, self.kernel.arrays[name], self.places.region(name), how)

    def _map(self, do: Do, tile: CurrentTile) -> None:
        """Finish and store the results of a tile row by row, in a loop."""
        (name,) = do.ins
        array, places, at = self.kernel.arrays[name], self.places, tile.at
        lanes = 1 << len(array.layout.lane)
        raw = ir.VectorType.get([4 * lanes], ir.IntegerType.get_signless(8))
        sums = ir.VectorType.get([lanes], ir.F32Type.get())
        zero, one = (constant(number, ir.IndexType.get()) for number in (0, 1))
        rows = value_of(places.left("m", tile))
        gated = "h" in array.axes
        registers = [
            [{"n": at["n"] + first, **({"h": half} if gated else {})} for half in range(1 + gated)]
            for first in range(0, tile.sizes["n"], lanes)
        ]
        starts = [[places.address(name, {**at, **one}) for one in each] for each in registers]
        next_row = int(array.address({a: int(a == "m") for a in array.axes}, places.region(name)))
        op = scf.ForOp(zero, rows, one, [])
        with places.scope(), ir.InsertionPoint(op.body):
            row = of(op.induction_variable)
            step = row * (next_row * array.element.bits // 8)
            totals = [
                [
                    vector.bitcast(
                        sums, vector.load(raw, places.memory[name], [value_of(step + start)])
                    )
                    for start in each
                ]
                for each in starts
            ]
            result = places.coordinate("y", {**at, "m": row + at["m"]})
            self.store(totals, value_of(result), value_of(at["n"]))
            scf.YieldOp([])
