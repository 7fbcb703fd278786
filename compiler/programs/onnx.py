"""Programs from ONNX, through IREE's importer, in the worker. Needs the package onnx.

Initializers are parameters of their names. DequantizeLinear is written out here, in every form that
ONNX has: IREE's importer has no scales of blocks, and no elements of 4 bits or scales of powers of
two.
"""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.compiler.programs.constants import LIST, Constants
from mxc.compiler.programs.torch import LOWER, require_known
from mxc.dialects.dispatches import walk
from mxc.dialects.generic import constant
from mxc.dialects.parameters import Parameters
from mxc.errors import CompileError
from mxc.passes.base import run

SUFFIX = ".onnx"

#: ONNX's data types that IREE's importer lacks, and how a tensor of them is seen: integers of 4
#: bits are a byte each.
_TYPES = {21: "ui8", 22: "si8", 23: "f4E2M1FN", 24: "f8E8M0FNU"}
_UINT4, _INT4 = 21, 22
#: Data types that become parameters, and the MLIR types of their elements.
_ELEMENTS = {
    1: "f32", 2: "i8", 3: "i8", 6: "i32", 7: "i64", 10: "f16", 11: "f64", 16: "bf16",
    17: "f8E4M3FN", 19: "f8E5M2", 21: "i8", 22: "i8", 23: "f4E2M1FN", 24: "f8E8M0FNU",
}  # fmt: skip
_VTENSOR = re.compile(r"!torch\.vtensor<\[([\d,?]*)\],(\w+)>")
_DEQUANTIZE = "DequantizeLinear"


def read_onnx(
    context: ir.Context, file: Path, constants: Constants
) -> tuple[ir.Module, tuple[str, ...], tuple[str, ...]]:
    """The module of a .onnx file on tensors, and the names of its arguments and results.

    Raises CompileError for a file that is no model, and for what the importer does not know;
    PassError with the name of its node for an operation that has no lowering.
    """
    try:
        onnx = import_module("onnx")
        importer = import_module("iree.compiler.extras.onnx_importer")
    except ImportError as error:
        raise CompileError(
            f"a program from ONNX needs onnx ({error}): pip install 'mxc[onnx]'", phase="import"
        ) from error
    try:
        model = onnx.load(str(file), load_external_data=False)
        model = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )
        onnx.external_data_helper.load_external_data_for_model(model, str(file.parent))
        module, inputs, outputs = _imported(context, model, constants, onnx, importer)
    except CompileError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise CompileError(f"{file}: cannot be imported: {text[:600]}", phase="import") from error
    run(("func.func(convert-torch-onnx-to-torch)",), module)
    require_known(module)
    run(LOWER, module)
    return module, inputs, outputs


def _imported(
    context: ir.Context, model: Any, constants: Constants, onnx: Any, importer: Any
) -> tuple[ir.Module, tuple[str, ...], tuple[str, ...]]:
    """The model in the torch dialect, its weights loaded as parameters."""
    graph = model.graph
    scales = {node.input[1] for node in graph.node if node.op_type == _DEQUANTIZE}
    weights = {
        each.name: each
        for each in graph.initializer
        if _is_weight(each) or (each.name in scales and each.dims)
    }
    names = [each.name for each in graph.input if each.name not in weights]
    kept = [each for each in graph.initializer if each.name not in weights]
    inputs = [each for each in graph.input if each.name not in weights]
    inputs += [
        onnx.helper.make_tensor_value_info(name, each.data_type, each.dims)
        for name, each in weights.items()
    ]
    # Weights enter as arguments, of which each then becomes a parameter.
    for field, values in ((graph.initializer, kept), (graph.input, inputs)):
        del field[:]
        field.extend(values)
    names = [name for name in names if name not in {each.name for each in kept}]
    with context:
        importer.ELEM_TYPE_TO_IR_TYPE_CB.update(
            {number: partial(ir.Type.parse, text) for number, text in _TYPES.items()}
        )
    info = importer.ModelInfo(model)
    module = info.create_module(context=context)
    importer.NodeImporter.define_function(info.main_graph, module.operation).import_all()
    function = module.body.operations[0].operation
    with function.location:
        parameters = Parameters(module)
        block = function.regions[0].blocks[0]
        for argument in list(block.arguments)[len(names) :]:
            weight = weights.pop(next(iter(weights)))
            _load(argument, block, onnx, weight, parameters, constants)
        for op in [op for op in walk(module.operation) if _called(op) == _DEQUANTIZE]:
            _dequantize(op)
    outputs = tuple(each.name for each in graph.output)
    while len(block.arguments) > len(names):
        block.erase_argument(len(block.arguments) - 1)
    kinds = [argument.type for argument in block.arguments]
    results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, results))
    return module, tuple(names), outputs


def _is_weight(value: Any) -> bool:
    """Whether an initializer becomes a parameter: the others may be shapes, axes or tables."""
    if value.data_type not in _ELEMENTS:
        return False
    size = prod(value.dims)
    return size > LIST or (len(value.dims) > 1 and size > 1) or value.data_type in _TYPES


