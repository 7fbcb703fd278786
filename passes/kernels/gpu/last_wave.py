"""Code for the last of several waves that have stored something, which reads all of it.

    release; count = counter, and counter += 1
    if all others have counted: acquire; ..

On gfx942 and gfx950, the waves may be on several XCDs, each of which has an L2 of its own. What a
wave stores is in the L2 of its XCD, and a load of another wave may find older bytes in its own L1
and L2. LLVM's memory model (User Guide for AMDGPU Backend) has these instructions for scope
"agent":

    fence release      buffer_wbl2 sc1, s_waitcnt vmcnt(0)      L2 written back, and waited for
    atomicrmw          global_atomic_add .. sc0                 past L1; sc1 is for the system alone
    fence acquire      buffer_inv sc1                           L1, and what is not coherent in L2

The release waits for the stores of all lanes of the wave, so it is enough that one lane counts. The
fences are no part of the atomic, because only the last wave acquires, and each wave releases once.
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
    """Build, in the body of this context, what only the last wave does. It sees all stores.

    It is the wave that counts after `others` other waves, an i32. `counters`: i32 [n] in global
    memory. `place`: the index of the counter of these waves, which is zero at first. `lane`: the
    number of the lane in its wave, an index.
    """
    fence("release")

    def count_this() -> list[ir.Value]:
        return [added(counters, place, constant(1, i32()))]

    (before,) = choose(equal(lane, 0), count_this, [constant(0, i32())])
    before = rocdl.readfirstlane(i32(), before)
    with when(equal(before, others)):
        fence("acquire")
        yield
