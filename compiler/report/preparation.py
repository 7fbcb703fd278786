"""Finds the dispatches that only prepare operands of a contraction, in the program after "flow".

A dispatch that dequantizes, gathers or reorders a weight, or quantizes activations, is part of the
cost of the contraction that reads its result. Hoisted weights are followed through the global that
an initializer writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.contractions import FactorPair, Side
from mxc.dialects.dequantize import is_element, is_elementwise
from mxc.dialects.dispatches import LOAD, Dispatch, owner, source, walk
from mxc.dialects.kernel_calls import quantizes
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.quantize import QUANTIZING
from mxc.passes.verify_packed_weights import WeightValues


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Dispatches that prepare operands, in no order. `lhs` and `rhs` are the packed forms of
    operands that arrive dequantized.

    `widened` is the dispatch that writes a dequantized operand, `block` the number of elements per
    scale.
    """

    dispatches: tuple[Dispatch, ...] = ()
    widened: Dispatch | None = None
    lhs: Side | None = None
    rhs: Side | None = None
    block: int = 0


def preparation(
    dispatch: Dispatch, contraction: FactorPair, weights: WeightValues, stores: dict[str, ir.Value]
) -> Preparation:
    """Return the dispatches that only prepare operands of `contraction` in `dispatch`.

    stores: the values that initializers write to globals, `hoisted_globals(module)`.
    """
    found: dict[Dispatch, None] = {}
    widened: Dispatch | None = None
    packed: dict[str, Side] = {}
    block = 0
    for which, side in (("lhs", contraction.lhs), ("rhs", contraction.rhs)):
        sides = [side.tensor] if side.scale is None else [side.tensor, side.scale]
        pending = [operand(dispatch, value) for value in sides]
        local = _dequantizer(owner(_through(side.tensor))) or _decoded(side.tensor)
        if local is not None:
            packed[which], block = local
        while pending:
            value = pending.pop()
            maker = None if value is None else _maker(value, weights, stores)
            if maker is None or maker in found:
                continue
            if not _prepares(maker, weights) and not _decodes(maker):
                continue
            found[maker] = None
            pending += maker.operands
            for op in walk(maker.body) if maker.body is not None else ():
                origin = _dequantizer(op) or _decoded_by(op)
                if origin is not None and side.scale is None:
                    widened = maker
                    packed[which], block = origin
    return Preparation(
        dispatches=tuple(found),
        widened=widened,
        lhs=packed.get("lhs"),
        rhs=packed.get("rhs"),
        block=block,
    )


def quantizing(
    dispatch: Dispatch, weights: WeightValues, stores: dict[str, ir.Value]
) -> tuple[Dispatch, ...]:
    """Return the dispatches that quantize or reorder operands of a kernel of ours, in no order."""
    found: dict[Dispatch, None] = {}
    pending = dispatch.operands
    while pending:
        maker = _maker(pending.pop(), weights, stores)
        if maker is None or maker in found or not _prepares(maker, weights):
            continue
        # Rows selected by data, as in an embedding, are not a reordered weight.
        if _quantizes(maker) or not any(map(weights.chosen, maker.op.results)):
            found[maker] = None
            pending += maker.operands
    return tuple(found)


def _maker(value: ir.Value, weights: WeightValues, stores: dict[str, ir.Value]) -> Dispatch | None:
    """Return the dispatch that writes `value`, through renames and hoisted globals."""
    value = source(value)
    op = owner(value)
    while op is not None and op.name == "util.global.load":
        name = str(ir.FlatSymbolRefAttr(op.attributes["global"]).value)
        if name not in stores:
            return None
        value = source(stores[name])
        op = owner(value)
    return None if op is None else weights.dispatches.get(op)


def _prepares(dispatch: Dispatch, weights: WeightValues) -> bool:
    """Return whether a dispatch only copies or reorders a weight, or quantizes."""
    if _quantizes(dispatch):
        return True
    return dispatch.body is not None and all(map(weights.hold, dispatch.op.results))


def _quantizes(dispatch: Dispatch) -> bool:
    if quantizes(dispatch.op) or QUANTIZING in dispatch.names:
        return True
    return dispatch.body is not None and any(
        op.name == "arith.scaling_truncf"
        or (op.name == "arith.truncf" and is_element(op.results[0].type))
        for op in walk(dispatch.body)
    )


