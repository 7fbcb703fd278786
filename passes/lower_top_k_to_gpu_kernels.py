"""mxc-lower-top-k-to-gpu-kernels: the choice of the largest elements of rows, in parallel.

IREE's code generator gives a row to one lane, which inserts its elements one after the other: a
router takes it as long as a product, and with eight experts of a token it has no registers left.
Here a workgroup has a row and a lane an element (passes/kernels/gpu/top_k.py).

before:
    %v, %i = iree_linalg_ext.topk_v2 dimension(1) ins(%x : tensor<TxExf32>) outs(%least, %zero)
after:
    stream.executable private @mxc_top_8_of_Dx128 { .. }
    %v, %i = flow.dispatch @mxc_top_8_of_Dx128(%x)

Leaves alone: rows of more than 1024 elements or of a number that comes with the call; other
elements than f32; other orders than falling; indices that are given; results that begin with others
than -inf and 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.linalg_ext import TOP_K
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import dynamic_sizes
from mxc.passes.base import Pass
from mxc.passes.gather_packed import operations_named
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.gpu.top_k import TopK
from mxc.passes.kernels.values import is_filled
from mxc.passes.rewriting.rebuild import sweep
from mxc.passes.rewriting.worklist import replace_op
from mxc.targets.amd import known_gpu

#: arith.CmpFPredicate.OGT.
_GREATER = 2


@dataclass(frozen=True)
class LowerTopKToGpuKernels(Pass):
    """Give the choice of the largest elements to kernels for the waves of `target`."""

    name = "mxc-lower-top-k-to-gpu-kernels"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower every choice that a kernel makes. PassError for an unknown target."""
        wave, calls = known_gpu(self.target).matrix.lanes, Calls(module)
        for op in operations_named(module, TOP_K):
            kernel = _kernel(op, wave)
            if isinstance(kernel, Reason):
                write_reason(op, kernel)
                continue
            x = op.operands[0]
            with ir.InsertionPoint(op), op.location:
                made = calls.dispatch(kernel.name, kernel, [x], dynamic_sizes(x), kernel.threads)
            replace_op(op, made.results)
        sweep(module)


def _kernel(op: ir.Operation, wave: int) -> TopK | Reason:
    """What computes `op`, or why no kernel does."""
    x, *given, values, indices = op.operands
    kinds = [str(element_of(each)) for each in (x, values, indices)]
    if kinds != ["f32", "f32", "i32"]:
        return Reason(f"it chooses {', '.join(kinds)}; kernels choose f32, f32, i32")
    shape, axis = shape_of(x), ir.IntegerAttr(op.attributes["dimension"]).value
    if given or len(shape) != 2 or axis != 1 or shape[1] < 0:
        return Reason("kernels choose from rows [rows, columns] of known columns, without indices")
    if not _falls(op):
        return Reason("kernels choose the greatest")
    if not (is_filled(values, float("-inf")) and is_filled(indices, 0)):
        return Reason("its results begin with others than -inf and 0")
    return TopK.of(shape, shape_of(values)[1], wave)


def _falls(op: ir.Operation) -> bool:
    """Whether an element goes before another where it is greater."""
    block = op.regions[0].blocks[0]
    compare, *others = (each.operation for each in block.operations)
    return (
        len(others) == 1
        and compare.name == "arith.cmpf"
        and ir.IntegerAttr(compare.attributes["predicate"]).value == _GREATER
        and list(compare.operands) == list(block.arguments)
    )
