"""Operations of lane_interpreter.py on memrefs and addresses: views, pointers, atomic additions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from iree.compiler import ir

from tests.passes.kernels.gpu.lane_program import Operation
from tests.passes.kernels.gpu.lane_values import Array, Memory

#: Bits of an address that are the offset in a memory; the bits above are the memory's number.
_ADDRESS = 40


class LaneAddresses:
    """Operations on memory and its addresses, of `threads` lanes, of which some are `active`."""

    threads: int
    active: Array

    def __init__(self) -> None:
        """Begin with no memory that has an address."""
        self.memories: list[Array] = []

    def amdgpu_fat_raw_buffer_cast(self, op: Operation, memory: Memory) -> list[Any]:
        return [replace(memory, bounded=True)]

    def memref_subview(self, op: Operation, memory: Memory, *given: Array) -> list[Any]:
        """Return the memory from an offset on. Sizes are ignored; a result of lower rank has the
        strides of its type."""
        counts = [int(n) for n in op.attributes["operandSegmentSizes"]]
        dynamic, start = list(given[: counts[1]]), memory.start
        for offset, stride in zip(op.attributes["static_offsets"], memory.strides, strict=True):
            own = dynamic.pop(0)[:, 0].astype(np.int64) if offset < 0 else np.array([offset])
            start = start + own * stride
        strides = memory.strides
        kept, _ = ir.MemRefType(op.results[0].type).get_strides_and_offset()
        if len(kept) < len(strides):
            strides = tuple(kept)
        return [replace(memory, strides=strides, start=start)]

    def memref_collapse_shape(self, op: Operation, memory: Memory) -> list[Any]:
        strides = tuple(ir.MemRefType(op.results[0].type).get_strides_and_offset()[0])
        return [replace(memory, strides=strides)]

    def memref_extract_aligned_pointer_as_index(self, op: Operation, memory: Memory) -> list[Any]:
        """Give the memory a number, and return its first address: no two memories overlap."""
        self.memories.append(memory.data)
        first = np.full((self.threads, 1), len(self.memories) << _ADDRESS, np.uint64)
        return [first + np.asarray(memory.base, np.uint64)]

    def memref_extract_strided_metadata(self, op: Operation, memory: Memory) -> list[Any]:
        """Return memory, offset, size and strides; the size is -1, because no kernel reads it."""
        numbers = (memory.start, np.array([-1]), *([each] for each in memory.strides))
        found = [np.broadcast_to(np.array(n).astype(np.uint64), self.threads) for n in numbers]
        return [memory, *(each[:, None] for each in found)]

    def llvm_inttoptr(self, op: Operation, address: Array) -> list[Any]:
        return [address]

    def llvm_atomicrmw(self, op: Operation, address: Array, number: Array) -> list[Any]:
        """Add to an i32 in memory, one lane after the other; return the numbers before."""
        assert ir.IntegerAttr(op.attributes["bin_op"]).value == 1
        old = np.zeros_like(number)
        for lane in np.flatnonzero(self.active):
            memory, place = divmod(int(address[lane, 0]), 1 << _ADDRESS)
            word = self.memories[memory - 1][place : place + 4].view(np.uint32)
            old[lane] = word[0]
            word += number[lane].astype(np.uint32)
        return [old]

    def llvm_fence(self, op: Operation) -> None:
        """Do nothing: a memory access is complete before the next operation begins."""
