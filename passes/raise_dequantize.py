"""mxc-raise-dequantize: recognize decoded weights by their values, and decode them in one form.

Frontends write the decoding of a block format as table lookups, shifts into the bits of a float,
powers of two, and interleaved halves of bytes. This pass evaluates the computation for every code
and every scale, and compares the values with those of the formats (dialects/decoded_formats.py).
Where they match, the tensor gets the one form that the other passes recognize. Sides of a
contraction that are decoded in the body of the contraction are handled the same.

before:
    %lo = linalg.generic ins(%bytes) { andi %b, 15 }        %hi = linalg.generic { shrui %b, 4 }
    %codes = tensor.concat dim(2) ..                         // [N, K / 2, 2]
    %w = linalg.generic ins(%codes, %exponents) { mulf (tensor.extract %values[%code]),
                                                       (exp2 (sitofp (subi %exponent, 127))) }
after:
    %e = flow.tensor.bitcast %bytes : tensor<NxBxi8> -> tensor<NxKxf4E2M1FN>
    %s = flow.tensor.bitcast %exponents : tensor<NxKOxi8> -> tensor<NxKOxf8E8M0FNU>
    %w = linalg.generic ins(%e, %s) { scaling_extf }

Where the low nibbles of a row, or of a block, are its first half and the high nibbles its second,
the nibbles are first put in order.

Scale bytes 0 and 255 mean 2^-127 and NaN afterwards. Where the program computes other values for
them, the attribute mxc.notes of the module says so, and the report prints it. A zero may change its
sign where the values are only summed.

A constant that multiplies elements or scales, as the scale of a whole tensor of nvfp4, multiplies
the decoded values.

Leaves alone: what is computed from other tensors too, and values of which some code differs from
the format; what sums these has the difference as its fallback.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.decoded_formats import Decoding, decoding_of, halves_of, is_code
from mxc.dialects.dequantize import is_element
from mxc.dialects.indexing import moved, trace
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.product import read_product
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_trees import tree_of
from mxc.passes.base import Pass, add_note
from mxc.passes.fuse_dequantize import is_decoding
from mxc.passes.rewriting.codes import Codes
from mxc.passes.rewriting.decoded_sides import decode_sides, decoded_tensor
from mxc.passes.rewriting.rebuild import linalg_operations, sums_floats, sweep

_HALVES = "nibbles of which one half of a byte continues the other are put in order with each call"


@dataclass(frozen=True)
class RaiseDequantize(Pass):
    """Rewrite decoded tensors to the form of their format, however they are decoded."""

    name = "mxc-raise-dequantize"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every decoded tensor, then every contraction that decodes in its body."""
        codes = Codes(module)
        found: list[Decoding] = []
        reasons: dict[ir.Value, str] = {}
        for op in codes.operations:
            value = op.results[0]
            readers = list(_readers(value, codes)) if _is_float(value) else []
            known = is_decoding(op)
            if not readers or _only_moves(op) or (known and not _reads_decoded_floats(op, codes)):
                continue
            decoding = _decoding(value, codes)
            if isinstance(decoding, str):
                if not known:
                    reasons[value] = decoding
            elif decoding is not None and (
                decoding.signed_zeros or all(_sums(reader) for reader in readers)
            ):
                with ir.InsertionPoint.after(op), op.location:
                    # The new operations may use the sizes of the value, so its uses are collected
                    # first.
                    uses = [(use.owner, use.operand_number) for use in value.uses]
                    decoded = decoded_tensor(decoding, value)
                for user, number in uses:
                    user.operands[number] = decoded
                found.append(decoding)
        for op in linalg_operations(module):
            if sums_floats(op) and (not _is_known(op) or _reads_decoded_floats(op, codes)):
                found += decode_sides(op, codes)
        for op in linalg_operations(module):
            _mark(op, reasons)
        for decoding in found:
            for note in decoding.differs:
                add_note(module, note)
            if halves_of(decoding) is not None:
                add_note(module, _HALVES)
        sweep(module)


def _decoding(value: ir.Value, codes: Codes) -> Decoding | str | None:
    shape = ir.RankedTensorType(value.type).shape
    ranges = [size if size >= 0 else None for size in shape]
    loops = [ir.AffineDimExpr.get(i) for i in range(len(ranges))]
    return decoding_of(tree_of(value, loops, ranges, codes.enter), ranges)


def _is_float(value: ir.Value) -> bool:
    kind = ir.RankedTensorType(value.type).element_type
    return isinstance(kind, ir.FloatType) and not is_element(kind)


def _is_known(op: ir.Operation) -> bool:
    """Whether the factors of a contraction are recognized without rewriting."""
    return not isinstance(read_product(op, rounded=True), Reason)


def _reads_decoded_floats(op: ir.Operation, codes: Codes) -> bool:
    """Whether an operand holds floats that are computed from codes but are no decoded elements.
    These are decoded scales.

    An operation may read them as float scales. If they are scales of a format, their codes are used
    instead.
    """
    for value in list(op.operands)[:-1]:
        if not isinstance(value.type, ir.RankedTensorType):
            continue
        source, _ = trace(value, [ir.AffineConstantExpr.get(0)] * value.type.rank, [])
        computed = source in codes and not is_code(source.type.element_type)
        if computed and not is_decoding(source.owner.operation):
            return True
    return False


def _only_moves(op: ir.Operation) -> bool:
    """Whether an operation does no more than move elements."""
    rank = ir.RankedTensorType(op.results[0].type).rank
    return moved(op, [ir.AffineConstantExpr.get(0)] * rank, []) is not None


def _readers(value: ir.Value, codes: Codes) -> Iterator[ir.Operation]:
    """Yield the operations that read a tensor, also through moves, and do not decode further."""
    for use in value.uses:
        user = use.owner.operation
        if len(user.results) == 1 and user.results[0] in codes:
            if _only_moves(user):
                yield from _readers(user.results[0], codes)
        else:
            yield user


def _sums(op: ir.Operation) -> bool:
    return op.name.startswith("linalg.") and sums_floats(op)


def _mark(op: ir.Operation, reasons: dict[ir.Value, str]) -> None:
    """Record on a sum why the decoding of an operand matches no format. `reasons`: by tensor."""
    if not sums_floats(op):
        return
    for value in list(op.operands)[:-1]:
        if isinstance(value.type, ir.RankedTensorType):
            source, _ = trace(value, [ir.AffineConstantExpr.get(0)] * value.type.rank, [])
            if source in reasons:
                write_reason(op, Reason(reasons[source]), decoded=True)
