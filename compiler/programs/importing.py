"""The import of a program, inside the worker process: an importer may end its process."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from iree.compiler import ir

from mxc.compiler.programs import onnx
from mxc.compiler.programs.constants import ConstantParameters
from mxc.compiler.programs.imported import ImportedProgram
from mxc.compiler.programs.signature import set_signature
from mxc.compiler.programs.single import Tell, named
from mxc.compiler.programs.stablehlo.lowering import donations, lower_stablehlo, names_of
from mxc.compiler.programs.torch import read_torch
from mxc.compiler.steps import IMPORT, CompileStep, ImportRequest
from mxc.dialects.context import new_context
from mxc.dialects.locations import with_place
from mxc.errors import CompileError
from mxc.passes.base import run
from mxc.passes.canonical_operands import CanonicalOperands
from mxc.passes.normalize import NORMALIZE

#: What stands before the passes that put operands in order: here that is done to the bytes.
_READ = NORMALIZE[: NORMALIZE.index(CanonicalOperands())]


def import_here(request: ImportRequest, tell: Callable[[CompileStep], None]) -> ImportedProgram:
    """One module of all functions of the request, its constants as files in `request.folder`.

    Raises CompileError for a program that does not parse, PassError with its place for an
    operation that has no lowering.
    """
    with new_context(), ir.Location.unknown():
        whole = ir.Module.create()
        constants = ConstantParameters(whole, request.folder, request.functions)
        for name, source in request.functions.items():
            each = _teller(name, tell)
            each(None)
            if isinstance(source, Path) and source.suffix == onnx.SUFFIX:
                module, inputs, outputs = onnx.read_onnx(
                    whole.context, source, constants, each if request.alone else None
                )
                _add(whole, name, module, inputs, outputs)
            elif isinstance(source, Path):
                module, inputs, outputs, in_place = read_torch(
                    whole.context, source, constants, each if request.alone else None
                )
                _add(whole, name, module, inputs, outputs, in_place)
            else:
                module = _parsed(source)
                inputs, outputs = names_of(module)
                in_place = donations(module)
                lower_stablehlo(module)
                _add(whole, name, module, inputs, outputs, in_place)
        constants.take()
        run(_READ, whole)
        constants.arrange()
        buffer = io.BytesIO()
        whole.operation.write_bytecode(buffer)
        return ImportedProgram(buffer.getvalue(), constants.found)


def _teller(name: str, tell: Callable[[CompileStep], None]) -> Tell:
    """Tell the step of the import of a function, or of one operation of it."""

    def step(op: ir.Operation | None) -> None:
        if op is None:
            tell(CompileStep(kind="phase", name=f"{IMPORT} {name}"))
        else:
            tell(CompileStep(kind="part", name=named(op)))

    return step


def _parsed(code: bytes) -> ir.Module:
    context = ir.Context.current
    try:
        # JAX writes rules for sharding that IREE does not know; what runs does not depend on them.
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(code)
    except ir.MLIRError as error:
        found = "; ".join(with_place(d.location, d.message) for d in error.error_diagnostics)
        text = " ".join((found or str(error)).split())
        raise CompileError(f"the program does not parse: {text}", phase="import") from error
    finally:
        context.allow_unregistered_dialects = False
    if any(view.operation.name.startswith("vhlo.") for view in module.body.operations):
        raise CompileError(
            "the program is portable bytecode of StableHLO; write text: exported.mlir_module()",
            phase="import",
        )
    return module


def _add(
    whole: ir.Module,
    name: str,
    module: ir.Module,
    inputs: Sequence[str],
    outputs: Sequence[str] = (),
    in_place: Mapping[int, int] | None = None,
) -> None:
    """Put the public function of a lowered program, and its parameters, into `whole`."""
    for view in module.body.operations:
        op = view.operation
        try:
            if op.name == "func.func":
                set_signature(op, name, inputs, outputs, in_place or {})
        except ValueError as error:
            raise CompileError(f"function {name}: {error}", phase="import") from error
        whole.body.append(op.clone())
