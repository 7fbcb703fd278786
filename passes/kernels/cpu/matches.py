"""Which contractions a kernel can compute, and what it needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from iree.compiler import ir

from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.contractions import is_scaled_reduction, read
from mxc.dialects.dequantize import loses_digits
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.product import read_product
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.passes.kernels.cpu.elements import ELEMENTS, Elements
from mxc.passes.kernels.cpu.scales import Scales, fits
from mxc.passes.kernels.operands import Operand, has_scales_of_one, operand
from mxc.passes.kernels.sources import BLOCK, ScaleType
from mxc.passes.kernels.values import is_zero, producer


@dataclass(frozen=True, kw_only=True)
class Call:
    """What computes `of`, and where its operands come from.

    `tensors`: the elements and the scales, if any; `parameters`: their names, where they are read
    as panels, none where they are read in rows. `chain`: the operations between them and the
    contraction. `elements`, `scales`: what the weights are.
    """

    op: ir.Operation
    of: Contraction
    lhs: Operand
    ids: ir.Value | None
    parameters: tuple[str, ...]
    tensors: tuple[ir.Value, ...]
    chain: tuple[ir.Operation, ...]
    elements: Elements
    scales: Scales | None

    @property
    def layout(self) -> tuple[object, ...]:
        """Equal for calls that read their parameters in the same panels."""
        scale = None if self.scales is None else (self.scales.type, self.scales.block)
        return self.of.experts, self.of.n, self.of.k, self.elements.block, scale

    @property
    def reads_panels(self) -> bool:
        """Whether the weights may be packed: a block of elements in planes has 32."""
        return self.elements.bits != _PLANES or self.elements.block == BLOCK

    @property
    def reads_rows(self) -> bool:
        """Whether a kernel may read the weights in rows: packed ones."""
        return self.elements.bits <= 8


def match(op: ir.Operation) -> Call | Reason:
    """The call that computes `op`, or why no kernel does."""
    scaled = match_scaled_contraction(op, rounded=True, mixed=True)
    if not isinstance(scaled, Reason):
        return _match_scaled(scaled)
    return scaled if is_scaled_reduction(op) else _match_dense(op)


def _match_scaled(found: ScaledContraction) -> Call | Reason:
    usual = found.is_canonical or found.loops.ki or any(found.rounded)
    if not usual or found.rhs_scale is None:
        return Reason("its operands, loops or body are not in canonical order")
    rank = _RANK + len(found.loops.ki)
    if not (found.is_row_major and len(found.maps[0].results) == len(found.batch) + rank):
        return Reason("an operand has its dimensions in another order than batch, row, block")
    kind = _scales(element_of(found.rhs_scale), *found.blocks)
    if isinstance(kind, Reason):
        return kind
    of = _elements(found.rhs_type, kind.step)
    if isinstance(of, Reason):
        return of
    if len(found.batch) > 1:
        return Reason(f"it has {len(found.batch)} batch dimensions; kernels take one")
    left = _rounded(found.rounded[0], found.lhs, found.lhs_scale)
    right = _rounded(found.rounded[1], found.rhs, found.rhs_scale)
    block = found.blocks[0]
    lhs = operand(found.lhs, found.lhs_scale, found.k, block=block, ones=True, to=left)
    if isinstance(lhs, Reason):
        return lhs
    if not is_zero(found.acc):
        return Reason("the accumulator is not zero")
    elements, scales = _source(found.rhs), _source(found.rhs_scale)
    if isinstance(elements, Reason):
        return elements
    if isinstance(scales, Reason):
        return scales
    parts = [elements] if has_scales_of_one(found.rhs_scale) else [elements, scales]
    if any(each.ids != elements.ids for each in parts):
        return Reason("elements and scales of the weights are gathered by different ids")
    names = tuple(each.parameter for each in parts if each.parameter is not None)
    if 0 < len(names) < len(parts):
        return Reason("of elements and scales of the weights only one is a parameter")
    groups: int | None = _size((found.batch or (1,))[0])
    rows = _size(found.m)
    experts = elements.experts
    if len(found.maps[1].results) == rank:
        if elements.ids is not None:
            return Reason("its weights are gathered, and it has no batch")
        # One weight for all: their rows are those of one product.
        rows = None if groups is None or rows is None else groups * rows
        groups = 1
    elif elements.ids is None:
        if groups is None:
            return Reason("each group has weights of its own, and their number comes with the call")
        experts = groups
    scaled = (kind.type, kind.block) if scales in parts else ("", 0)
    return Call(
        op=found.op,
        of=Contraction(
            batch=groups,
            m=rows,
            n=found.n,
            k=found.k,
            lhs=lhs.source.operand_format,
            rhs=OperandFormat(of.type, *scaled, right),
            out=OperandFormat("f32"),
            experts=experts,
            chosen=elements.ids is not None,
        ),
        lhs=lhs,
        ids=elements.ids,
        parameters=names,
        tensors=tuple(each.tensor for each in parts),
        chain=tuple(op for each in parts for op in each.chain),
        elements=of,
        scales=kind if scales in parts else None,
    )


def _rounded(to: str, elements: ir.Value, scales: ir.Value | None) -> str:
    """The type to which a kernel rounds elements under their scales, "" where that is for nothing.

    bf16 has the exponents of f32. Where it has the digits too it rounds subnormal numbers alone,
    which CPUs take for zero.
    """
    if to != "bf16" or scales is None:
        return to
    kinds = element_of(elements), element_of(scales)
    return to if loses_digits(*kinds, ir.BF16Type.get()) else ""


def _match_dense(op: ir.Operation) -> Call | Reason:
    found = read(op)
    if found is None or op.name != "linalg.generic" or found.block:
        return Reason(f"it is a {op.name} that is no product of two tensors, summed")
    of = _elements(found.rhs.element, BLOCK // 2 if found.k % BLOCK else BLOCK)
    if isinstance(of, Reason):
        return of
    if found.k % of.block:
        return Reason(f"K = {found.k} is no multiple of {of.block}")
    weight = _source(found.rhs.tensor)
    if isinstance(weight, Reason):
        return weight
    if weight.parameter is None:
        # Of plain numbers that are no parameter IREE's own code is good.
        return Reason("its weights are plain numbers and no parameter")
    if found.rhs.element != element_of(weight.tensor):
        return Reason(
            f"its weights are {found.rhs.element} in a parameter of {element_of(weight.tensor)}"
        )
    grouped = weight.ids is not None or len(found.rhs.dims) == _RANK
    wanted = ((0, 1, 3), (0, 2, 3)) if grouped else ((0, 2), (1, 2))
    if (found.lhs.dims, found.rhs.dims) != wanted:
        return Reason("an operand has its dimensions in another order than batch, row, K")
    # `read` describes any product of two factors; here it must be the plain one, summed in f32.
    body = read_product(op)
    if isinstance(body, Reason):
        return body
    if len(op.operands) != 3:
        return Reason(f"it has {len(op.operands)} operands where a product has 3")
    lhs = operand(found.lhs.tensor, None, found.k)
    if isinstance(lhs, Reason):
        return lhs
    if not is_zero(op.operands[len(op.operands) - 1]):
        return Reason("the accumulator is not zero")
    return Call(
        op=op,
        of=Contraction(
            batch=_size(found.batch) if grouped else 1,
            m=_size(found.m),
            n=found.n,
            k=found.k,
            lhs=lhs.source.operand_format,
            rhs=OperandFormat(of.type),
            out=OperandFormat("f32"),
            experts=weight.experts if weight.ids is not None or not grouped else found.batch,
            chosen=weight.ids is not None,
        ),
        lhs=lhs,
        ids=weight.ids,
        parameters=(weight.parameter,),
        tensors=(weight.tensor,),
        chain=weight.chain,
        elements=of,
        scales=None,
    )


def _scales(type: ir.Type, lhs: int, rhs: int) -> Scales | Reason:
    """The scales of weights, or why no kernel takes them; `lhs`, `rhs`: elements of a block of
    activations and of weights."""
    known = next((each for each in get_args(ScaleType) if each == str(type)), None)
    if known is None:
        kernels = ", ".join(get_args(ScaleType))
        return Reason(f"scales of the weights are {type}; kernels take {kernels}")
    for block in (lhs, rhs):
        if not fits(block):
            return Reason(
                f"a scale is for {block} elements; kernels take 16 and multiples of {BLOCK}"
            )
    return Scales(known, rhs, min(lhs, rhs, BLOCK))


def _elements(type: ir.Type, block: int) -> Elements | Reason:
    """Elements that are taken `block` at once, or why no kernel takes them."""
    found = ELEMENTS.get(str(type))
    if found is None:
        return Reason(f"weights are {type}; kernels take {', '.join(ELEMENTS)}")
    return replace(found, block=block)


#: Dimensions of rows of blocks, without a batch.
_RANK = 3

#: Bits of elements that lie in planes, for which a block is 32.
_PLANES = 6


def _size(known: int) -> int | None:
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


def _source(value: ir.Value) -> _Source | Reason:
    """Follow blocks that are split, gather and bitcast back to what `value` is read from: a
    parameter, or a tensor."""
    chain: list[ir.Operation] = []
    ids, experts = None, 0
    op = producer(value)
    if (
        op is not None
        and op.name == "tensor.expand_shape"
        and shape_of(op.results[0])[0] == shape_of(op.operands[0])[0]
    ):
        chain.append(op)
        value = op.operands[0]
        op = producer(value)
    if op is not None and op.name == GATHER:
        along = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
        if along != [0]:
            return Reason(f"weights are gathered along dimensions {along}; kernels take the first")
        ids, experts = op.operands[1], shape_of(op.operands[0])[0]
        if str(element_of(ids)) != "i32" or len(shape_of(ids)) != 1:
            return Reason(f"weights are gathered by {ids.type}; kernels take a list of i32")
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
        return Reason(f"the size of {value.type}, which has weights, comes with the call")
    return _Source(name, value, ids, experts, tuple(chain))
