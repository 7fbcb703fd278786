"""Match the contractions that CPU kernels compute, with the facts that the kernels need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from iree.compiler import ir

from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.dequantize import loses_digits
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.cpu.elements import ELEMENTS, Elements
from mxc.passes.kernels.cpu.scales import Scales, fits
from mxc.passes.kernels.described import described, stored
from mxc.passes.kernels.operands import ScaledOperand, has_scales_of_one, operand
from mxc.passes.kernels.sources import BLOCK, ScaleType


@dataclass(frozen=True, kw_only=True)
class ContractionMatch:
    """A contraction that a CPU kernel computes: operation `op`, described by `of`.

    `lhs`: the activations. `ids`: the expert ids, if experts are chosen. `tensors`: the elements
    and, if any, the scales of the weights. `parameters`: the names of these tensors if they are
    read as panels; empty if they are read in rows. `chain`: the operations between the tensors and
    the contraction. `elements`, `scales`: how kernels read the weights.
    """

    op: ir.Operation
    of: Contraction
    lhs: ScaledOperand
    ids: ir.Value | None
    parameters: tuple[str, ...]
    tensors: tuple[ir.Value, ...]
    chain: tuple[ir.Operation, ...]
    elements: Elements
    scales: Scales | None

    @property
    def layout(self) -> tuple[object, ...]:
        """A key that is equal for calls that read their parameters in the same panels."""
        scale = None if self.scales is None else (self.scales.type, self.scales.block)
        return self.of.experts, self.of.n, self.of.k, self.elements.block, scale

    @property
    def matrices(self) -> tuple[int, int]:
        """Number of matrices of the weights, and rows of each."""
        return max(self.of.experts, 1), self.of.n

    @property
    def reads_panels(self) -> bool:
        """Whether the weights may be packed in panels. Elements in planes need blocks of 32."""
        return self.elements.bits != _PLANES or self.elements.block == BLOCK

    @property
    def is_looked_up(self) -> bool:
        """Whether a lookup can read elements in the panels: those of a single weight, not in
        planes."""
        return not self.of.experts and self.elements.bits != _PLANES

    @property
    def reads_rows(self) -> bool:
        """Whether a kernel may read the weights in rows: only elements of 8 bits or fewer."""
        return self.elements.bits <= _BYTE


def match(op: ir.Operation) -> ContractionMatch | Reason:
    """Match the contraction `op`, or return the reason why no kernel computes it."""
    found = described(op)
    if isinstance(found, Reason):
        return found
    of = found.of
    kind = _scales(of) if of.rhs.scale else None
    if isinstance(kind, Reason):
        return kind
    step = kind.step if kind is not None else BLOCK // 2 if of.k % BLOCK else BLOCK
    codes = _elements(of.rhs.element, step)
    if isinstance(codes, Reason):
        return codes
    if of.k % step:
        return Reason(f"K = {of.k} is no multiple of {step}")
    block, to = of.lhs.block or BLOCK, _rounded(of.lhs)
    lhs = operand(found.lhs, found.lhs_scale, of.k, block=block, ones=True, to=to)
    if isinstance(lhs, Reason):
        return lhs
    parts = [stored(found.rhs)]
    ones = found.rhs_scale is None or has_scales_of_one(found.rhs_scale)
    if found.rhs_scale is not None and not ones:
        parts.append(stored(found.rhs_scale))
    read = [part for part in parts if not isinstance(part, Reason)]
    if len(read) < len(parts):
        return next(part for part in parts if isinstance(part, Reason))
    names = tuple(each.parameter for each in read if each.parameter is not None)
    if len(names) < len(read):
        if found.rhs_scale is None and codes.bits > _BYTE:
            # For plain numbers that are not a parameter, IREE's own code is good.
            return Reason("its weights are plain numbers and no parameter")
        names = ()  # elements or scales are not packed, so both are read in rows
    rhs = OperandFormat(of.rhs.element) if ones else of.rhs
    return ContractionMatch(
        op=op,
        of=replace(
            of,
            lhs=lhs.source.operand_format,
            rhs=replace(rhs, rounded=_rounded(of.rhs)),
        ),
        lhs=lhs,
        ids=read[0].ids,
        parameters=names,
        tensors=tuple(each.tensor for each in read),
        chain=tuple(op for each in read for op in each.chain),
        elements=codes,
        scales=None if ones else kind,
    )


def _rounded(side: OperandFormat) -> str:
    """The type to which a kernel rounds scaled elements; "" if rounding changes nothing.

    bf16 has the exponents of f32. If it also has enough digits, rounding to it changes only
    subnormal numbers, which CPUs flush to zero.
    """
    if side.rounded != "bf16":
        return side.rounded
    element, scale = ir.Type.parse(side.element), ir.Type.parse(side.scale)
    return side.rounded if loses_digits(element, scale, ir.BF16Type.get()) else ""


def _scales(of: Contraction) -> Scales | Reason:
    """The scales of weights, or the reason why no kernel takes them."""
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
    """Elements that are processed `block` at once, or the reason why no kernel takes them."""
    found = ELEMENTS.get(type)
    if found is None:
        return Reason(f"weights are {type}; kernels take {', '.join(ELEMENTS)}")
    return replace(found, block=block)


#: Number of bits of elements that panels store in planes. Their blocks have 32 elements.
_PLANES = 6
#: Most bits of elements that kernels read in rows.
_BYTE = 8