def _load(
    argument: ir.Value,
    block: ir.Block,
    onnx: Any,
    weight: Any,
    parameters: Parameters,
    constants: Constants,
) -> None:
    """Put the parameter that an initializer becomes into the place of an argument."""
    element = _ELEMENTS[weight.data_type]
    array = onnx.numpy_helper.to_array(weight)
    if weight.data_type in (_UINT4, _INT4):
        array = array.astype(np.int8 if weight.data_type == _INT4 else np.uint8)
    with ir.InsertionPoint.at_block_begin(block):
        array = np.ascontiguousarray(array).view(Constants.dtype(element))
        value = constants.load(constants.add(weight.name, array, element), parameters)
        made = ir.Operation.create(
            "torch_c.from_builtin_tensor", results=[argument.type], operands=[value]
        )
    argument.replace_all_uses_with(made.result)


def _called(op: ir.Operation) -> str:
    """The operator of ONNX that an operation is."""
    if op.name != "torch.operator":
        return ""
    return str(ir.StringAttr(op.attributes["name"]).value).removeprefix("onnx.")


def _dequantize(op: ir.Operation) -> None:
    """(x - zero point) * scale in f32, rounded to the type of the result."""
    elements, scale, *rest = op.operands
    zero = rest[0] if rest and "none" not in str(rest[0].type) else None
    result = _builtin(op.results[0].type)
    rank = ir.RankedTensorType(_builtin(elements.type)).rank
    axis = _number(op, "axis", 1)
    block = _number(op, "block_size", 0)
    loops = [ir.AffineDimExpr.get(i) for i in range(rank)]
    of_scale = _builtin(scale.type)
    if block:
        by = [*loops]
        by[axis] = ir.AffineExpr.get_floor_div(loops[axis], block)
    else:
        one = prod(of_scale.shape) == 1 and not of_scale.rank
        by = [] if one else [loops[axis]]
    if len(by) != of_scale.rank:
        raise CompileError(
            f"{op.location}: scales {of_scale} for elements {_builtin(elements.type)} along axis "
            f"{axis}",
            phase="import",
        )
    unsigned = "ui" in str(elements.type)
    with ir.InsertionPoint(op), op.location:
        read = [elements, scale, *([] if zero is None else [zero])]
        tensors = [
            ir.Operation.create(
                "torch_c.to_builtin_tensor", results=[_builtin(each.type)], operands=[each]
            ).result
            for each in read
        ]
        index = ir.IndexType.get()
        sizes = [
            tensor.dim(tensors[0], constant(i, index)) if size < 0 else size
            for i, size in enumerate(_sizes(tensors[0]))
        ]
        empty = tensor.empty(sizes, result.element_type)
        maps = [ir.AffineMap.get(rank, 0, at) for at in (loops, *[by] * (len(read) - 1), loops)]

        def body(x: ir.Value, s: ir.Value, *more: ir.Value) -> ir.Value:
            value = _float(x, unsigned=unsigned)
            if zero is not None:
                value = arith.subf(value, _float(more[0], unsigned=unsigned))
            value = arith.mulf(value, _float(s, unsigned=False))
            f32 = ir.F32Type.get()
            return value if result.element_type == f32 else arith.truncf(result.element_type, value)

        parallel = [linalg.IteratorType.parallel] * rank
        value = linalg.generic(tensors, [empty], maps, parallel)(body)
        made = ir.Operation.create(
            "torch_c.from_builtin_tensor", results=[op.results[0].type], operands=[value]
        )
    op.results[0].replace_all_uses_with(made.result)
    op.erase()


def _sizes(value: ir.Value) -> list[int]:
    return [
        -1 if value.type.is_dynamic_dim(i) else value.type.get_dim_size(i)
        for i in range(value.type.rank)
    ]


def _float(value: ir.Value, *, unsigned: bool) -> ir.Value:
    f32 = ir.F32Type.get()
    if isinstance(value.type, ir.IntegerType):
        return arith.uitofp(f32, value) if unsigned else arith.sitofp(f32, value)
    return value if value.type == f32 else arith.extf(f32, value)


def _number(op: ir.Operation, name: str, otherwise: int) -> int:
    key = f"torch.onnx.{name}"
    return int(ir.IntegerAttr(op.attributes[key]).value) if key in op.attributes else otherwise


def _builtin(kind: ir.Type) -> Any:
    """The tensor type of a !torch.vtensor."""
    found = _VTENSOR.fullmatch(str(kind))
    if found is None:
        raise CompileError(f"{kind} is no tensor of a known shape", phase="import")
    sizes = "".join(f"{size}x" for size in found[1].split(",") if size)
    element = re.sub(r"^[us]i", "i", found[2])
    return ir.RankedTensorType(ir.Type.parse(f"tensor<{sizes}{element}>"))
