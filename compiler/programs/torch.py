"""Programs from torch: `torch.export.ExportedProgram`, through IREE's FxImporter, in the worker."""

from __future__ import annotations

import io
import logging
import mmap
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.programs.constants import LIST, ConstantParameters
from mxc.compiler.programs.same_sizes import require_same_sizes
from mxc.compiler.programs.single import NO_LOWERING, Tell, lower_each, named, refused
from mxc.compiler.programs.torch_experts import TRANSFORMERS
from mxc.compiler.programs.torch_graph import drop_assertions, name_sizes
from mxc.compiler.programs.torch_lowering import lowered
from mxc.compiler.programs.torch_states import states_as_arguments
from mxc.dialects.dispatches import walk
from mxc.dialects.parameters import Parameters
from mxc.errors import CompileError, PassError
from mxc.passes.base import run

#: What torch says of an operator that it does not have, and of a place in the user's source.
_UNKNOWN = re.compile(r"failed to resolve torch\.ops\.([\w.]+) to an operator")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
#: What torch adds to an error in a graph.
_AT = " While executing %"
#: Names in a file that torch knows once a module is imported.
_REGISTERED_BY = {
    "torchao": "torchao.prototype.mx_formats",
    TRANSFORMERS: "transformers.integrations.moe",
}
#: Files of torch.export.save.
SUFFIX = ".pt2"

#: torch-to-iree without its calling convention: functions on tensors, as all programs here have.
LOWER: tuple[str, ...] = (
    *(
        f"func.func({name})"
        for name in (
            "torch-iree-bitcast-tensor",
            "torch-reduce-op-variants",
            "torch-decompose-complex-ops",
            "torch-fuse-quantized-ops",
            "torch-scalarize-shapes",
            "torch-iree-torch-unstructured-to-linalg-ext",
            "convert-torch-to-tmtensor",
            "torch-iree-tm-tensor-to-linalg-ext",
            "convert-torch-to-tensor",
            "convert-torch-to-linalg",
            "convert-torch-to-scf",
            "convert-torch-to-arith",
        )
    ),
    "torch-func-backend-type-conversion",
    "func.func(canonicalize, cse, torch-finalizing-backend-type-conversion)",
    "inline",
    "symbol-dce",
    "linalg-fold-unit-extent-dims",
    "canonicalize",
    "cse",
)
#: dtypes of torch that are stored as they are, and their MLIR types; numpy sees the others as ints.
_ELEMENTS = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e5m2": "f8E5M2",
    "float8_e8m0fnu": "f8E8M0FNU",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "i8",
    "float4_e2m1fn_x2": "i8",
}
#: A note on assertions, before their messages, and how many of these it has.
_UNCHECKED, _NOTED = "what the program asserts of data or sizes is not checked", 3
#: An extra file in those that `save` writes: their programs are not lowered again, which takes
#: longer than all else of the import.
_LOWERED = "lowered by mxc"


def is_exported(source: object) -> bool:
    """Whether an object is a `torch.export.ExportedProgram`, without importing torch."""
    kind = type(source)
    return kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.")


def save(program: Any, file: Path) -> None:
    """Write an ExportedProgram, which the worker reads.

    Raises CompileError for an operation on 4-bit floats that has no lowering.
    """
    import torch

    try:
        torch.export.save(lowered(program), file, extra_files={_LOWERED: ""})
    except Exception as error:
        raise _refusal(error) from error


def read_torch(
    context: ir.Context,
    file: Path,
    constants: ConstantParameters,
    tell: Tell | None,
) -> tuple[ir.Module, tuple[str, ...], tuple[str, ...], dict[int, int]]:
    """The module of a .pt2 file on tensors, the names of its arguments and of its results, and the
    arguments whose memory is that of a result; `tell` as in `lower`.

    Parameters and buffers are parameters of the same names; buffers that the program changes are
    arguments. Raises CompileError for what the importer does not know, PassError with its place for
    an operation that has no lowering.
    """
    try:
        from iree.compiler.extras.fx_importer import FxImporter

        for name, module in _REGISTERED_BY.items():
            if _has(file, name.encode()):
                import_module(module)
    except ImportError as error:
        raise CompileError(
            f"a program from torch needs what it was made with ({error}): pip install 'mxc[torch]'",
            phase="import",
        ) from error

    loaded, is_lowered = _loaded(file)
    try:
        program = loaded if is_lowered else lowered(loaded)
        if dropped := drop_assertions(program):
            more = [f"and {len(dropped) - _NOTED} more"] if len(dropped) > _NOTED else []
            constants.note(f"{_UNCHECKED}: {'; '.join([*dropped[:_NOTED], *more])}")
        states = states_as_arguments(program)
        require_importable(program)
        name_sizes(program)
        hooks = _Tensors(constants)
        importer = FxImporter(context=context, hooks=hooks)
        hooks.parameters = Parameters(importer.module)
        importer.import_program(program, func_name="main")
    except CompileError:
        raise
    except Exception as error:
        raise _refusal(error) from error
    module = importer.module
    require_known(module)
    lower(LOWER, module, tell)
    _see_through_views(module)
    inputs = tuple(map(str, program.graph_signature.user_inputs))
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    # Numbers and None that are the same in each call are no arguments of the function.
    sizes = {name: _names_of_sizes(values[name]) for name in inputs if name in values}
    require_same_sizes(module, [*sizes], [*sizes.values()])
    outputs = states.outputs(len(program.graph_signature.user_outputs))
    return module, states.inputs(inputs), outputs, states.in_place(inputs)


