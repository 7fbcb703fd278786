"""Kernels of a program: each is built once, where the first call of it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from iree.compiler import ir

from mxc.kernels.language import Kernel as Nest
from mxc.kernels.printer import NEST, printed
from mxc.passes.kernels.executables import dispatch_all, executable
from mxc.passes.kernels.extents import Buffer, Size, dynamic_of
from mxc.passes.kernels.reshapes import as_buffer, as_tensor


class Kernel(Protocol):
    """What is dispatched. Sizes that come with each call are None until they are given."""

    @property
    def scalars(self) -> int:
        """How many come with each call."""
        ...

    def given(self, scalars: Sequence[ir.Value]) -> Kernel:
        """The kernel of one call."""
        ...

    @property
    def buffers(self) -> list[Buffer]:
        """What is read, then what is written."""
        ...

    @property
    def workgroups(self) -> list[Size]:
        """Along columns, rows and groups."""
        ...

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        ...


@runtime_checkable
class Nested(Protocol):
    """A kernel that is written in the kernel language."""

    @property
    def kernel(self) -> Nest:
        """Its nest."""
        ...


class Calls:
    """The kernels of `module`."""

    def __init__(self, module: ir.Operation) -> None:
        """None yet."""
        self._first = module.regions[0].blocks[0].operations[0]
        self._built: set[str] = set()

    def dispatch(
        self, name: str, kernel: Kernel, tensors: Sequence[ir.Value], scalars: Sequence[ir.Value]
    ) -> ir.Operation:
        """The call of @name on `tensors`, in any shape of as many elements, here."""
        if name not in self._built:
            self._built.add(name)
            with ir.InsertionPoint(self._first):
                _build(name, kernel)
        given = kernel.given(scalars)
        buffers, count = given.buffers, len(tensors)
        operands = [as_buffer(value, each) for value, each in zip(tensors, buffers, strict=False)]
        return dispatch_all(
            name,
            [*operands, *scalars],
            [as_tensor(each.memref) for each in buffers[count:]],
            workload=scalars,
            sizes=dynamic_of(buffers),
        )


def _build(name: str, kernel: Kernel) -> None:
    """The executable @name. One of the kernel language has its nest as text."""

    def body(*given: ir.Value) -> None:
        count = len(given) - kernel.scalars
        kernel.given(given[count:]).body(*given[:count])

    made = executable(
        name,
        [buffer.memref for buffer in kernel.buffers],
        lambda scalars: kernel.given(scalars).workgroups,
        body,
        scalars=kernel.scalars,
        sizes=lambda scalars: dynamic_of(kernel.given(scalars).buffers),
    )
    if isinstance(kernel, Nested):
        made.attributes[NEST] = ir.StringAttr.get(printed(kernel.kernel))
