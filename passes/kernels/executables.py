"""An executable around a kernel body, and the dispatch that calls it.

    stream.executable private @NAME {
      stream.executable.export public @NAME workgroups() -> (index, index, index) { .. }
      builtin.module { func.func @NAME(%b0: !stream.binding, ..) attributes {no_pipeline} { .. } }
    }
    %result = flow.dispatch @NAME::@NAME(%operands..)

IREE's code generator takes such a body as it is (`no_pipeline`): vectors, loops, intrinsics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir

from mxc.passes.kernels.vectors import index

_NO_PIPELINE = "#iree_codegen.translation_info<pipeline = #iree_codegen.no_pipeline>"

#: Builds a body from the memrefs of the operands and the result, in this order.
Body = Callable[..., None]


def executable(
    name: str,
    buffers: Sequence[ir.Type],
    workgroups: tuple[int, int],
    body: Body,
) -> ir.Operation:
    """Build @name at the insertion point. `buffers`: the memref type of each binding."""
    executable = ir.Operation.create(
        "stream.executable",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("private"),
        },
        regions=1,
    )
    with ir.InsertionPoint(executable.regions[0].blocks.append()):
        _export(name, workgroups)
        module = ir.Operation.create("builtin.module", regions=1)
        with ir.InsertionPoint(module.regions[0].blocks.append()):
            _function(name, buffers, body)
        ir.Operation.create("stream.executable.end")
    return executable


def _export(name: str, workgroups: tuple[int, int]) -> None:
    export = ir.Operation.create(
        "stream.executable.export",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "sym_visibility": ir.StringAttr.get("public"),
            "function_ref": ir.FlatSymbolRefAttr.get(name),
        },
        regions=1,
    )
    with ir.InsertionPoint(export.regions[0].blocks.append()):
        counts = [index(count) for count in (*workgroups, 1)]
        ir.Operation.create("stream.return", operands=counts)


def _function(name: str, buffers: Sequence[ir.Type], body: Body) -> None:
    binding = ir.Type.parse("!stream.binding")
    kinds = [binding] * len(buffers)
    function = ir.Operation.create(
        "func.func",
        attributes={
            "sym_name": ir.StringAttr.get(name),
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(kinds, [])),
            "translation_info": ir.Attribute.parse(_NO_PIPELINE),
        },
        regions=1,
    )
    block = function.regions[0].blocks.append(*kinds)
    with ir.InsertionPoint(block):
        start = index(0)
        memrefs = [
            ir.Operation.create(
                "stream.binding.subspan", results=[kind], operands=[argument, start]
            ).result
            for kind, argument in zip(buffers, block.arguments, strict=True)
        ]
        body(*memrefs)
        ir.Operation.create("func.return")


def workgroup(dimension: int) -> ir.Value:
    """The number of the workgroup that runs, along a dimension."""
    return ir.Operation.create(
        "stream.dispatch.workgroup.id",
        results=[ir.IndexType.get()],
        attributes={"dimension": ir.IntegerAttr.get(ir.IndexType.get(), dimension)},
    ).result


def dispatch(name: str, operands: Sequence[ir.Value], result: ir.Type) -> ir.Value:
    """Call @name::@name with tensors and return its result."""
    entry = ir.SymbolRefAttr.get([name, name])
    op = ir.Operation.create(
        "flow.dispatch",
        results=[result],
        operands=list(operands),
        attributes={
            "entry_points": ir.ArrayAttr.get([entry]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, len(operands), 0, 0]),
            "tied_operands": ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IndexType.get(), -1)]),
        },
    )
    return op.result
