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
from mxc.passes.kernels.cpu.elements import ELEMENTS, Elements
from mxc.passes.kernels.cpu.scales import Scales, fits
from mxc.passes.kernels.described import Described, Gathered, described, gathered
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
    scaled = described(op)
    if not isinstance(scaled, Reason):
        return _match_scaled(scaled)
    return scaled if is_scaled_reduction(op) else _match_dense(op)


def _match_scaled(found: Described) -> Call | Reason:
    of = found.of
    kind = _scales(of)
    if isinstance(kind, Reason):
        return kind
    codes = _elements(of.rhs.element, kind.step)
    if isinstance(codes, Reason):
        return codes
    left = _rounded(of.lhs)
    block = of.lhs.block or BLOCK
    lhs = operand(found.lhs, found.lhs_scale, of.k, block=block, ones=True, to=left)
    if isinstance(lhs, Reason):
        return lhs
    elements, scales = _source(found.rhs), _source(found.rhs_scale)
    if isinstance(elements, Reason):
        return elements
    if isinstance(scales, Reason):
        return scales
    ones = has_scales_of_one(found.rhs_scale)
    parts = [elements] if ones else [elements, scales]
    names = tuple(each.parameter for each in parts if each.parameter is not None)
    if 0 < len(names) < len(parts):
        return Reason("of elements and scales of the weights only one is a parameter")
    rhs = OperandFormat(of.rhs.element) if ones else of.rhs
    return Call(
        op=found.op,
        of=replace(
            of,
            lhs=lhs.source.operand_format,
            rhs=replace(rhs, rounded=_rounded(of.rhs)),
        ),
        lhs=lhs,
        ids=elements.ids,
        parameters=names,
        tensors=tuple(each.tensor for each in parts),
        chain=tuple(op for each in parts for op in each.chain),
        elements=codes,
        scales=None if ones else kind,
    )


def _rounded(side: OperandFormat) -> str:
    """The type to which a kernel rounds elements under their scales, "" where that is for nothing.

    bf16 has the exponents of f32. Where it has the digits too it rounds subnormal numbers alone,
    which CPUs take for zero.
    """
    if side.rounded != "bf16":
        return side.rounded
    element, scale = ir.Type.parse(side.element), ir.Type.parse(side.scale)
    return side.rounded if loses_digits(element, scale, ir.BF16Type.get()) else ""


def _match_dense(op: ir.Operation) -> Call | Reason:
    found = read(op)
    if found is None or op.name != "linalg.generic" or found.block:
        return Reason(f"it is a {op.name} that is no product of two tensors, summed")
    of = _elements(str(found.rhs.element), BLOCK // 2 if found.k % BLOCK else BLOCK)
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


def _scales(of: Contraction) -> Scales | Reason:
    """The scales of weights, or why no kernel takes them."""
    known = next((each for each in get_args(ScaleType) if each == of.rhs.scale), None)
    if known is None:
        kernels = ", ".join(get_args(ScaleType))
        return Reason(f"scales of the weights are {of.rhs.scale}; kernels take {kernels}")
    lhs, rhs = of.lhs.block or of.rhs.block, of.rhs.block
    for block in (lhs, rhs):
        if not fits(block):
            return Reason(
                f"a scale is for {block} elements; kernels take 16 and multiples of {BLOCK}"
            )
    return Scales(known, rhs, min(lhs, rhs, BLOCK))


def _elements(type: str, block: int) -> Elements | Reason:
    """Elements that are taken `block` at once, or why no kernel takes them."""
    found = ELEMENTS.get(type)
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


def _source(value: ir.Value) -> Gathered | Reason:
    """Follow blocks that are split, gather and bitcast back to what `value` is read from: a
    parameter, or a tensor."""
    read = gathered(value)
    chain, value = read.chain, read.tensor
    op = producer(value)
    if op is not None and op.name == GATHER and read.ids is None:
        along = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
        kind = op.operands[1].type
        return Reason(
            f"weights are gathered along dimensions {along} by {kind}; kernels take the first, by "
            "a list of i32"
        )
    if op is not None and op.name == "flow.tensor.bitcast":
        chain, value = (*chain, op), op.operands[0]
        op = producer(value)
    name = None
    if op is not None and op.name == "util.global.load":
        name = ir.FlatSymbolRefAttr(op.attributes["global"]).value
    elif min(shape_of(value), default=0) < 0:
        return Reason(f"the size of {value.type}, which has weights, comes with the call")
    return replace(read, tensor=value, chain=chain, parameter=name)
