"""mxc-propagate-nan: keep NaN in maximum and minimum where the code generator drops it.

On GPUs IREE lowers `arith.maximumf` and `arith.minimumf` to `maxnumf` and `minnumf`, which return
the other operand where one is NaN (its pass iree-codegen-replace-slow-min-max-ops). This pass
replaces them by operations that IREE lowers faithfully: a comparison selects NaN. A maximum over a
loop becomes a maximum of integers that are ordered like the floats, with NaN as the greatest (or
the least, for a minimum), because code generators need a single operation on the accumulator.

before:
    linalg.generic ins(%x, %y) { %m = arith.maximumf %a, %b : f32 }
    linalg.generic {iterator_types = [.., "reduction"]} ins(%x) {
      %m = arith.maximumf %a, %acc : f32 }
after:
    linalg.generic ins(%x, %y) {
      %n = arith.maxnumf %a, %b : f32
      %u = arith.cmpf uno, %a, %b : f32
      %m = arith.select %u, %nan, %n : f32 }
    linalg.generic {iterator_types = [.., "reduction"]} ins(%x) outs(%least : tensor<..xi32>) {
      %k = (the bits of %a, all but the sign inverted where it is negative, those of NaN beyond all)
      %m = arith.maxsi %k, %acc : i32 }
    linalg.generic (the float of the greater of these bits and those of what %acc began with)

Leaves alone: `maxnumf` and `minnumf`; kernels of mxc, which handle NaN themselves; softmax and
attention of the dialects of MLIR and IREE, where NaN propagates through the sum of exponentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg

from mxc.dialects.dequantize import iterators
from mxc.dialects.dispatches import walk
from mxc.dialects.generic import constant, fill, generic
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.sizes import sizes_of
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import clone_over, discardable
from mxc.passes.rewriting.worklist import Worklist, erase

#: Operations that propagate NaN -> those that do not.
_QUIET = {"arith.maximumf": arith.maxnumf, "arith.minimumf": arith.minnumf}
#: linalg operations whose body is written in the program, and can be changed.
_WITH_BODY = ("linalg.generic", "linalg.reduce", "linalg.map")
#: Float types whose values can be compared as integers of the same width; see `_order`.
_ORDERED = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)


@dataclass(frozen=True)
class PropagateNan(Pass):
    """Rewrite maxima and minima so that NaN propagates through the code generator for GPUs."""

    name = "mxc-propagate-nan"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every maximum and minimum outside of kernels."""
        found = [op for op in _outside_of_kernels(module) if op.name in _QUIET]
        for op in Worklist(found):
            parent = op.parent.operation
            if _is_reduction(op, parent):
                _reduce_integers(op, parent)
                continue
            if parent.name.startswith("linalg.") and parent.name not in _WITH_BODY:
                op = _generalised(op, parent)
            _select(op)


def _outside_of_kernels(module: ir.Operation) -> list[ir.Operation]:
    return [
        op
        for top in module.regions[0].blocks[0].operations
        if not top.operation.name.endswith(".executable")
        for op in walk(top.operation)
    ]


def _select(op: ir.Operation) -> None:
    """Replace `op` by NaN where an operand is NaN, else by the operation that drops NaN."""
    with ir.InsertionPoint(op), op.location:
        either = arith.cmpf(arith.CmpFPredicate.UNO, *op.operands)
        number = _QUIET[op.name](*op.operands)
        nan = constant(float("nan"), op.results[0].type)
        op.results[0].replace_all_uses_with(arith.select(either, nan, number))
    erase(op)


def _is_reduction(op: ir.Operation, parent: ir.Operation) -> bool:
    """Whether `op` is the only operation on the accumulator of `parent`, a linalg operation."""
    if not parent.name.startswith("linalg.") or len(parent.results) != 1:
        return False
    if not any("reduction" in str(kind) for kind in iterators(parent)):
        return False
    block = parent.regions[0].blocks[0]
    accumulator = block.arguments[len(block.arguments) - 1]
    uses = [use.owner.operation for use in accumulator.uses]
    end = block.operations[len(block.operations) - 1].operation
    return (
        uses == [op]
        and end.operands[0] == op.results[0]
        and len(list(op.results[0].uses)) == 1
        and isinstance(parent.results[0].type, ir.RankedTensorType)
        and isinstance(op.results[0].type, _ORDERED)
    )


