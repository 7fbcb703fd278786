"""Signatures of the public functions of a program, and checks that a caller can call them."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir

from mxc.artifact.manifest import Function, TensorType
from mxc.dialects.locations import with_place
from mxc.dialects.named_operations import symbol_of
from mxc.dialects.parameters import ELEMENT, IN_PLACE, NAME
from mxc.errors import CompileError

#: Element types that cross the boundary: the runtime has a numpy type for each.
BOUNDARY = (
    "f64", "f32", "f16", "bf16", "f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ", "f8E8M0FNU",
    "i64", "i32", "i16", "i8", "i1",
)  # fmt: skip

#: Types of scalars that are passed by value; IREE's VM has no register for the other types.
NUMBERS = ("f64", "f32", "i64", "i32")


def signatures(module: ir.Module) -> dict[str, Function]:
    """Return the signatures of the public functions of a program, by name.

    Raises CompileError if there is none, if one has no body, or if a type cannot cross the
    boundary. Attributes NAME and ELEMENT of arguments and results are removed from the program.
    """
    found: dict[str, Function] = {}
    for view in module.body.operations:
        op = view.operation
        if op.name not in ("util.func", "func.func"):
            continue
        name = symbol_of(op)
        if len(op.regions[0].blocks) == 0:
            raise CompileError(
                with_place(
                    op.location,
                    f"function {name} has no body, and nothing else provides it; write its body, "
                    "or remove it",
                ),
                phase="start",
            )
        if _is_private(op):
            continue
        kind = ir.FunctionType(ir.TypeAttr(op.attributes["function_type"]).value)
        arguments = _taken(op, "arg_attrs", kind.inputs)
        results = _taken(op, "res_attrs", kind.results)
        found[name] = Function(
            inputs=_types(kind.inputs, op, name, arguments),
            outputs=_types(kind.results, op, name, results),
            input_names=_names(arguments),
            output_names=_names(results),
            in_place=_in_place(op),
        )
    if not found:
        raise CompileError(
            "the program has no public function, so there is nothing to call; make one func.func "
            "or util.func public",
            phase="start",
        )
    return found


def _types(
    kinds: Sequence[ir.Type], op: ir.Operation, function: str, said: Sequence[dict[str, str]]
) -> tuple[TensorType, ...]:
    return tuple(_type(t, op, function, each) for t, each in zip(kinds, said, strict=True))


def _taken(op: ir.Operation, which: str, kinds: Sequence[ir.Type]) -> list[dict[str, str]]:
    """Remove NAME and ELEMENT from each argument or result, and return their values."""
    if which not in op.attributes:
        return [{} for _ in kinds]
    every = [ir.DictAttr(each) for each in op.attributes[which]]
    ours = [
        {key: ir.StringAttr(each[key]).value for key in (NAME, ELEMENT) if key in each}
        for each in every
    ]
    if any(ours):
        left = [{n.name: n.attr for n in each if n.name not in (NAME, ELEMENT)} for each in every]
        with op.context:
            op.attributes[which] = ir.ArrayAttr.get([ir.DictAttr.get(each) for each in left])
    return ours


def _in_place(op: ir.Operation) -> tuple[tuple[int, int], ...]:
    """The arguments of a function whose memory is that of a result, with the number of that."""
    given = op.attributes.get("arg_attrs", [])
    return tuple(
        (number, ir.IntegerAttr(each[IN_PLACE]).value)
        for number, each in enumerate(map(ir.DictAttr, given))
        if IN_PLACE in each
    )


def _names(said: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """Return the name of each; an empty tuple if none has a name."""
    names = tuple(each.get(NAME, "") for each in said)
    return names if any(names) else ()


def _is_private(op: ir.Operation) -> bool:
    name = "sym_visibility"
    return name in op.attributes and ir.StringAttr(op.attributes[name]).value == "private"


def require_no_parameters(module: ir.Module) -> None:
    """Raise CompileError if a program names parameters: no weights are packed for it."""
    found: list[tuple[ir.Location, ir.Attribute]] = []

    def look(op: ir.Operation) -> ir.WalkResult:
        # Only attributes without a class in the bindings: the text of a constant may be gigabytes.
        values = [v for v in _attributes(op) if type(v) is ir.Attribute]
        found.extend((op.location, v) for v in values if str(v).startswith("#flow.parameter"))
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    module.operation.walk(look, ir.WalkOrder.PRE_ORDER)
    for location, value in found:
        raise CompileError(
            with_place(
                location,
                f"names the parameter {value}, and nothing packs parameters for a program; pass it "
                "as an argument, or write its value into the program",
            ),
            phase="start",
        )


def _attributes(op: ir.Operation) -> list[ir.Attribute]:
    return [op.attributes[index].attr for index in range(len(op.attributes))]


def _type(kind: ir.Type, op: ir.Operation, function: str, said: dict[str, str]) -> TensorType:
    """Return the boundary type of one argument or result. A scalar has shape ()."""
    if isinstance(kind, ir.RankedTensorType) and ELEMENT in said:
        *rows, last = (-1 if size < 0 else size for size in kind.shape)
        return TensorType(shape=(*rows, 2 * last), dtype=said[ELEMENT])
    if isinstance(kind, ir.RankedTensorType) and str(kind.element_type) in BOUNDARY:
        return TensorType(
            shape=tuple(-1 if size < 0 else size for size in kind.shape),
            dtype=str(kind.element_type),
        )
    if str(kind) in NUMBERS:
        return TensorType(shape=(), dtype=str(kind))
    raise CompileError(
        with_place(
            op.location,
            f"function {function} has an argument or result of type {kind}, which cannot cross the "
            f"boundary; numbers of {', '.join(NUMBERS)} and tensors of {', '.join(BOUNDARY)} can. "
            "Packed elements cross as i8 and are named inside by flow.tensor.bitcast",
        ),
        phase="start",
    )
