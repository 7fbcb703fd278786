"""Attributes of operations that kernels of mxc replace, besides `Contraction`.

A contraction that no kernel computes has the reason in its attribute `mxc.contraction`:

    linalg.generic {mxc.contraction = {.., reason = "the accumulator is not zero"}} ..

and also in its location, because IREE rebuilds some operations without their attributes.

`mxc.quantizes` marks a kernel that quantizes or reorders blocks for contractions. `mxc.choice` of
another kernel says why it does not use the best unit of the machine.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.contraction import ATTRIBUTE, Contraction, say, says
from mxc.dialects.dispatches import Dispatch, shaped_bytes
from mxc.dialects.locations import records, with_record
from mxc.dialects.pool_reads import read_pool
from mxc.dialects.reasons import Reason
from mxc.dialects.samples import STATED, Sizes
from mxc.dialects.split_sums import read_split_sums

QUANTIZES = "mxc.quantizes"
_CHOICE = "mxc.choice"
_REASON = "reason"
_DECODED = "decoded"


def write_reason(op: ir.Operation, reason: Reason, *, decoded: bool = False) -> None:
    """Record why no kernel computes a contraction. An existing reason is kept.

    `decoded`: the contraction reads floats that another operation has decoded from packed elements.
    """
    if not says(op, _REASON):
        said: dict[str, ir.Attribute] = {_REASON: ir.StringAttr.get(reason.text)}
        said |= {_DECODED: ir.UnitAttr.get()} if decoded else {}
        say(op, said)
        op.location = with_record(op.location, ATTRIBUTE, ir.DictAttr.get(said))


def read_reasons(location: ir.Location) -> list[str]:
    """The reasons why no kernel computes the contractions of a location."""
    return [str(ir.DictAttr(each)[_REASON].value) for each in records(location, ATTRIBUTE)]


def reads_decoded(location: ir.Location) -> bool:
    """Whether a contraction of a location was recorded as `decoded` by `write_reason`."""
    return any(_DECODED in ir.DictAttr(each) for each in records(location, ATTRIBUTE))


def mark_quantizes(dispatch: ir.Operation, format: str) -> None:
    """Mark a dispatch that quantizes or reorders blocks of `format` for its consumers."""
    dispatch.attributes[QUANTIZES] = ir.StringAttr.get(format)


def quantizes(dispatch: ir.Operation) -> bool:
    """Whether a dispatch has the mark of `mark_quantizes`."""
    return QUANTIZES in dispatch.attributes


def write_choice(dispatch: ir.Operation, choice: str) -> None:
    """Record why the kernel of a dispatch does not use the best unit of the machine."""
    dispatch.attributes[_CHOICE] = ir.StringAttr.get(choice)


def read_choice(dispatch: ir.Operation) -> str | None:
    """The reason that `write_choice` recorded; None without one."""
    attributes = dispatch.attributes
    return ir.StringAttr(attributes[_CHOICE]).value if _CHOICE in attributes else None


def moved_bytes(dispatch: Dispatch, call: Contraction, sizes: Sizes = STATED) -> int | None:
    """Bytes that a call reads and writes; of the weights, at most the chosen experts.

    None where its rows are dynamic and not known from `sizes`.

    A tensor belongs to the experts if its first dimension is the experts, or if it is flat, follows
    the i32 ids of the chosen experts, and has at least a row for each expert. Of a pool, which the
    last result updates in place, only what the call reads and writes counts.
    """
    op, given, pool = dispatch.op, dispatch.operands, read_pool(dispatch.op)
    places = [at for at, v in enumerate(given) if isinstance(v.type, ir.RankedTensorType)]
    results = [(v.type, sizes.result(op, at)) for at, v in enumerate(op.results)]
    total, split = 0, read_split_sums(op)
    if split is not None:
        moved = split.bytes(op, sizes)
        if moved is None:
            return None
        places.remove(split.counters)
        results = [each for at, each in enumerate(results) if at not in split.results]
        total = moved
    if pool is not None:
        part = pool.bytes(op, sizes)
        if part is None:
            return None
        places.remove(pool.operand)
        results.pop()
        total += 2 * part
    tensors = [(given[at].type, sizes.operand(op, at)) for at in places]
    chosen, experts = False, max(call.experts, 1)
    for place, (value, shape) in enumerate([*tensors, *results]):
        if shape is None:
            return None
        size = shaped_bytes(value, shape)
        assert size is not None
        kind = ir.RankedTensorType(value)
        count, shared = shape[0] if shape else 1, kind.rank > 1
        if not shared and chosen and place < len(tensors):
            shared, count = count >= experts * call.n and not count % experts, experts
        if experts > 1 and shared and count == experts:
            size = size // experts * call.weights
        chosen = chosen or str(kind.element_type) == "i32"
        total += size
    return total
