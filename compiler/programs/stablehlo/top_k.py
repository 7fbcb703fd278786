"""The largest elements of rows, as JAX writes them, by a sort."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.compiler.programs.stablehlo.operations import barrier_behind, text_of
from mxc.dialects.dispatches import walk

#: The largest elements along the last axis, and their indices.
_TOP_K = "chlo.top_k"


def sort_for_top_k(module: ir.Module) -> None:
    """Choose the largest elements of rows by a sort.

    IREE's own operation has no order for equal elements on GPUs, takes unsigned numbers for signed,
    and gives NaN and -inf an index that no element has. JAX writes a sort beside its `chlo.top_k`;
    older versions of JAX do not. A barrier keeps IREE from choosing that operation for a sort.
    """
    for op in list(walk(module.operation)):
        if op.name == "stablehlo.composite" and text_of(op, "name") == _TOP_K:
            callee = ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value
        elif op.name == _TOP_K and ir.RankedTensorType(op.operands[0].type).has_static_shape:
            callee = _define_top_k(module, op)
        else:
            continue
        with ir.InsertionPoint(op), op.location:
            call = func.CallOp([each.type for each in op.results], callee, op.operands)
        for result, found in zip(op.results, call.results, strict=True):
            result.replace_all_uses_with(found)
        op.erase()
    for op in list(walk(module.operation)):
        if op.name == "stablehlo.sort":
            barrier_behind(op)


def _define_top_k(module: ir.Module, op: ir.Operation) -> str:
    """A function that sorts the rows of a `chlo.top_k` and takes the first elements. Its name."""
    kind, result = (ir.RankedTensorType(value.type) for value in (op.operands[0], op.results[0]))
    element, name = kind.element_type, f"{_TOP_K}.{len(module.body.operations)}"
    order = "TOTALORDER"
    if isinstance(element, ir.IntegerType):
        order = "UNSIGNED" if element.is_unsigned else "SIGNED"
    axis = kind.rank - 1
    places = ir.RankedTensorType.get(kind.shape, ir.IntegerType.get_signless(32))
    first = ", ".join(f"0:{size}" for size in result.shape)
    text = f"""
      func.func private @{name}(%x: {kind}) -> ({result}, {op.results[1].type}) {{
        %places = stablehlo.iota dim = {axis} : {places}
        %sorted:2 = "stablehlo.sort"(%x, %places)
          <{{dimension = {axis} : i64, is_stable = true}}> ({{
        ^bb0(%a: tensor<{element}>, %b: tensor<{element}>, %i: tensor<i32>, %j: tensor<i32>):
          %before = stablehlo.compare GT, %a, %b, {order}
            : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
          stablehlo.return %before : tensor<i1>
        }}) : ({kind}, {places}) -> ({kind}, {places})
        %values = stablehlo.slice %sorted#0 [{first}] : ({kind}) -> {result}
        %chosen = stablehlo.slice %sorted#1 [{first}] : ({places}) -> {op.results[1].type}
        return %values, %chosen : {result}, {op.results[1].type}
      }}"""
    parsed = ir.Module.parse(text)
    with ir.InsertionPoint(module.body):
        parsed.body.operations[0].operation.clone()
    return name
