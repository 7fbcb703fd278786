"""Operations of StableHLO on tensors of dynamic sizes, for which IREE has no lowering.

- A reshape merges and splits dimensions whose sizes are known to fit, so that what reads its result
  is seen to read its operand; others go through one dimension.
- A broadcast repeats dimensions of one element, and no other.
- A gather at one place, as which JAX writes slices, is a slice; at several it reads its elements
  one by one.
- Slices that begin at a computed place, and updates of them, begin so that they end in time.
- A product is a `linalg.generic` over its own dimensions, which IREE would reshape first.
- A scatter of one part combines it with the elements where it is.
- A running sum is a scan. Windows of known sizes have loops of their own.
- Of a concatenation, parts without elements are left out.
- A convolution is one of linalg, with the features last, or a `linalg.generic` if it has groups.

What is left the importer refuses with its place.
"""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir

from mxc.compiler.programs.stablehlo.convolutions import convolution
from mxc.compiler.programs.stablehlo.operations import as_type, signless
from mxc.compiler.programs.stablehlo.places import gathered, sliced, updated
from mxc.compiler.programs.stablehlo.products import product
from mxc.compiler.programs.stablehlo.reshapes import broadcast, reshaped
from mxc.compiler.programs.stablehlo.scatters import scattered
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes, has_no_sign
from mxc.compiler.programs.stablehlo.windows import windows_of_call, windows_of_operation
from mxc.dialects.dispatches import walk
from mxc.dialects.sizes import shape_of
from mxc.passes.base import run


def _scattered(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    found = scattered(op)
    if found is not None:
        sizes.record(found, sizes.of(op.operands[0]))
    return found


def _with_elements(op: ir.Operation, _: DimensionSizes) -> ir.Value | None:
    """A concatenation without the parts that have no elements, for which IREE makes no code."""
    parts = [each for each in op.operands if 0 not in shape_of(each)]
    if len(parts) == len(op.operands) or not parts:
        return None
    if len(parts) == 1 and parts[0].type == op.results[0].type:
        return parts[0]
    attributes = {name: op.attributes[name] for name in op.attributes}
    return ir.Operation.create(
        op.name, results=[op.results[0].type], operands=parts, attributes=attributes
    ).result


#: DimensionSizes are computed in @main, and functions get them as arguments.
_INLINE = ("inline", "symbol-dce", "canonicalize", "cse")
#: Operations that compute: their numbers keep their signs.
_COMPUTE = (
    "stablehlo.dot_general",
    "stablehlo.convolution",
    "stablehlo.dynamic_conv",
    "stablehlo.custom_call",
    "stablehlo.reduce_window",
    "stablehlo.scatter",
)
#: Operation -> what makes the value that replaces its result, or None to leave it to IREE.
_REWRITES: dict[str, Callable[[ir.Operation, DimensionSizes], ir.Value | None]] = {
    "stablehlo.dynamic_reshape": reshaped,
    "stablehlo.dynamic_broadcast_in_dim": broadcast,
    "stablehlo.dynamic_gather": gathered,
    "stablehlo.gather": gathered,
    "stablehlo.dynamic_slice": sliced,
    "stablehlo.dynamic_update_slice": updated,
    "stablehlo.dot_general": product,
    "stablehlo.convolution": convolution,
    "stablehlo.dynamic_conv": convolution,
    "stablehlo.scatter": _scattered,
    "stablehlo.custom_call": windows_of_call,
    "stablehlo.reduce_window": windows_of_operation,
    "stablehlo.concatenate": _with_elements,
}


def lower_dynamic(module: ir.Module) -> None:
    """Rewrite in place what IREE does not lower, if the module has dynamic sizes.

    Raises PassError for windows that have no lowering.
    """
    if not any(map(_is_dynamic, walk(module.operation))):
        return
    run(_INLINE, module)
    sizes, replaced = DimensionSizes(), list[ir.Operation]()
    for op in list(walk(module.operation)):
        if op.name == "stablehlo.get_dimension_size" and has_no_sign(op.operands[0]):
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = as_type(op.operands[0], signless(op.operands[0].type))
    for op in list(walk(module.operation)):
        rewrite = _REWRITES.get(op.name)
        if rewrite is None or not _is_dynamic(op):
            continue
        with ir.InsertionPoint(op), op.location:
            own = op if op.name in _COMPUTE else _without_signs(op)
            found = rewrite(own, sizes)
            if found is None:
                continue
            if own != op:
                made = sizes.of(found)
                found = as_type(found, op.results[0].type)
                sizes.record(found, made)
        op.results[0].replace_all_uses_with(found)
        replaced += dict.fromkeys((op, own))
    # Not before: sizes are known by the values that they come from.
    for op in reversed(replaced):
        op.erase()


def _without_signs(op: ir.Operation) -> ir.Operation:
    """What moves unsigned numbers, as one that moves the same bits without a sign."""
    if not has_no_sign(op.results[0]):
        return op
    return ir.Operation.create(
        op.name,
        results=[signless(op.results[0].type)],
        operands=[
            as_type(each, signless(each.type)) if has_no_sign(each) else each
            for each in op.operands
        ],
        attributes={name: op.attributes[name] for name in op.attributes},
    )


def _is_dynamic(op: ir.Operation) -> bool:
    kinds = [value.type for value in (*op.operands, *op.results)]
    shaped = [ir.RankedTensorType(each) for each in kinds if isinstance(each, ir.RankedTensorType)]
    return op.name.startswith("stablehlo.") and not all(each.has_static_shape for each in shaped)
