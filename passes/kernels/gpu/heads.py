"""Store the result of a product that is queries, keys and values: rotate queries and keys, and
write keys and values to their pages.

The two elements of a rotary pair are half a head apart. So a kernel computes the columns in halves,
as for a gate, and a lane has both elements of its pairs:

    column c of a half        pair c % (D / 2) of head c / (D / 2); a head has D elements
    its columns of rhs        c / (D / 2) * D + c % (D / 2), and that column + D / 2

The heads are those of queries, then of keys, then of values, which are not rotated. Results are the
same, to the bit, as those of the separate kernel that rotates rows (rotary_writes.py).

Where pages have blocks of 32 with a scale, all columns of a block are stored together: a lane has
quads of them in one tile of 32 columns or in two of 16, and lanes of other groups have the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.amdgpu import no_reordering
from mxc.dialects.amdgpu_narrow import exchanged
from mxc.dialects.pages import RECIPE, page_format
from mxc.dialects.rotary_writes import RotaryWrite, rotary_write_of
from mxc.dialects.slices import columns_in
from mxc.passes.kernels.gpu.conversions import BlockConversion
from mxc.passes.kernels.gpu.fragments import BLOCK, QUAD, TileInstruction
from mxc.passes.kernels.rotary_writes import RotaryKernel, RotaryRow
from mxc.passes.kernels.vectors import below, bitcast, choose, concat, equal, i8, when


def heads_of(value: ir.Value, wave: int) -> tuple[RotaryWrite, RotaryKernel] | None:
    """Return the only reader of a result [T, N], if it is a rotary write that the kernel of the
    product can compute, and the kernel that describes it; else None. `wave`: lanes of a wave."""
    readers = {use.owner.operation for part in _slices(value) for use in part.uses}
    write = rotary_write_of(readers.pop()) if len(readers) == 1 else None
    if write is None:
        return None
    kernel = RotaryKernel.of(write, QUAD, wave)
    if not isinstance(kernel, RotaryKernel):
        return None
    rotation, counts = kernel.rotation, (kernel.queries, kernel.heads, kernel.heads)
    firsts = [sum(counts[:part]) * rotation.depth for part in range(len(counts))]
    parts = [columns_in(each) for each in (write.queries, write.keys, write.values)]
    whole = sum(counts) * rotation.depth == ir.RankedTensorType(value.type).shape[-1]
    apart = 2 * rotation.distance == 2 * rotation.pairs == rotation.depth
    if parts != [(value, first) for first in firsts] or not whole or not apart:
        return None
    # Half a head has to be whole tiles, of 32 columns as of 16.
    return None if rotation.distance % BLOCK else (write, kernel)


def _slices(value: ir.Value) -> list[ir.Value]:
    """Return the slices that are read of a tensor; none if anything else reads it."""
    readers = [use.owner.operation for use in value.uses]
    if any(each.name != "tensor.extract_slice" for each in readers):
        return []
    return [each.results[0] for each in readers]


class HeadQuads:
    """Quads of one row and one head of the result: four columns from each of `columns` on.

    `columns`: in a half. `head`: the number of the head, of queries, keys and values. `buffers`:
    those of `kernel` from the cosines on (RotaryRow).
    """

    def __init__(
        self,
        kernel: RotaryKernel,
        buffers: Sequence[ir.Value],
        row: ir.Value,
        head: ir.Value,
        columns: Sequence[ir.Value],
    ) -> None:
        """Load the cosines and sines of the pairs, at the insertion point."""
        self._kernel, self._head = kernel, head
        self._pairs = [column % kernel.rotation.distance for column in columns]
        self._row = RotaryRow(kernel, buffers, row)
        # Loaded for values too: beside the loads of the epilogue, so that all are waited for once.
        self._angles = [self._row.angles(pair, QUAD) for pair in self._pairs]

    def store(self, quads: Sequence[Sequence[ir.Value]]) -> None:
        """Rotate and store `quads`, where pages have no blocks. `quads`: for each of `columns` the
        first and the second elements of four pairs, f32 [4] each."""
        turned = self._turned(quads)
        self._store_queries(turned)
        for part, own in self._kept():
            with when(below(own, self._kernel.heads)):
                for element, value in self._in_order(turned):
                    self._row.store_in_page(part, own, element, value)

    def store_blocks(
        self,
        quads: Sequence[Sequence[ir.Value]],
        instruction: TileInstruction,
        group: ir.Value,
        inside: ir.Value,
    ) -> None:
        """Rotate and store `quads`, where pages are MX blocks. Lanes of all groups have quads of
        the same two blocks, one in each half of the head.

        All lanes of the wave have to run, and have the same head. `group`: the group of the lane.
        `inside`: whether the lane stores.
        """
        turned = self._turned(quads)
        with when(inside):
            self._store_queries(turned)
        format = page_format(self._kernel.element)
        assert format is not None
        conversion = BlockConversion(format, RECIPE, converts=False)
        for part, own in self._kept():
            with when(below(own, self._kernel.heads)):
                for half in range(2):
                    block = self._in_order(turned, half)
                    self._store_block(part, own, block, conversion, instruction, (group, inside))

    def _store_block(
        self,
        part: int,
        head: ir.Value,
        block: Sequence[tuple[ir.Value, ir.Value]],
        conversion: BlockConversion,
        instruction: TileInstruction,
        lane: tuple[ir.Value, ir.Value],
    ) -> None:
        """Convert a block and store it. `block`: this lane's quads of it, each by its first element
        in the head. `lane`: the group of the lane, and whether it stores."""
        group, inside = lane
        unit = instruction.unit
        distances = [each for each in (16, 32) if instruction.rows <= each < unit.lanes]

        def across(largest: ir.Value) -> ir.Value:
            for distance in distances:
                largest = arith.maxsi(*exchanged(largest, distance, unit))
            return largest

        byte = conversion.scale(concat([values for _, values in block]), across)
        with when(inside):
            for element, values in block:
                codes = bitcast(conversion.elements(values, byte), i8(), QUAD)
                self._row.store_bytes(part, head, element, codes)
                # The conditions of all elements at once would take too many scalar registers.
                no_reordering()
            with when(equal(group, 0)):
                self._row.store_scale(part, head, block[0][0], byte)

    def _turned(self, quads: Sequence[Sequence[ir.Value]]) -> list[ir.Value]:
        """Return the quads as one list, rotated unless the head is one of values."""
        kernel = self._kernel

        def rotated() -> Iterator[ir.Value]:
            for pair, angles in zip(quads, self._angles, strict=True):
                yield from kernel.rotation.of_pairs(pair, angles)

        flat = [each for pair in quads for each in pair]
        return choose(below(self._head, kernel.queries + kernel.heads), rotated, flat)

    def _in_order(
        self, turned: Sequence[ir.Value], half: int | None = None
    ) -> list[tuple[ir.Value, ir.Value]]:
        """Return each quad with the place of its first element in the head. `half`: only the quads
        of that half of the head."""
        apart = self._kernel.rotation.distance
        return [
            (pair + apart if number else pair, turned[2 * quad + number])
            for quad, pair in enumerate(self._pairs)
            for number in range(2)
            if half in (None, number)
        ]

    def _store_queries(self, turned: Sequence[ir.Value]) -> None:
        """Store quads if the head is one of queries, and the zero of the head (RotaryKernel)."""
        head = self._head
        with when(below(head, self._kernel.queries)):
            for element, value in self._in_order(turned):
                self._row.store_query(head, element, value)
            with when(equal(self._pairs[0], 0)):
                self._row.zero(head)

    def _kept(self) -> Iterator[tuple[int, ir.Value]]:
        """Yield 0 for keys and 1 for values, each with the number of the head among them; the
        number is not below that of these heads if the head is none of them."""
        for part in range(2):
            # Unsigned: a head before the first of these is none of them.
            yield part, self._head - (self._kernel.queries + part * self._kernel.heads)