def _names_of_sizes(value: Any) -> list[str | None]:
    """What torch calls the sizes of a tensor that come with the call; None for other sizes."""
    found: list[str | None] = []
    for size in getattr(value, "shape", ()):
        name = None if isinstance(size, int) else size.node.expr
        found.append(str(name) if getattr(name, "is_symbol", False) else None)
    return found


def _loaded(file: Path) -> tuple[Any, bool]:
    """The ExportedProgram of a file, and whether `save` has written it.

    Raises CompileError: by name for an operator that torch does not have, which only torch's log
    says, or for another file.
    """
    import torch

    log, said = logging.getLogger("torch.export"), io.StringIO()
    handler, above = logging.StreamHandler(said), log.propagate
    log.addHandler(handler)
    log.propagate = False
    extra: dict[str, Any] = {_LOWERED: None}  # torch fills no dict that is empty
    try:
        return torch.export.load(file, extra_files=extra), extra[_LOWERED] is not None
    except Exception as error:
        text = said.getvalue()
        if unknown := _UNKNOWN.search(text):
            place = _place(text[unknown.end() :])
            raise CompileError(f"{place}{unknown[1]} {NO_LOWERING}", phase="import") from error
        raise CompileError(
            f"{file.name} cannot be imported: it is no file that torch.export.save of torch "
            f"{torch.__version__} writes ({_in_a_line(error)})",
            phase="import",
        ) from error
    finally:
        log.removeHandler(handler)
        log.propagate = above


def require_importable(program: Any) -> None:
    """Raise CompileError, with its place, for the first node that the importer does not know: by
    the type of its values, as control flow, or as one that draws random numbers or makes a number
    of Python."""
    import torch
    from iree.compiler.extras import fx_importer

    given = {*program.graph_signature.user_inputs}
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            name = node.target.name()
            if not hasattr(fx_importer.GraphNodeImporter, f"_import_hop_{name}"):
                # That a call has effects is said around it.
                what = node.args[1] if name == "with_effects" else f"torch.{name}"
                raise CompileError(f"{_named(node, what)} {NO_LOWERING}", phase="import")
        if node.target is torch.ops.aten._local_scalar_dense.default:
            raise CompileError(
                f"{_named(node, 'Tensor.item()')} makes a number of Python, which compiled "
                "programs have none of; go on with the tensor of one element",
                phase="import",
            )
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise CompileError(
                f"{_named(node, node.target)} draws random numbers, which compiled programs do "
                "not; export the module after eval(), or give it the numbers as an argument",
                phase="import",
            )
        kind = getattr(node.meta.get("val"), "dtype", None)
        known = kind is None or kind in fx_importer.TORCH_DTYPE_TO_MLIR_TYPE
        if not known or (node.name in given and kind is not None and kind.is_complex):
            argument = f"argument {node.name}" if node.op == "placeholder" else None
            raise CompileError(
                f"{argument or _named(node, node.target)} is {kind}, which has no lowering; use "
                "another type",
                phase="import",
            )


def _place(trace: str) -> str:
    """The place of the user's source in a trace of torch, before a message; empty if none."""
    found = _PLACE.search(trace)
    return f"{found[1]}:{found[2]}: " if found else ""


def _refusal(error: Exception) -> CompileError:
    """The error for an exception of torch or of the importer, with the node that it was at."""
    said, node = _in_a_line(error).partition(_AT)[0], _node_of(error)
    if node is None:
        return CompileError(f"the program cannot be imported: {said}", phase="import")
    return CompileError(f"{_named(node, node.target)} cannot be imported: {said}", phase="import")


def _named(node: Any, what: object) -> str:
    """What a node calls, after its place in the user's source."""
    place = _place(node.meta.get("stack_trace") or "")
    return f"{place}{what}" if place else f"{what} (its place is not known)"


def _node_of(error: Exception) -> Any:
    """The node of a graph that a loop over nodes was at where an exception was raised, or None."""
    import torch

    found, at = None, error.__traceback__
    while at is not None:
        own = at.tb_frame.f_locals
        node = own.get("node", own.get("n"))
        found = node if isinstance(node, torch.fx.Node) and node.op != "output" else found
        at = at.tb_next
    return found


