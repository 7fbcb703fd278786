"""Partial sums that the workgroups of a product exchange, where several workgroups share K.

    %y, %parts, %after = flow.dispatch @product(.., %counters)
        {mxc.split_sums = {parts = 1, counters = 4}}

Partial sums and counters are the last results of the dispatch; the program reads only the results
before them.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dispatches import shaped_bytes
from mxc.dialects.samples import Sizes

ATTRIBUTE = "mxc.split_sums"
_PARTS, _COUNTERS = "parts", "counters"


@dataclass(frozen=True)
class SplitSums:
    """`parts`: the number of the result with the partial sums; the next result is the counters.
    `counters`: the number of the operand with the counters, which the dispatch updates in place."""

    parts: int
    counters: int

    def write(self, op: ir.Operation) -> None:
        """Write this record to a dispatch."""
        i64 = ir.IntegerType.get_signless(64)
        numbers = {_PARTS: self.parts, _COUNTERS: self.counters}
        op.attributes[ATTRIBUTE] = ir.DictAttr.get(
            {name: ir.IntegerAttr.get(i64, number) for name, number in numbers.items()}
        )

    @property
    def counted(self) -> int:
        """The number of the result with the counters."""
        return self.parts + 1

    @property
    def results(self) -> tuple[int, int]:
        """The numbers of the results that the program does not read: partial sums and counters."""
        return self.parts, self.counted

    def bytes(self, op: ir.Operation, sizes: Sizes) -> int | None:
        """Bytes of the partial sums, counted once though they are written and read; None where
        sizes are not known."""
        shape = sizes.result(op, self.parts)
        return None if shape is None else shaped_bytes(op.results[self.parts].type, shape)


def read_split_sums(op: ir.Operation) -> SplitSums | None:
    """The record of a dispatch; None without one."""
    if ATTRIBUTE not in op.attributes:
        return None
    found = ir.DictAttr(op.attributes[ATTRIBUTE])
    return SplitSums(*(ir.IntegerAttr(found[name]).value for name in (_PARTS, _COUNTERS)))
