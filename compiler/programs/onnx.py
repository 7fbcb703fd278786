"""Programs from ONNX, through IREE's importer, in the worker. Needs the package onnx.

Initializers are parameters of their names. onnx_quantized.py reads quantization, and
onnx_lowering.py lowers it.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from iree.compiler import ir

from mxc.compiler.programs.constants import LIST, ConstantParameters
from mxc.compiler.programs.onnx_functions import expand_functions, give_names
from mxc.compiler.programs.onnx_lowering import lower_quantized
from mxc.compiler.programs.onnx_operators import rewrite_operators
from mxc.compiler.programs.onnx_quantized import NOTE, forget, rewrite
from mxc.compiler.programs.onnx_refusals import require_right
from mxc.compiler.programs.onnx_shapes import fold_shapes
from mxc.compiler.programs.onnx_sizes import resolve_shapes
from mxc.compiler.programs.onnx_types import DOMAIN
from mxc.compiler.programs.same_sizes import require_same_sizes
from mxc.compiler.programs.single import Tell
from mxc.compiler.programs.torch import LOWER, lower, require_known
from mxc.dialects.parameters import Parameters
from mxc.errors import CompileError

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


def read_onnx(
    context: ir.Context,
    file: Path,
    constants: ConstantParameters,
    tell: Tell | None,
) -> tuple[ir.Module, tuple[str, ...], tuple[str, ...]]:
    """The module of a .onnx file on tensors, and the names of its arguments and results; `tell` as
    in torch.py's `lower`.

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
        model = onnx.load(str(file))
        if not model.graph.output:
            raise CompileError(f"{file}: has no graph; write the file again", phase="import")
        give_names(model)
        if rewrite(model, onnx):
            constants.note(NOTE)
        module, inputs, outputs = _imported(context, model, constants, onnx, importer)
    except CompileError:
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise CompileError(f"{file}: cannot be imported: {text[:600]}", phase="import") from error
    lower(("func.func(convert-torch-onnx-to-torch)",), module, tell)
    require_known(module)
    lower(LOWER, module, tell)
    kinds = {each.name: each.type.tensor_type.shape.dim for each in model.graph.input}
    names = [[dim.dim_param or None for dim in kinds[name]] for name in inputs]
    require_same_sizes(module, inputs, names)
    return module, inputs, outputs


def _imported(
    context: ir.Context, model: Any, constants: ConstantParameters, onnx: Any, importer: Any
) -> tuple[ir.Module, tuple[str, ...], tuple[str, ...]]:
    """The model in the torch dialect, its weights loaded as parameters."""
    graph = model.graph
    scales = {node.input[1] for node in graph.node if node.domain == DOMAIN and node.input[1:]}
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
    model = resolve_shapes(expand_functions(model, onnx), onnx)
    rewrite_operators(model, onnx)
    model = fold_shapes(model, onnx)
    forget(model)
    _require_ranks(model.graph)
    require_right(model.graph, onnx)
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
        lower_quantized(module)
    outputs = tuple(each.name for each in graph.output)
    while len(block.arguments) > len(names):
        block.erase_argument(len(block.arguments) - 1)
    kinds = [argument.type for argument in block.arguments]
    results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, results))
    return module, tuple(names), outputs


def _require_ranks(graph: Any) -> None:
    """Raise CompileError for an argument, or what a node of ONNX makes, that is no tensor of a
    known rank: the importer would take it for a number."""
    every = (*graph.input, *graph.value_info, *graph.output)
    unknown = {
        each.name
        for each in every
        if each.type.HasField("tensor_type") and not each.type.tensor_type.HasField("shape")
    }
    made = {name: node for node in graph.node if not node.domain for name in node.output}
    for each in every:
        node = made.get(each.name)
        if each.name in unknown and (node is not None or each in graph.input):
            what = "argument" if node is None else f"{node.name}: what {node.op_type} makes,"
            raise CompileError(
                f"{what} {each.name}: its rank is not known; give it a shape, in which sizes that "
                "come with the call have names",
                phase="import",
            )


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
    constants: ConstantParameters,
) -> None:
    """Put the parameter that an initializer becomes into the place of an argument."""
    element = _ELEMENTS[weight.data_type]
    array = onnx.numpy_helper.to_array(weight)
    if weight.data_type in (_UINT4, _INT4):
        array = array.astype(np.int8 if weight.data_type == _INT4 else np.uint8)
    with ir.InsertionPoint.at_block_begin(block):
        array = np.ascontiguousarray(array).view(ConstantParameters.dtype(element))
        value = constants.load(constants.add(weight.name, array, element), parameters)
        made = ir.Operation.create(
            "torch_c.from_builtin_tensor", results=[argument.type], operands=[value]
        )
    argument.replace_all_uses_with(made.result)