def _in_a_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:600]


def _has(file: Path, name: bytes) -> bool:
    if not file.stat().st_size:  # which has no map
        return False
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(name) >= 0


class _Tensors:
    """Hooks of the importer: where it asks for the value of a tensor that it knows."""

    def __init__(self, constants: ConstantParameters) -> None:
        self._constants = constants
        self.parameters: Parameters | None = None

    def prepare_module(self, module: ir.Operation) -> None:
        """Nothing is put into a module before its graph."""

    def resolve_input(self, gni: Any, value: Any, info: Any) -> ir.Value:
        """The value of a parameter or a buffer."""
        return self._value(gni, value, info.input_spec.target)

    def resolve_literal(self, gni: Any, literal: Any, info: Any) -> ir.Value | None:
        """The value of a tensor that stands in the graph; None for a number."""
        if not hasattr(literal, "dtype"):
            return None
        return self._value(gni, literal, "constant" if info is None else info.input_spec.target)

    def _value(self, gni: Any, value: Any, name: str) -> ir.Value:
        kind = gni._cc.tensor_to_vtensor_type(value)
        assert self.parameters is not None
        with ir.InsertionPoint(gni._b):
            tensor = _load(value, name, self.parameters, self._constants)
            return ir.Operation.create(
                "torch_c.from_builtin_tensor", results=[kind], operands=[tensor]
            ).result


def _load(value: Any, name: str, parameters: Parameters, constants: ConstantParameters) -> ir.Value:
    """A tensor of the program as a parameter; a short list of numbers as a constant."""
    element = _ELEMENTS.get(str(value.dtype).rpartition(".")[2])
    if element is None:
        raise NotImplementedError(
            f"{name} is a tensor of {value.dtype}; those of {', '.join(_ELEMENTS)} can be compiled"
        )
    array = _array(value.detach().contiguous(), element)
    # IREE makes a literal of bytes with a sign.
    has_sign = str(value.dtype) != "torch.uint8"
    plain = element == "bf16" or (array.dtype.kind in "fi" and has_sign)
    if (array.ndim == 0 or (array.ndim == 1 and array.size <= LIST)) and plain:
        kind = ir.RankedTensorType.get(array.shape, ir.Type.parse(element))
        # Of bf16 the attribute takes the bits.
        numbers = array.view(np.uint16) if element == "bf16" else array
        attribute = ir.DenseElementsAttr.get(np.ascontiguousarray(numbers), type=kind)
        return ir.Operation.create(
            "arith.constant", results=[kind], attributes={"value": attribute}
        ).result
    return constants.load(constants.add(name, array, element), parameters)


def _array(tensor: Any, element: str) -> np.ndarray[Any, np.dtype[Any]]:
    """A tensor as an array of the dtype of ml_dtypes; numpy knows no small floats of torch."""
    import torch

    wide = tensor.element_size()
    if element in ("bf16",) or element.startswith("f8") or element == "i8":
        ints = {1: torch.uint8, 2: torch.int16}[wide]
        return np.array(tensor.view(ints).numpy()).view(ConstantParameters.dtype(element))
    return np.array(tensor.numpy())


def _see_through_views(module: ir.Module) -> None:
    """Make views of bits as another type operations on elements, which fuse with those around."""
    for op in [op for op in walk(module.operation) if op.name == "iree_tensor_ext.bitcast"]:
        value, kind = op.operands[0], op.results[0].type
        stored = None if isinstance(value, ir.BlockArgument) else value.owner.operation
        if stored is not None and stored.name == "flow.tensor.bitcast":
            value = stored.operands[0]
        if value.type != kind:
            if ir.RankedTensorType(value.type).shape != ir.RankedTensorType(kind).shape:
                continue
            with ir.InsertionPoint(op), op.location:
                value = arith.BitcastOp(kind, value).result
        op.results[0].replace_all_uses_with(value)
        op.erase()


def lower(passes: Sequence[str], module: ir.Module, tell: Tell | None) -> None:
    """Run passes of the importer, with `tell` first on each operation alone (`lower_each`).

    Raises PassError, with its place in the user's source, for an operation without a lowering.
    """
    if tell is not None:
        lower_each(module.operation, passes, tell)
    before = module.operation.clone()
    try:
        run(passes, module)
    except PassError as error:
        op = refused(before, passes, error.place)
        if op is None:
            raise
        raise PassError(f"{named(op)} {NO_LOWERING}") from error


def require_known(module: ir.Module) -> None:
    """Raise CompileError, with its place, for an operation that is not torch's own."""
    for op in walk(module.operation):
        if op.name == "torch.operator":
            raise CompileError(f"{named(op)} {NO_LOWERING}", phase="import")
