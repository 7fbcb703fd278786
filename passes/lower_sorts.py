"""mxc-lower-sorts: sort tensors in kernels that leave equal elements in their order.

IREE compares each element with its neighbour, as many times as there are elements: a minute and a
half for the 131072 numbers of a vocabulary on a CPU, where the kernel takes less than a tenth of a
second. It also exchanges neighbours that are equal, where a program wants them in their order:
`jnp.argsort`, `torch.sort(stable=True)`, the indices of ONNX's TopK. And two sorts that begin with
the same numbers overwrite each other's, because IREE sorts in place.

before:
    %y:2 = iree_linalg_ext.sort dimension(1) outs(%x, %numbers) { %x0 < %x1 }    [4, 64] f32, i32
after:
    stream.executable private @mxc_sort_4x64x1_f32_i32_by_0 { .. }
    %y:3 = flow.dispatch @mxc_sort_4x64x1_f32_i32_by_0(%x, %numbers)      the last: where each was

Truth values are sorted as bytes.

Leaves alone: sorts of other elements than floats of 16 or 32 bits and integers of 1 or of 8 to 64
bits, and comparisons that read more than elements and constants, or have branches; a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.generic import element_of, generic
from mxc.dialects.linalg_ext import SORT
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import axes_of, product, sizes_of
from mxc.passes.base import Pass, add_note
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.reshapes import packed_as
from mxc.passes.kernels.sorting import Sort, SortOrder
from mxc.passes.kernels.vectors import i1, i8
from mxc.passes.rewriting.rebuild import operations_named
from mxc.passes.rewriting.worklist import replace_op

_ELEMENTS = ("i1", "i8", "i16", "i32", "i64", "f16", "bf16", "f32")
_BY_IREE = "IREE's code generator sorts, equal elements in any order"


@dataclass(frozen=True)
class LowerSorts(Pass):
    """Sort in kernels. `wave`: lanes of a wave on a GPU; 0 for CPUs."""

    name = "mxc-lower-sorts"
    wave: int = 0

    def run(self, module: ir.Operation) -> None:
        """Lower each sort that a kernel takes."""
        calls, orders = Calls(module), dict[str, int]()
        for op in operations_named(module, SORT):
            order = _order(op)
            if isinstance(order, Reason):
                add_note(module, f"{_BY_IREE}: {order.text}")
                continue
            number = orders.setdefault(order.signature, len(orders))
            with ir.InsertionPoint(op), op.location:
                replace_op(op, self._sorted(calls, op, order, f"_by_{number}"))

    def _sorted(
        self, calls: Calls, op: ir.Operation, order: SortOrder, suffix: str
    ) -> Iterator[ir.Value]:
        axis = ir.IntegerAttr(op.attributes["dimension"]).value
        sizes = sizes_of(op.operands[0])
        parts = [product(each) for each in (sizes[:axis], [sizes[axis]], sizes[axis + 1 :])]
        outer, length, inner = (each if isinstance(each, int) else None for each in parts)
        rows = [_as_bytes(value) for value in op.operands]
        kernel = Sort(outer, length, inner, tuple(map(element_of, rows)), order, self.wave)
        scalars = [each for each in parts if not isinstance(each, int)]
        made = calls.dispatch(kernel.name + suffix, kernel, rows, scalars, kernel.threads)
        dynamic = [each for each in sizes if not isinstance(each, int)]
        for result, row, found in zip(op.results, rows, made.results, strict=False):
            whole = packed_as(found, row.type, dynamic)
            yield _as_truth(whole) if row.type != result.type else whole


def _order(op: ir.Operation) -> SortOrder | Reason:
    """The order of a sort, or the reason why no kernel takes it."""
    for value in op.operands:
        kind = str(element_of(value))
        if kind not in _ELEMENTS:
            return Reason(f"elements are {kind}; kernels sort {', '.join(_ELEMENTS)}")
    block = op.regions[0].blocks[0]
    inside = set(block.arguments)
    for view in block.operations:
        if not all(each in inside or _is_constant(each) for each in view.operation.operands):
            return Reason("the comparison reads more than elements and constants")
        if len(view.operation.regions):
            return Reason("the comparison has branches")
        inside.update(view.operation.results)
    return SortOrder(block)


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == "arith.constant"


def _as_bytes(value: ir.Value) -> ir.Value:
    """Extend a tensor of i1 to i8; other tensors are unchanged."""
    if element_of(value) != i1():
        return value
    axes = axes_of(value)
    return generic([(value, axes)], axes, i8(), lambda x: arith.extui(i8(), x))


def _as_truth(value: ir.Value) -> ir.Value:
    """Truncate a tensor of i8 to i1."""
    axes = axes_of(value)
    return generic([(value, axes)], axes, i1(), lambda x: arith.trunci(i1(), x))
