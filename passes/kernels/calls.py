"""Build the kernels of a program and the dispatches that call them.

A kernel is built once, when the first dispatch of it is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from iree.compiler import ir

from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.generic import shape_of
from mxc.dialects.kernel_calls import mark_quantizes
from mxc.dialects.quantizations import Quantization, RowQuantization
from mxc.dialects.sizes import dynamic_sizes
from mxc.formats.formats import FORMATS
from mxc.kernels.language import Kernel as Nest
from mxc.kernels.printer import NEST, printed
from mxc.passes.kernels.epilogues import Epilogue
from mxc.passes.kernels.executables import Cases, Threads, dispatch, executable, set_cases
from mxc.passes.kernels.extents import Buffer, Size, dynamic_of, product, value_of
from mxc.passes.kernels.reshapes import as_buffer, as_tensor, packed_as, reshape
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.rewriting import rebuild
from mxc.targets.target import Kind

#: Operations at which the search for visible values ends: functions and modules.
_OUTERMOST = ("func.func", "util.func", "builtin.module")


def blocks_around() -> list[ir.Block]:
    """The block of the insertion point and the blocks around it, innermost first, out to the block
    of the function. Values that were defined in one of them are visible at the insertion point."""
    found = [ir.InsertionPoint.current.block]
    while (inner := found[-1].owner.operation).name not in _OUTERMOST:
        found.append(inner.block)
    return found


class KernelExport(Protocol):
    """A kernel that can be dispatched. Sizes that come with each call are None until `given`."""

    @property
    def scalars(self) -> int:
        """Number of sizes that come with each call, as index operands of the dispatch."""
        ...

    def given(self, scalars: Sequence[ir.Value]) -> KernelExport:
        """The kernel with the values `scalars` in place of the sizes that are None."""
        ...

    @property
    def buffers(self) -> list[Buffer]:
        """The buffers that are only read or updated in place, then those of new results."""
        ...

    @property
    def workgroups(self) -> list[Size]:
        """Up to three numbers of workgroups: usually along columns, rows and groups."""
        ...

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        ...


@runtime_checkable
class Nested(Protocol):
    """A kernel that is written in the kernel language."""

    @property
    def nests(self) -> Sequence[Nest]:
        """Its loop nest, or several where the kernel selects one of them at run time."""
        ...


class Calls:
    """The kernels that have been built at the start of `module`, each once."""

    def __init__(self, module: ir.Operation) -> None:
        """Start without any kernel."""
        # Kernels are inserted before this operation; a program without operations has no calls.
        self._first = next(iter(module.regions[0].blocks[0].operations), None)
        self._built: set[str] = set()

    def dispatch(
        self,
        name: str,
        kernel: KernelExport,
        tensors: Sequence[ir.Value],
        scalars: Sequence[ir.Value],
        threads: Threads | None = None,
        cases: Cases | None = None,
        updated: Sequence[int] = (),
    ) -> ir.Operation:
        """Build the dispatch of the kernel @name at the insertion point, and at its first call also
        the kernel.

        `tensors`: the first buffers of the kernel, each in any shape with the same elements.
        `scalars`: the sizes that come with this call. `threads`, `cases`: of a GPU kernel.
        `updated`: positions in `tensors` of those that the kernel updates in place; the updated
        tensors are the last results of the dispatch.
        """
        self.once(name, lambda: build(name, kernel, threads, cases))
        given = kernel.given(scalars)
        buffers = given.buffers
        made = buffers[len(tensors) :]
        operands = [as_buffer(value, each) for value, each in zip(tensors, buffers, strict=False)]
        tied = [-1] * len(made)
        made, tied = [*made, *(buffers[number] for number in updated)], [*tied, *updated]
        return dispatch(
            name,
            operands,
            [as_tensor(each.memref) for each in made],
            scalars,
            sizes=dynamic_of([*buffers[: len(tensors)], *made]),
            tied=tied,
        )

    def once(self, name: str, make: Callable[[], None]) -> None:
        """Build @name at the start of the module, unless it is built already."""
        if name not in self._built:
            self._built.add(name)
            assert self._first is not None
            with ir.InsertionPoint(self._first), ir.Location.unknown():
                make()


def build(
    name: str, kernel: KernelExport, threads: Threads | None = None, cases: Cases | None = None
) -> None:
    """Build the executable @name. If the kernel is written in the kernel language, the executable
    gets its printed loop nest as an attribute."""

    def body(*given: ir.Value) -> None:
        count = len(given) - kernel.scalars
        kernel.given(given[count:]).body(*given[:count])

    made = executable(
        name,
        [buffer.memref for buffer in kernel.buffers],
        lambda scalars: kernel.given(scalars).workgroups,
        body,
        scalars=kernel.scalars,
        threads=threads,
        sizes=lambda scalars: dynamic_of(kernel.given(scalars).buffers),
    )
    if isinstance(kernel, Nested):
        made.attributes[NEST] = ir.StringAttr.get("".join(map(printed, kernel.nests)))
    if cases is not None:
        set_cases(made, cases)


def take_over(
    made: ir.Operation,
    of: Contraction,
    op: ir.Operation,
    after: Epilogue,
    blocks: Quantization | None,
    *,
    kind: Kind,
    choice: str = "",
    results: Sequence[ir.Value] | None = None,
) -> None:
    """Replace the contraction `op`, its epilogue `after`, and the quantization `blocks` of the
    result, if any, by the results of the dispatch `made`.

    `of`: the description of the contraction, which is completed and written on the dispatch.
    `kind`, `choice`: see Contraction. `results`: the results of the dispatch to use, by default
    all. If the epilogue keeps totals for other readers, they are the first of these.
    """
    results = list(made.results) if results is None else results
    last = after.last(op)
    replace(
        of,
        out=OperandFormat(after.stores) if blocks is None else OperandFormat.of(blocks.format),
        kind=kind,
        choice=choice,
        unfused="" if after.unfused is None or blocks is not None else after.unfused.text,
    ).write(made)
    sizes = dynamic_sizes(last.results[0])
    if blocks is not None:
        _replace_blocks((blocks.codes, blocks.scales), results, sizes)
        return
    keeper = after.keeper(op)
    if keeper is not None:
        wanted = keeper.results[0]
        wanted.replace_all_uses_except(
            reshape(results[0], shape_of(wanted), sizes), [stage.op for stage in after.stages]
        )
    rebuild.replace(last, reshape(results[-1], shape_of(last.results[0]), sizes))


def _replace_blocks(
    ops: Sequence[ir.Operation], results: Sequence[ir.Value], sizes: Sequence[ir.Value]
) -> None:
    """Replace the results of the operations of a quantization by the results of a dispatch, in
    order; each gets the shape and element type that it replaces."""
    for op, result in zip(ops, results, strict=True):
        wanted = op.results[0]
        wanted.replace_all_uses_with(packed_as(result, wanted.type, sizes))


def quantize(
    calls: Calls,
    found: Quantization | RowQuantization,
    kernel: KernelExport,
    name: str,
    tensors: Sequence[ir.Value],
    threads: Threads | None = None,
) -> None:
    """Replace the quantization `found` by a dispatch of the kernel @name on `tensors`.

    A kernel with a scalar gets the number of blocks; if it quantizes rows to nvfp4, that of rows.
    """
    format, counted, together, results = FORMATS["nvfp4"], found.x, 1, [found.codes, found.scales]
    if isinstance(found, Quantization):
        format, together = found.format, BLOCK
    else:
        counted = found.rows.results[0]
        results.append(found.rows)
    # The insertion point is where the first scales are computed: before all readers of a result.
    with ir.InsertionPoint(results[-1]), found.codes.location:
        sizes = dynamic_sizes(counted)
        scalars = [_elements_of(counted, sizes, together)] if kernel.scalars else []
        made = calls.dispatch(name, kernel, tensors, scalars, threads)
        mark_quantizes(made, format.name)
        # `counted` may have the same elements in another shape: its dynamic sizes do not fit.
        _replace_blocks(results, list(made.results), dynamic_sizes(results[-1].results[0]))


def blocks_of(value: ir.Value, sizes: Sequence[ir.Value]) -> ir.Value:
    """Number of blocks of a tensor along its last dimension. `sizes`: its dynamic sizes."""
    return _elements_of(value, sizes, BLOCK)


def _elements_of(value: ir.Value, sizes: Sequence[ir.Value], together: int = 1) -> ir.Value:
    """Number of elements of a tensor divided by `together`, which divides the product of its static
    sizes. `sizes`: its dynamic sizes."""
    count: Size = math.prod(size for size in shape_of(value) if size >= 0) // together
    for size in sizes:
        count = product(count, size)
    return value_of(count)
