"""One product that is cut up in several ways: which one it is depends on the rows of a call.

    switch on the rows: 0 .. 47, 48 .. 319, 320 ..
      the body of a kernel for each

As a kernel this would take the registers and the shared memory of the largest. So each body becomes
a kernel of its own, which mxc-split-kernels does where the host program can choose between them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.passes.kernels.executables import Cases, Threads, switch_below
from mxc.passes.kernels.extents import Buffer, Size, value_of
from mxc.passes.kernels.gpu.contraction import GpuContraction
from mxc.passes.kernels.gpu.ring.split import COUNTERS, split_buffers
from mxc.passes.kernels.vectors import below


@dataclass(frozen=True)
class ByRows:
    """`kernels`: one more than there are `bounds`; number n is for rows less than bound n.

    They differ in their schedules. The rows of a call are its last scalar.
    """

    kernels: Sequence[GpuContraction]
    bounds: Sequence[int]

    def __post_init__(self) -> None:
        """Raise ValueError where a kernel may have more tiles than there are counters."""
        for kernel, bound in zip_longest(self.kernels, self.bounds):
            if kernel.splits == 1:
                continue
            rows = kernel.rows if isinstance(kernel.rows, int) else bound
            most = replace(kernel, rows=rows).split_tiles.counters
            if most is None or most > COUNTERS:
                raise ValueError(
                    f"{kernel.schedule}: some rows have more than {COUNTERS} tiles of waves"
                )

    @property
    def scalars(self) -> int:
        """How many index values come with each call."""
        return self.kernels[0].scalars

    @property
    def threads(self) -> Threads:
        """Threads of the kernel for the fewest rows."""
        return _threads(self.kernels[0])

    @property
    def cases(self) -> Cases | None:
        """What the kernels are to be made of, if they are several."""
        if not self.bounds:
            return None
        return Cases(
            bounds=self.bounds,
            threads=[_threads(kernel) for kernel in self.kernels],
        )

    def given(self, scalars: Sequence[ir.Value]) -> ByRows:
        """This kernel for so many groups or rows."""
        return replace(self, kernels=[kernel.given(scalars) for kernel in self.kernels])

    @property
    def counts(self) -> bool:
        """Whether a kernel has workgroups that share K: then counters come before the results, and
        parts after them."""
        return any(kernel.splits > 1 for kernel in self.kernels)

    @property
    def buffers(self) -> list[Buffer]:
        """What is read and written."""
        first, *_ = self.kernels
        if not self.counts:
            return first.buffers
        # A tensor of no elements would be no buffer.
        each = [k.split_tiles.elements if k.splits > 1 else 1 for k in self.kernels]
        return split_buffers(first.operands, first.results, self._by_rows(each))

    @property
    def workgroups(self) -> list[Size]:
        """Along columns, rows and groups."""
        counts = [kernel.workgroups for kernel in self.kernels]
        return [self._by_rows(each) for each in zip(*counts, strict=True)]

    def _by_rows(self, sizes: Sequence[Size]) -> Size:
        """The size of the kernel that the rows choose, of those of each."""
        *others, found = sizes
        if any(size is None for size in sizes):
            return None
        for size, bound in reversed(list(zip(others, self.bounds, strict=True))):
            few = below(value_of(self.kernels[0].rows), bound)
            found = arith.select(few, value_of(size), value_of(found))
        return found

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        if not self.bounds:
            self.kernels[0].body(*buffers)
            return
        parts = [
            functools.partial(kernel.body, *self._of_kernel(kernel, buffers))
            for kernel in self.kernels
        ]
        switch_below(value_of(self.kernels[0].rows), self.bounds, parts)

    def _of_kernel(self, kernel: GpuContraction, buffers: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Those of all buffers that a kernel has."""
        if not self.counts or kernel.splits > 1:
            return buffers
        operands = len(kernel.operands)
        return [*buffers[:operands], *buffers[operands + 1 : -1]]


def _threads(kernel: GpuContraction) -> Threads:
    schedule = kernel.schedule
    attributes: Mapping[str, str] = kernel.attributes
    return Threads(schedule.threads, schedule.instruction.unit.lanes, attributes)
