"""A product with several schedules, of which the number of rows of a call selects one.

    switch on the rows: 0 .. 47, 48 .. 319, 320 ..
      case: the body of the kernel of a schedule

A kernel with such a switch would take the registers and LDS of its largest case. So
mxc-split-kernels makes a kernel of each case, after which the host program selects one.
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
    """A kernel that is one of `kernels`, by the number of rows, which is the last scalar of a call.

    Kernel n is for fewer rows than `bounds[n]`, and the last one, which has no bound, for all
    others. The kernels differ only in their schedules.
    """

    kernels: Sequence[GpuContraction]
    bounds: Sequence[int]

    def __post_init__(self) -> None:
        """Raise ValueError if a kernel with splits may have more wave tiles than counters exist."""
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
        """Number of index values that a call supplies."""
        return self.kernels[0].scalars

    @property
    def threads(self) -> Threads:
        """Threads of the kernel for the fewest rows."""
        return _threads(self.kernels[0])

    @property
    def cases(self) -> Cases | None:
        """The cases for mxc-split-kernels; None if there is only one kernel."""
        if not self.bounds:
            return None
        return Cases(
            bounds=self.bounds,
            threads=[_threads(kernel) for kernel in self.kernels],
        )

    def given(self, scalars: Sequence[ir.Value]) -> ByRows:
        """Return a copy with these values for what comes with each call."""
        return replace(self, kernels=[kernel.given(scalars) for kernel in self.kernels])

    @property
    def counts(self) -> bool:
        """Whether any kernel has splits. Then the buffers of all have counters before the results,
        and partial sums after them."""
        return any(kernel.splits > 1 for kernel in self.kernels)

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers: those of the kernels, with counters and partial sums if any has splits."""
        first, *_ = self.kernels
        if not self.counts:
            return first.buffers
        # One element where a kernel has no splits: a tensor without elements would be no buffer.
        each = [k.split_tiles.elements if k.splits > 1 else 1 for k in self.kernels]
        return split_buffers(first.operands, first.results, self._by_rows(each))

    @property
    def workgroups(self) -> list[Size]:
        """Workgroups along columns, along rows, and along groups or splits."""
        counts = [kernel.workgroups for kernel in self.kernels]
        return [self._by_rows(each) for each in zip(*counts, strict=True)]

    def _by_rows(self, sizes: Sequence[Size]) -> Size:
        """Build the size of the kernel that the rows select. `sizes`: one for each kernel. None if
        one of them is not known yet."""
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
        """Return the buffers that `kernel` takes: without counters and partial sums if it has no
        splits."""
        if not self.counts or kernel.splits > 1:
            return buffers
        operands = len(kernel.operands)
        return [*buffers[:operands], *buffers[operands + 1 : -1]]


def _threads(kernel: GpuContraction) -> Threads:
    schedule = kernel.schedule
    attributes: Mapping[str, str] = kernel.attributes
    return Threads(schedule.threads, schedule.instruction.unit.lanes, attributes)
