"""Which contractions a kernel can compute, and what it needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from iree.compiler import ir

from mxc.dialects.contractions import block_name, read
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.product import read_product
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.passes.kernels.cpu.elements import ELEMENTS, Elements
from mxc.passes.kernels.cpu.scales import Scales, ScaleType, fits
from mxc.passes.kernels.extents import Size
from mxc.passes.kernels.operands import Operand, operand
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.values import is_zero, producer


@dataclass(frozen=True, kw_only=True)
class Call:
    """One contraction: groups x [rows, depth] times [columns, depth] of one of `experts`.

    `parameters`: names of the elements and of the scales, if any, where they are some; `tensors`
    are both where they are not. `chain`: the operations between them and the contraction.
    `elements`, `scales`: what the weights are; `format` is what they are called. `experts`: 0 where
    there is one weight for all rows. `groups`, `rows`: None where they come with the call.
    """

    op: ir.Operation
    lhs: Operand
    ids: ir.Value | None
    parameters: tuple[str, ...]
    tensors: tuple[ir.Value, ...]
    chain: tuple[ir.Operation, ...]
    elements: Elements
    scales: Scales | None
    format: str
    groups: Size
    rows: Size
    columns: int
    depth: int
    experts: int


def match(op: ir.Operation) -> Call | None:
    """The call that computes `op`, or None where no kernel does."""
    scaled = match_scaled_contraction(op)
    return _match_scaled(scaled) if scaled is not None else _match_dense(op)


def _match_scaled(found: ScaledContraction) -> Call | None:
    if not found.is_canonical or found.rhs_scale is None:
        return None
    if not (found.is_row_major and len(found.maps[0].results) == len(found.batch) + 3):
        return None
    kind = _scales(element_of(found.rhs_scale), found.block)
    of = _elements(found.rhs_type, found.block if kind is None else kind.step)
    if kind is None or of is None or len(found.batch) > 1:
        return None
    lhs = operand(found.lhs, found.lhs_scale, found.k)
    if lhs is None or not is_zero(found.acc):
        return None
    elements, scales = _source(found.rhs), _source(found.rhs_scale)
    if elements is None or scales is None or elements.ids != scales.ids:
        return None
    names = tuple(each.parameter for each in (elements, scales) if each.parameter is not None)
    if len(names) == 1 or (not names and of.bits == _PLANES):
        return None
    if bool(found.batch) != (elements.ids is not None):
        return None
    return Call(
        op=found.op,
        lhs=lhs,
        ids=elements.ids,
        parameters=names,
        tensors=() if names else (elements.tensor, scales.tensor),
        chain=(*elements.chain, *scales.chain),
        elements=of,
        scales=kind,
        format=block_name(of.type, kind.type, kind.block),
        groups=_size(found.batch[0]) if found.batch else 1,
        rows=_size(found.m),
        columns=found.n,
        depth=found.k,
        experts=elements.experts,
    )


def _match_dense(op: ir.Operation) -> Call | None:
    found = read(op)
    if found is None or op.name != "linalg.generic" or found.block:
        return None
    of = _elements(found.rhs.element, BLOCK // 2 if found.k % BLOCK else BLOCK)
    if of is None or found.k % of.block:
        return None
    weight = _source(found.rhs.tensor)
    # Of plain numbers that are no parameter IREE's own code is good.
    if weight is None or weight.parameter is None or found.rhs.element != element_of(weight.tensor):
        return None
    by_expert = weight.ids is not None
    wanted = ((0, 1, 3), (0, 2, 3)) if by_expert else ((0, 2), (1, 2))
    if (found.lhs.dims, found.rhs.dims) != wanted:
        return None
    # `read` describes any product of two factors; here it must be the plain one, summed in f32.
    if len(op.operands) != 3 or isinstance(read_product(op), str):
        return None
    lhs = operand(found.lhs.tensor, None, found.k)
    if lhs is None or not is_zero(op.operands[len(op.operands) - 1]):
        return None
    return Call(
        op=op,
        lhs=lhs,
        ids=weight.ids,
        parameters=(weight.parameter,),
        tensors=(),
        chain=weight.chain,
        elements=of,
        scales=None,
        format=of.type,
        groups=_size(found.batch) if by_expert else 1,
        rows=_size(found.m),
        columns=found.n,
        depth=found.k,
        experts=weight.experts,
    )


def _scales(type: ir.Type, block: int) -> Scales | None:
    """The scales of blocks of so many elements, or None where no kernel takes them."""
    known = next((each for each in get_args(ScaleType) if each == str(type)), None)
    return Scales(known, block) if known is not None and fits(block) else None


def _elements(type: ir.Type, block: int) -> Elements | None:
    """Elements that are taken `block` at once, or None where no kernel takes them."""
    found = ELEMENTS.get(str(type))
    if found is None or (block != BLOCK and found.bits == _PLANES):
        return None
    return replace(found, block=block)


#: Bits of elements that lie in planes, for which a block is 32.
_PLANES = 6


def _size(known: int) -> Size:
    """None where it is not."""
    return known if known >= 0 else None


@dataclass(frozen=True)
class _Source:
    """A parameter, or any tensor, read whole or by the ids of experts; `tensor` is what it is
    loaded as."""

    parameter: str | None
    tensor: ir.Value
    ids: ir.Value | None
    experts: int
    chain: tuple[ir.Operation, ...]


def _source(value: ir.Value) -> _Source | None:
    """Follow gather and bitcast back to what `value` is read from: a parameter, or a tensor."""
    chain: list[ir.Operation] = []
    ids, experts = None, 0
    op = producer(value)
    if op is not None and op.name == GATHER:
        if list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"])) != [0]:
            return None
        ids, experts = op.operands[1], shape_of(op.operands[0])[0]
        if str(element_of(ids)) != "i32" or len(shape_of(ids)) != 1:
            return None
        chain.append(op)
        value = op.operands[0]
        op = producer(value)
    if op is not None and op.name == "flow.tensor.bitcast":
        chain.append(op)
        value = op.operands[0]
        op = producer(value)
    name = None
    if op is not None and op.name == "util.global.load":
        name = ir.FlatSymbolRefAttr(op.attributes["global"]).value
    elif min(shape_of(value), default=0) < 0:
        return None
    return _Source(name, value, ids, experts, tuple(chain))