def _decodes(dispatch: Dispatch) -> bool:
    """Return whether a dispatch only converts narrow elements to floats, without a reduction."""
    if dispatch.body is None:
        return False
    loops = [op for op in walk(dispatch.body) if op.name.startswith("linalg.") and op.regions]
    return all(map(is_elementwise, loops)) and any(_decoded_by(op) is not None for op in loops)


def operand(dispatch: Dispatch, value: ir.Value) -> ir.Value | None:
    """Return the operand of the dispatch that its body reads as `value`."""
    op = owner(_through(value))
    if op is None or op.name != LOAD:
        return None
    argument = op.operands[0]
    if owner(argument) is not None:
        return None
    index = ir.BlockArgument(argument).arg_number
    return dispatch.operands[index] if index < len(dispatch.operands) else None


def _through(value: ir.Value) -> ir.Value:
    """Return the source of `value` in a body, through renames, gathers and slices."""
    value = source(value)
    op = owner(value)
    while op is not None and op.name in (GATHER, "tensor.extract_slice"):
        value = source(op.operands[0])
        op = owner(value)
    return value


def _dequantizer(op: ir.Operation | None) -> tuple[Side, int] | None:
    """Return the packed operand and block size that an elementwise dequantizing operation reads."""
    if op is None or not op.name.startswith("linalg.") or not op.regions:
        return None
    if not any(inner.name in ("arith.scaling_extf", "arith.extf") for inner in walk(op)):
        return None
    tensors = [v for v in list(op.operands)[:-1] if isinstance(v.type, ir.RankedTensorType)]
    elements = [v for v in tensors if is_element(ir.RankedTensorType(v.type).element_type)]
    scales = [
        v
        for v in tensors
        if isinstance(ir.RankedTensorType(v.type).element_type, ir.Float8E8M0FNUType)
    ]
    if len(elements) != 1:
        return None
    element, scale = elements[0], scales[0] if scales else None
    block = 0 if scale is None else _count(element) // max(1, _count(scale))
    return Side(tensor=element, dims=(), scale=scale), block


def is_narrow(element: ir.Type) -> bool:
    """Return whether packed elements have this type: a float or an integer of 2 to 8 bits."""
    if isinstance(element, ir.IntegerType):
        return 1 < int(element.width) <= 8
    return is_element(element)


def _decoded_by(op: ir.Operation) -> tuple[Side, int] | None:
    loops = op.name.startswith("linalg.") and bool(op.regions) and len(op.results) == 1
    return _decoded(op.results[0]) if loops else None


def _decoded(value: ir.Value) -> tuple[Side, int] | None:
    """Return the narrow elements that elementwise operations convert to the floats `value`.

    A tensor with less than half as many elements (two packed in a byte) is a scale, a table or a
    mask.
    """
    kind = ir.RankedTensorType(value.type).element_type
    if not isinstance(kind, ir.FloatType) or int(kind.width) <= 8:
        return None
    leaves: list[ir.Value] = []
    pending = _reads(value)
    while pending:
        read = pending.pop()
        more = _reads(read)
        pending += more
        if not more and isinstance(read.type, ir.RankedTensorType):
            leaves.append(read)
    narrow = [leaf for leaf in leaves if is_narrow(ir.RankedTensorType(leaf.type).element_type)]
    elements = max(narrow, key=_count, default=None)
    if elements is None or 2 * _count(elements) < _count(value):
        return None
    return Side(tensor=elements, dims=()), 0


def _reads(value: ir.Value) -> list[ir.Value]:
    """Return the tensors that an elementwise operation reads, with its lookup tables."""
    op = owner(source(value))
    if op is None or op.name == LOAD:
        return []
    if op.name in (GATHER, "tensor.extract_slice"):
        return list(op.operands)
    if not op.name.startswith("linalg.") or not op.regions or not is_elementwise(op):
        return []
    tables = [inner.operands[0] for inner in walk(op) if inner.name == "tensor.extract"]
    return [*list(op.operands)[:-1], *tables]


def _count(value: ir.Value) -> int:
    size = 1
    for extent in ir.RankedTensorType(value.type).shape:
        size *= max(1, extent)
    return size


def hoisted_globals(module: ir.Operation) -> dict[str, ir.Value]:
    """Return the value that an initializer writes to each global, by the global's name."""
    return {
        str(ir.FlatSymbolRefAttr(op.attributes["global"]).value): op.operands[0]
        for top in module.regions[0].blocks[0].operations
        if top.operation.name == "util.initializer"
        for op in walk(top.operation)
        if op.name == "util.global.store"
    }
