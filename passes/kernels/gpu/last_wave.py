"""The wave that is done last of several that leave something for each other in memory.

    release; count = counter, which becomes one more
    if all others have counted: acquire; ..

Waves are on several XCDs of gfx942 and gfx950, each of which has an L2 of its own. What a wave
stored is in the L2 of its XCD; a load may find older bytes in its own L1 and L2. LLVM's memory
model (User Guide for AMDGPU Backend) has these instructions for scope "agent":

    fence release      buffer_wbl2 sc1, s_waitcnt vmcnt(0)      L2 written back, and waited for
    atomicrmw          global_atomic_add .. sc0                 past L1; sc1 is for the system alone
    fence acquire      buffer_inv sc1                           L1, and what is not coherent in L2

A wave waits for the stores of all of its lanes, so that one lane counts. The fences are no part of
the atomic: only the last wave acquires, and each releases once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from iree.compiler import ir
from iree.compiler.dialects import rocdl

from mxc.dialects.amdgpu import added, fence
from mxc.dialects.generic import constant
from mxc.passes.kernels.vectors import choose, equal, i32, when


@contextmanager
def last_wave(
    counters: ir.Value, place: ir.Value, lane: ir.Value, others: ir.Value
) -> Iterator[None]:
    """Build what the wave does that counts after so many `others`, an i32: it sees their stores.

    `counters`: i32 [n] in global memory; `place`: of the counter of these waves, zero at first;
    `lane`: an index.
    """
    fence("release")

    def count_this() -> list[ir.Value]:
        return [added(counters, place, constant(1, i32()))]

    (before,) = choose(equal(lane, 0), count_this, [constant(0, i32())])
    before = rocdl.readfirstlane(i32(), before)
    with when(equal(before, others)):
        fence("acquire")
        yield
