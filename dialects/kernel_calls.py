"""What a kernel of ours computes, written on the dispatch that calls it; or why none does.

    flow.dispatch @k::@k(%x, %ids, %w, %s) {mxc.contraction = {
        batch = 4, m = 1, n = 5760, k = 2880, experts = 32,
        lhs = "bf16", rhs = "mxfp4", out = "f32"}} : ..

The body of such a kernel is vectors and intrinsics: no operation of it says what is computed. The
attribute survives IREE's phases up to flow, where the report reads it. So does `mxc.quantises` on a
kernel that makes blocks for contractions, or puts them into their order.

On a contraction that no kernel computes the same attribute has the reason:

    linalg.generic {mxc.contraction = {reason = "the accumulator is not zero"}} ..

and so has its location, because IREE builds some operations anew without their attributes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from iree.compiler import ir

from mxc.dialects.dispatches import tensor_bytes
from mxc.dialects.locations import records, with_record
from mxc.dialects.reasons import Reason
from mxc.targets.target import Kind

ATTRIBUTE = "mxc.contraction"
QUANTISES = "mxc.quantises"
_REASON = "reason"
_DECODED = "decoded"


@dataclass(frozen=True, kw_only=True)
class KernelCall:
    """batch x [m, k] times [n, k] of one of `experts`; formats by name ("mxfp4", "bf16").

    `kind`: of the instruction that multiplies, one of `targets.KINDS`. `batch` and `m` are -1 where
    they come with the call. `choice`: why not by a better one that the machine has; empty where
    it has none. `unfused`: why the elementwise operation that follows, its subject, is left for
    another kernel; empty where none follows.
    """

    batch: int
    m: int
    n: int
    k: int
    experts: int
    lhs: str
    rhs: str
    out: str
    kind: Kind
    choice: str = ""
    unfused: str = ""

    def write(self, dispatch: ir.Operation) -> None:
        """Put this on a dispatch."""
        i64 = ir.IntegerType.get_signless(64)
        dispatch.attributes[ATTRIBUTE] = ir.DictAttr.get(
            {
                key: ir.StringAttr.get(value)
                if isinstance(value, str)
                else ir.IntegerAttr.get(i64, value)
                for key, value in asdict(self).items()
                if value != ""
            }
        )


def read_call(dispatch: ir.Operation) -> KernelCall | None:
    """What stands on a dispatch, or None."""
    if ATTRIBUTE not in dispatch.attributes:
        return None
    given = ir.DictAttr(dispatch.attributes[ATTRIBUTE])
    names = [field.name for field in fields(KernelCall) if field.name in given]
    return KernelCall(**{name: given[name].value for name in names})


def write_reason(op: ir.Operation, reason: Reason, *, decoded: bool = False) -> None:
    """Say why no kernel computes a contraction. The first reason stays.

    `decoded`: it reads floats that were packed, and that another operation has decoded.
    """
    if ATTRIBUTE not in op.attributes:
        said: dict[str, ir.Attribute] = {_REASON: ir.StringAttr.get(reason.text)}
        record = ir.DictAttr.get(said | ({_DECODED: ir.UnitAttr.get()} if decoded else {}))
        op.attributes[ATTRIBUTE] = record
        op.location = with_record(op.location, ATTRIBUTE, record)


def read_reasons(location: ir.Location) -> list[str]:
    """Why no kernel computes the contractions of a location."""
    return [str(ir.DictAttr(each)[_REASON].value) for each in records(location, ATTRIBUTE)]


def reads_decoded(location: ir.Location) -> bool:
    """Whether a contraction of a location reads what was packed, as `write_reason` was told."""
    return any(_DECODED in ir.DictAttr(each) for each in records(location, ATTRIBUTE))


def mark_quantises(dispatch: ir.Operation, format: str) -> None:
    """Say of a dispatch that it makes or orders blocks of `format` for those that read them."""
    dispatch.attributes[QUANTISES] = ir.StringAttr.get(format)


def quantises(dispatch: ir.Operation) -> bool:
    """Whether `mark_quantises` was said of a dispatch."""
    return QUANTISES in dispatch.attributes


def moved_bytes(dispatch: ir.Operation, call: KernelCall) -> int | None:
    """Bytes that a call reads and writes: of the weights, the experts that are chosen at most.

    None where its rows are dynamic.

    What has the experts as its first dimension, and what is flat and follows the i32 ids of the
    chosen ones with a row for each expert at least, is theirs.
    """
    tensors = [v for v in dispatch.operands if isinstance(v.type, ir.RankedTensorType)]
    values = [*tensors, *dispatch.results]
    total = 0
    chosen = False
    for place, value in enumerate(values):
        size = tensor_bytes(value.type)
        if size is None:
            return None
        kind = ir.RankedTensorType(value.type)
        count, shared = kind.shape[0] if kind.rank else 1, kind.rank > 1
        if not shared and chosen and place < len(tensors):
            shared, count = (
                count >= call.experts * call.n and not count % call.experts,
                call.experts,
            )
        if call.experts > 1 and shared and count == call.experts:
            size = size // call.experts * min(call.batch, call.experts)
        chosen = chosen or str(kind.element_type) == "i32"
        total += size
    return total
