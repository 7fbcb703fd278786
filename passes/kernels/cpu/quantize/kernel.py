"""Quantize floats to MX blocks in one kernel, which reads each float and writes each byte once.

A block of 32 is contiguous in memory wherever rows end, so the tensor is treated as one row of
blocks. A group of as many blocks as a register has lanes is processed at a time: their largest
magnitudes are one register, their scales another. Then each block is read again, from the nearest
cache, and rounded with its own constants. Blocks for which the quick method of rounding.py is exact
are called ordinary.

    for group of blocks:
      amax, bytes          one block per lane                        largest.py
      if all are ordinary: for block: codes by one addition each     rounding.py
      else, or too few:    for block: amax, byte, codes in integers
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.passes.kernels.cpu.isa import Isa
from mxc.passes.kernels.cpu.quantize.blocks import largest_of
from mxc.passes.kernels.cpu.quantize.halves import Halves, packed
from mxc.passes.kernels.cpu.quantize.largest import merged
from mxc.passes.kernels.cpu.quantize.rounding import Rounding, RoundingConstants
from mxc.passes.kernels.cpu.quantize.sources import BlockSource, SourceReader
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, named, product, quotient_up, value_of
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import broadcast, equal, i1, i8, i32, index, loop, of, scratch, when

#: Approximate number of blocks per workgroup: long compared with a dispatch, and enough workgroups
#: for all threads.
_BLOCKS_A_WORKGROUP = 1024

#: Prefetch distance in bytes. Each group is read twice, in two patterns that the hardware
#: prefetcher does not follow.
_AHEAD = 8 << 10

#: Elements of a half, see halves.py.
_HALF = BLOCK // 2


@dataclass(frozen=True)
class CpuQuantize(Sized):
    """The kernel that quantizes `blocks` blocks of `source`."""

    isa: Isa
    rounding: Rounding
    source: BlockSource
    blocks: Size

    @property
    def name(self) -> str:
        """The symbol of the kernel, equal for kernels that do the same."""
        size = named(product(self.blocks, BLOCK))
        return f"mxc_quantize_{self.source.kind}_{self.rounding.name}_{size}"

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups along the blocks."""
        return [quotient_up(self.blocks, _BLOCKS_A_WORKGROUP)]

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers of the source, then packed elements and scales."""
        size = self.rounding.format.block_bytes
        made = [Buffer([self.blocks, size], i8()), Buffer([self.blocks], i8())]
        return [*self.source.buffers(self.blocks), *made]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        *read, elements, scales = buffers
        lanes = self.isa.lanes
        reader = self.source.reader(read, lanes)
        work = _Work(self, reader, elements, scales, _constants(lanes))
        first = workgroup(0) * _BLOCKS_A_WORKGROUP
        last = arith.minui(first + _BLOCKS_A_WORKGROUP, value_of(self.blocks))
        with loop(first, last, index(lanes)) as (block, _, _):
            stop = arith.minui(block + lanes, last)
            whole = equal(stop - block, lanes)
            quick = scf.IfOp(whole, [i1()], has_else=True)
            with ir.InsertionPoint(quick.then_block):
                scf.YieldOp([work.group(block)])
            with ir.InsertionPoint(quick.else_block):
                scf.YieldOp([whole])
            slow = quick.results[0] ^ _true()
            with when(slow), loop(block, stop, index(1)) as (one, _, _):
                work.single(one)


@dataclass(frozen=True)
class _Work:
    """The buffers of a running kernel. `constants`: scratch for the constants of a group."""

    kernel: CpuQuantize
    reader: SourceReader
    elements: ir.Value
    scales: ir.Value
    constants: ir.Value

    def group(self, block: ir.Value) -> ir.Value:
        """Quantize a group of blocks, one per lane, if all are ordinary. Return whether they are,
        i1."""
        rounding, lanes = self.kernel.rounding, self.kernel.isa.lanes
        floats, first = self.reader.group(block)
        parts = [floats.part(first + lane, lanes) for lane in range(lanes)]
        amax = floats.magnitudes(merged(parts, floats.greater))
        byte = rounding.scale(amax)
        # In decoded blocks, the product of a small element and a small scale may have been flushed
        # to zero, so that amax 0 does not mean zeros.
        zeros = self.kernel.source.format is None
        quick, constants = rounding.ordinary(amax, byte, zeros=zeros)
        found = vector.reduction(i1(), vector.CombiningKind.AND, quick)
        with when(found):
            vector.store(arith.trunci(of(i8(), lanes), byte), self.scales, [block])
            for number, constant in enumerate(constants.values):
                vector.store(constant, self.constants, [index(number), index(0)])
            with loop(index(0), index(lanes), index(1)) as (lane, _, _):
                read = [
                    broadcast(self.constants, [index(number), lane], _HALF)
                    for number in range(len(constants.values))
                ]
                halves = floats.halves(first + lane)
                ahead = index(_AHEAD // self.kernel.source.block_bytes)
                self.reader.ask_for(block + (lane + ahead))
                known = RoundingConstants(*read)
                codes = [rounding.quick(half, known) for half in halves]
                signs = halves if rounding.format.element.exponent else None
                self._store(block + lane, (codes[0], codes[1]), signs)
        return found

    def single(self, block: ir.Value) -> None:
        """Quantize one block, whatever its values are."""
        rounding = self.kernel.rounding
        halves = self.reader.one(block)
        byte = rounding.scale(largest_of(halves))
        memref.StoreOp(arith.trunci(i8(), byte), self.scales, [block])
        bytes_ = vector.broadcast(of(i32(), _HALF), byte)
        first, second = (rounding.exact(half, bytes_) for half in halves)
        self._store(block, (first, second), None)

    def _store(self, block: ir.Value, codes: Halves, signs: Halves | None) -> None:
        raw = packed(codes, signs, self.kernel.rounding.format.element)
        vector.store(raw, self.elements, [block, index(0)])


def _constants(lanes: int) -> ir.Value:
    """Scratch for the constants of a group."""
    return scratch([3, lanes], i32())


def _true() -> ir.Value:
    return arith.ConstantOp(i1(), ir.BoolAttr.get(True)).result
