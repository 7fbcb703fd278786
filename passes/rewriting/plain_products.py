"""Which operations are products of two tensors and nothing else."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.generic import element_of

#: Floats that matrix instructions of GPUs multiply.
FLOATS = {"f32", "bf16", "f16"}
#: Operations of a body: a product that is added, of floats or of integers with a sign.
_BODIES = ({"arith.mulf", "arith.addf"}, {"arith.muli", "arith.addi"})
_EXTENSIONS = {"arith.extf", "arith.extsi"}


def is_plain_product(op: ir.Operation) -> bool:
    """Whether an operation does no more than extend, multiply, and add in 32 bits."""
    if not linalg.isa_contraction_op(op) or str(element_of(op.results[0])) not in ("f32", "i32"):
        return False
    names = [each.operation.name for each in op.regions[0].blocks[0].operations][:-1]
    work = [name for name in names if name not in _EXTENSIONS]
    return len(work) == len(_BODIES[0]) and set(work) in _BODIES
