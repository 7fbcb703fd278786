"""mxc-check-operations: refuse operations that are not defined on packed elements, by name.

f4 and f6 elements have a value only together with their scales. Operations that move, decode,
contract or make elements are known. An addition of codes, a pooling, a sort or a convolution has no
meaning, whether or not IREE would compile it. The refusal names the operation, the types of its
operands and the place.

before:
    linalg.pooling_nhwc_max ins(%x, %window : tensor<1x8x8x32xf4E2M1FN>, ..)
after:
    a refusal that names linalg.pooling_nhwc_max and the types

`arith.truncf` to f8E8M0FNU is refused too: IREE 3.13 cuts off the mantissa and ignores the sign,
where frameworks round to nearest and make NaN of zero and of negative numbers
(tests/sentinels/truncf.mlir).

Leaves alone: 8-bit floats, which are numbers also without scales, and every operation on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.locations import place_of
from mxc.errors import PassError
from mxc.passes.base import Pass

#: Operations, or dialects, that pass tensors on without reading their elements.
_CARRY = ("builtin.", "cf.", "flow.", "func.", "hal.", "iree_tensor_ext.", "scf.", "util.")
#: Operations that move elements as a whole.
_MOVE = frozenset((
    "arith.bitcast", "arith.constant", "arith.select", "iree_linalg_ext.gather", "linalg.broadcast",
    "linalg.copy", "linalg.fill", "linalg.pack", "linalg.transpose", "linalg.unpack",
    "linalg.yield", "tensor.bitcast", "tensor.cast", "tensor.collapse_shape", "tensor.concat",
    "tensor.dim", "tensor.empty", "tensor.expand_shape", "tensor.extract", "tensor.extract_slice",
    "tensor.from_elements", "tensor.insert_slice", "tensor.reshape", "tensor.splat",
))  # fmt: skip
#: Operations that convert floats from or to elements.
_CONVERT = frozenset(("arith.extf", "arith.scaling_extf", "arith.scaling_truncf", "arith.truncf"))
#: Operations that contract, and decode elements inside.
_CONTRACT = frozenset((
    "linalg.batch_matmul", "linalg.batch_matvec", "linalg.batch_vecmat", "linalg.contract",
    "linalg.dot", "linalg.matmul", "linalg.matvec", "linalg.vecmat",
))  # fmt: skip
#: Operations whose bodies define what is done with each element.
_BODIES = frozenset(("linalg.generic", "linalg.map", "linalg.reduce"))


@dataclass(frozen=True)
class CheckOperations(Pass):
    """Refuse operations that are not defined on packed elements, by name."""

    name = "mxc-check-operations"

    def run(self, module: ir.Operation) -> None:
        """Raise PassError at the first operation on packed elements that is not known, and at a
        rounding to scales."""
        for op in _operations(module):
            if op.name == "arith.truncf" and _is_scale(op.results[0].type):
                raise PassError(_cut_off(op), place_of(op.location))
            values = [*op.operands, *op.results]
            if any(_is_packed(value.type) for value in values) and not _is_known(op.name):
                raise PassError(_refusal(op), place_of(op.location))


def _operations(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yield all operations inside an operation; each is followed by the operations of its body."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from _operations(inner.operation)


def _is_known(name: str) -> bool:
    return name.startswith(_CARRY) or name in _MOVE | _CONVERT | _CONTRACT | _BODIES


def _is_packed(kind: ir.Type) -> bool:
    """Whether a type is an f4 or f6 element, or a tensor of them."""
    element = kind.element_type if isinstance(kind, ir.RankedTensorType) else kind
    return isinstance(element, ir.FloatType) and element.width < 8


def _is_scale(kind: ir.Type) -> bool:
    """Whether a type is f8E8M0FNU, or a tensor of it."""
    element = kind.element_type if isinstance(kind, ir.RankedTensorType) else kind
    return isinstance(element, ir.Float8E8M0FNUType)


def _cut_off(op: ir.Operation) -> str:
    return (
        f"converts {op.operands[0].type} to {op.results[0].type}, which IREE 3.13 rounds otherwise "
        "than frameworks; compute scales as bytes (i8, uint8), and name them by a bitcast"
    )


def _refusal(op: ir.Operation) -> str:
    operands = ", ".join(str(value.type) for value in op.operands)
    results = ", ".join(str(value.type) for value in op.results)
    parent = op.parent.name if op.parent is not None else ""
    where = f" in the body of {parent}" if parent in _BODIES else ""
    return (
        f"{op.name}{where} has no MX support: it reads {operands or 'nothing'} and makes "
        f"{results or 'nothing'}, and packed elements mean something under their scales alone. "
        "Decode them before it (arith.scaling_extf), and quantize what it makes"
    )
