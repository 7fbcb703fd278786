"""StableHLO, as JAX exports it, to operations on tensors. Runs in the worker process."""

from __future__ import annotations

import re

from iree.compiler import ir
from iree.compiler.dialects import cf, tensor

from mxc.compiler.programs.single import NO_LOWERING
from mxc.compiler.programs.stablehlo.dynamic import lower_dynamic
from mxc.compiler.programs.stablehlo.operations import barrier_behind, text_of
from mxc.compiler.programs.stablehlo.scatters import scattered
from mxc.compiler.programs.stablehlo.top_k import sort_for_top_k
from mxc.dialects.dispatches import walk
from mxc.dialects.locations import place_of
from mxc.dialects.named_operations import symbol_of
from mxc.errors import CompileError, PassError
from mxc.passes.base import run
from mxc.passes.slice_windows import SliceWindows

#: IREE's lowering; afterwards each function that a caller may call is whole.
_LOWER = (
    "iree-stablehlo-input-transformation-pipeline",
    "inline",
    "symbol-dce",
    SliceWindows(),
    # A batch of one in one operand alone would be a loop that is summed.
    "linalg-fold-unit-extent-dims",
    "canonicalize",
    "cse",
)
#: On an argument: the number of the result that may take its memory; JAX's name.
_DONATED = "tf.aliasing_output"
#: What IREE multiplies in the types that it finds before a conversion, and what may be in between.
_PRODUCTS = ("stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution")
_MOVES = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "slice", "transpose")
)
_CONVERT = "stablehlo.convert"
#: How a product is computed; the part of it that says in which types.
_ALGORITHM = "algorithm"
_TYPES = re.compile(
    r"lhs_precision_type = (\w+), rhs_precision_type = (\w+), accumulation_type = (\w+), "
    r"lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1"
)
#: The custom call by which JAX checks sizes that come with the call.
_ASSERTION = "shape_assertion"


def lower_stablehlo(module: ir.Module) -> None:
    """Lower in place to linalg on tensors. Raises PassError, with the place in the user's source.

    Memory that JAX donates is that of a result. What JAX asserts of sizes is asserted.
    """
    for op in list(walk(module.operation)):
        if op.name == "stablehlo.custom_call" and _target(op) == _ASSERTION:
            _assert(op)
        elif op.name == "func.func" and symbol_of(op) != "main":
            # JAX leaves some of those that only @main reads public.
            op.attributes["sym_visibility"] = ir.StringAttr.get("private")
    sort_for_top_k(module)
    _keep_signs(module)
    lower_dynamic(module)
    for op in list(walk(module.operation)):
        if op.name == "stablehlo.scatter":
            _lower_scatter(op)
    for op in list(walk(module.operation)):
        if _ALGORITHM in op.attributes and _is_plain(op):
            del op.attributes[_ALGORITHM]
    try:
        run(_LOWER, module)
    except PassError as error:
        for op in walk(module.operation):
            if op.name == "stablehlo.custom_call":
                raise PassError(
                    f"a call of {_target(op)} {NO_LOWERING}",
                    place_of(op.location),
                ) from error
        raise
    for op in list(walk(module.operation)):
        if op.name == "util.optimization_barrier":
            for result, value in zip(op.results, op.operands, strict=True):
                result.replace_all_uses_with(value)
            op.erase()


def _is_plain(op: ir.Operation) -> bool:
    """Whether a product is to be computed in the types that its operands and its result have."""
    types = [str(v.type.element_type) for v in (*op.operands, *op.results)]
    found = _TYPES.search(str(op.attributes[_ALGORITHM]))
    return found is not None and list(found.groups()) == types


def _keep_signs(module: ir.Module) -> None:
    """Convert unsigned numbers and truth values before products, behind a barrier.

    IREE multiplies what it finds before a conversion, and takes it for signed.
    """
    kept: set[ir.Operation] = set()
    for op in list(walk(module.operation)):
        if op.name not in _PRODUCTS:
            continue
        for number, value in enumerate(op.operands):
            whole = ir.RankedTensorType(op.results[0].type).element_type
            if _has_no_sign(value) and whole != value.type.element_type:
                kind = ir.RankedTensorType.get(value.type.shape, whole)
                with ir.InsertionPoint(op), op.location:
                    found = ir.Operation.create(_CONVERT, results=[kind], operands=[value])
                op.operands[number] = found.result
            _put_barrier(op.operands[number], kept)


def _put_barrier(value: ir.Value, kept: set[ir.Operation]) -> None:
    """Put a barrier behind the conversion of unsigned numbers from which `value` is moved, if
    any. `kept`: the conversions that have one."""
    while not isinstance(value, ir.BlockArgument) and value.owner.operation.name in _MOVES:
        value = value.owner.operands[0]
    if isinstance(value, ir.BlockArgument) or value.owner.operation.name != _CONVERT:
        return
    op = value.owner.operation
    if op in kept or not _has_no_sign(op.operands[0]):
        return
    kept.add(op)
    barrier_behind(op)


def _has_no_sign(value: ir.Value) -> bool:
    """Whether a tensor has unsigned numbers or truth values."""
    kind = ir.RankedTensorType(value.type).element_type
    return isinstance(kind, ir.IntegerType) and (kind.is_unsigned or kind.width == 1)


def names_of(module: ir.Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What JAX calls the arguments and results of @main: paths in its trees ("x['a']").

    Raises CompileError where there is no such function.
    """
    functions = {
        symbol_of(view.operation): view.operation
        for view in module.body.operations
        if view.operation.name == "func.func"
    }
    if "main" not in functions:
        raise CompileError(
            "the program has no function @main; write the text of exported.mlir_module()",
            phase="import",
        )
    main = functions["main"]
    arguments = list(main.regions[0].blocks[0].arguments)
    inputs = [_name(argument.location) or _called(argument, functions) for argument in arguments]
    results = main.attributes.get("res_attrs", [])
    outputs = [
        ir.StringAttr(each["jax.result_info"]).value if "jax.result_info" in each else ""
        for each in map(ir.DictAttr, results)
    ]
    return tuple(inputs), tuple(outputs)


def donations(module: ir.Module) -> dict[int, int]:
    """Arguments of @main whose memory is that of a result: their numbers."""
    for view in module.body.operations:
        op = view.operation
        if op.name == "func.func" and symbol_of(op) == "main":
            given = op.attributes.get("arg_attrs", [])
            return {
                number: ir.IntegerAttr(each[_DONATED]).value
                for number, each in enumerate(map(ir.DictAttr, given))
                if _DONATED in each
            }
    return {}


def _lower_scatter(op: ir.Operation) -> None:
    with ir.InsertionPoint(op), op.location:
        found = scattered(op)
    if found is not None:
        op.results[0].replace_all_uses_with(found)
        op.erase()


def _target(op: ir.Operation) -> str:
    return text_of(op, "call_target_name")


def _assert(op: ir.Operation) -> None:
    """An assertion on sizes as an operation that fails when the program runs."""
    message = text_of(op, "error_message")
    with ir.InsertionPoint(op), op.location:
        cf.AssertOp(tensor.ExtractOp(op.operands[0], []).result, message)
    op.erase()


def _name(location: ir.Location) -> str:
    return location.name_str if isinstance(location, ir.NameLoc) else ""


def _called(argument: ir.Value, functions: dict[str, ir.Operation]) -> str:
    """The name that the function has for an argument which @main hands on."""
    for use in argument.uses:
        op = use.owner.operation
        if op.name in ("func.call", "call"):
            callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            return _name(callee.regions[0].blocks[0].arguments[use.operand_number].location)
    return ""
