"""Parts of StableHLO that several rewrites need."""

from __future__ import annotations

from iree.compiler import ir

_BARRIER = "stablehlo.optimization_barrier"


def barrier_behind(op: ir.Operation) -> None:
    """Let all that reads the results of an operation read them behind a barrier."""
    results = list(op.results)
    with ir.InsertionPoint.after(op), op.location:
        types = [each.type for each in results]
        barrier = ir.Operation.create(_BARRIER, results=types, operands=results)
    for result, found in zip(results, barrier.results, strict=True):
        result.replace_all_uses_except(found, barrier)


def text_of(op: ir.Operation, name: str) -> str:
    """A text among the attributes of an operation."""
    return str(ir.StringAttr(op.attributes[name]).value)


def signless(kind: ir.Type) -> ir.Type:
    """The type of a tensor of integers, of integers without a sign."""
    whole = ir.RankedTensorType(kind)
    element = ir.IntegerType.get_signless(whole.element_type.width)
    return ir.RankedTensorType.get(whole.shape, element)


def as_type(value: ir.Value, kind: ir.Type) -> ir.Value:
    """The same bits with another sign."""
    name = "stablehlo.bitcast_convert"
    return ir.Operation.create(name, results=[kind], operands=[value]).result