def _reduce_integers(op: ir.Operation, parent: ir.Operation) -> None:
    """Replace a reduction of floats, which `op` in the body of `parent` computes, by a reduction of
    integers that are ordered like the floats."""
    kind = op.results[0].type
    integer = ir.IntegerType.get_signless(kind.width)
    largest = op.name == "arith.maximumf"
    combine = arith.maxsi if largest else arith.minsi
    end = -(1 << kind.width - 1) if largest else (1 << kind.width - 1) - 1
    with ir.InsertionPoint(parent), parent.location:
        *inputs, start = parent.operands
        sizes = sizes_of(start)
        new = _generic(parent, inputs, fill(sizes, integer, end))
        source = parent.regions[0].blocks[0]
        types = [argument.type for argument in list(source.arguments)[:-1]]
        block = new.regions[0].blocks.append(*types, integer)
        known = dict(zip(source.arguments, block.arguments, strict=True))
        accumulator = source.arguments[len(source.arguments) - 1]
        with ir.InsertionPoint(block):
            for view in list(source.operations)[:-1]:
                inner = view.operation
                if inner == op:
                    (value,) = (v for v in op.operands if v != accumulator)
                    number = _order(known.get(value, value), largest=largest)
                    linalg.YieldOp([combine(number, block.arguments[len(types)])])
                    break
                clone_over(inner, known)
        # The initial value is combined last: code generators need a constant to start from.
        letters = " ".join(f"d{axis}" for axis in range(len(sizes)))
        result = generic(
            [(new.results[0], letters), (start, letters)],
            letters,
            kind,
            lambda x, y: arith.bitcast(kind, _mirrored(combine(x, _order(y, largest=largest)))),
        )
    parent.results[0].replace_all_uses_with(result)
    erase(parent)


def _generalised(op: ir.Operation, parent: ir.Operation) -> ir.Operation:
    """Replace `parent`, a named linalg operation, by a generic, and return `op` in it."""
    number = [inner.operation for inner in parent.regions[0].blocks[0].operations].index(op)
    with ir.InsertionPoint(parent), parent.location:
        *inputs, start = parent.operands
        new = _generic(parent, inputs, start)
    parent.regions[0].blocks[0].append_to(new.regions[0])
    parent.results[0].replace_all_uses_with(new.results[0])
    erase(parent)
    return new.regions[0].blocks[0].operations[number].operation


def _generic(parent: ir.Operation, inputs: Sequence[ir.Value], start: ir.Value) -> linalg.GenericOp:
    """A generic with the loops of `parent`, and without a body."""
    new = linalg.GenericOp(
        [start.type],
        inputs,
        [start],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(affine) for affine in indexing_maps(parent)]),
        ir.ArrayAttr.get(iterators(parent)),
    )
    for name in discardable(parent):
        new.attributes[name] = parent.attributes[name]
    return new


def _order(x: ir.Value, *, largest: bool) -> ir.Value:
    """A float as an integer with the same order; NaN is above all numbers, or below all."""
    integer = ir.IntegerType.get_signless(x.type.width)
    nan = arith.bitcast(integer, constant(float("nan") if largest else -float("nan"), x.type))
    other = arith.cmpf(arith.CmpFPredicate.UNO, x, x)
    return _mirrored(arith.select(other, nan, arith.bitcast(integer, x)))


def _mirrored(bits: ir.Value) -> ir.Value:
    """Invert all bits but the sign where the sign is set. This function is its own inverse."""
    width = bits.type.width
    last, rest = (constant(n, bits.type) for n in (width - 1, (1 << width - 1) - 1))
    return bits ^ arith.shrsi(bits, last) & rest
