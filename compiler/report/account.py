"""Writing the report from the compiled program.

The program at IREE's flow phase says which dispatches a contraction needs and what they move, the
stream phase what is allocated, the assembly which instructions were chosen. Intentions play no
part: a contraction whose kernel is not found in the assembly is reported as a fallback, and a sum
of scaled elements that is not understood is listed as such.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from iree.compiler import ir

from mxc.artifact.code_objects.metadata import read_resources
from mxc.compiler.report import FunctionCost, Matmul, Operation, Report
from mxc.compiler.report.assembly import Kernel, parse_all
from mxc.compiler.report.following import following
from mxc.compiler.report.kernel_time import Time, by_schedule, roofline
from mxc.compiler.report.lowering import NO_REASON, choice_of, explain, explain_own, lowering_of
from mxc.compiler.report.preparation import (
    Preparation,
    hoisted_globals,
    operand,
    preparation,
    quantising,
)
from mxc.compiler.report.transfers import transfers
from mxc.dialects import kernel_calls
from mxc.dialects.contraction import Contraction, read_contraction
from mxc.dialects.contractions import (
    Product,
    Side,
    contractions,
    sums,
    sums_elements,
)
from mxc.dialects.dispatches import (
    Dispatch,
    dispatches,
    element_bits,
    moved_bytes,
    tensor_bytes,
    walk,
)
from mxc.dialects.kernel_calls import read_reasons
from mxc.dialects.locations import names
from mxc.passes import verify_packed_weights, verify_transients
from mxc.passes.kernels.executables import cases_of
from mxc.passes.verify_packed_weights import Weights
from mxc.passes.verify_transients import transients
from mxc.targets.target import Target

_NUMBER = re.compile(r"\d+")

#: Why there is no kernel for what no pass could read.
_NO_CONTRACTION = "a sum of scaled elements that is no contraction of two tensors"


def account(
    flow: ir.Operation,
    stream: ir.Operation,
    assembly: Iterable[str],
    target: Target,
    objects: Iterable[bytes],
) -> Report:
    """The report of one compilation; the arguments are those of `report.build_report`."""
    every = dispatches(flow)
    weights, stores = Weights(every), hoisted_globals(flow)
    taken = {name: each for data in objects for name, each in read_resources(data).items()}
    kernels = parse_all(assembly, target.gpu.unit if target.gpu else None, taken)
    for symbol, (entry, rows) in cases_of(flow).items():
        if symbol in kernels:
            kernels[symbol] = replace(kernels[symbol], case_of=entry, from_rows=rows)
    cases: dict[str, list[Kernel]] = defaultdict(list)
    for each in kernels.values():
        cases[each.entry].append(each)
    users = Counter(dispatch.entry for dispatch in every)
    code = {dispatch.entry: dispatch.body for dispatch in every}
    bodies = {entry: contractions(body) for entry, body in code.items() if body is not None}
    matmuls: list[Matmul] = []
    for dispatch in every:
        kernel = kernels.get(dispatch.entry)
        call = read_contraction(dispatch.op)
        if call is not None:
            before = quantising(dispatch, weights, stores)
            after = following(dispatch, call.n, weights)
            matmuls.append(_own(dispatch, call, (before, after), cases[dispatch.entry], target))
            continue
        shared = users[dispatch.entry] > 1
        for contraction in bodies.get(dispatch.entry, ()):
            prepared = preparation(dispatch, contraction, weights, stores)
            after = following(dispatch, contraction.n, weights)
            matmuls.append(
                _matmul(dispatch, contraction, prepared, after, kernel, target, shared=shared)
            )
    matmuls += _unread(every, bodies, kernels, target)
    return Report(
        target=target.name,
        matmuls=tuple(matmuls),
        kernels=tuple(kernel for entry in users for kernel in cases[entry]),
        functions=_functions(every, stream),
        findings=tuple(dict.fromkeys([*_written(flow), *_prepared(stream)])),
        operations=tuple(
            _operation(dispatch, bodies.get(dispatch.entry, []), users[dispatch.entry] > 1, target)
            for dispatch in every
        ),
        transfers=transfers(flow),
    )


def _operation(
    dispatch: Dispatch, inside: list[Product], shared: bool, target: Target
) -> Operation:
    call = read_contraction(dispatch.op)
    if call is not None:
        name = next(iter(dispatch.names), dispatch.entry)
        moved = kernel_calls.moved_bytes(dispatch.op, call)
        sizes = [(_size(call.batch), _size(call.m), call.n, call.k)]
    else:
        own = next(iter(dispatch.names), dispatch.entry)
        name = _name(dispatch, inside[0], shared) if inside else own
        moved = moved_bytes(dispatch)
        sizes = [(each.batch, each.m, each.n, each.k) for each in inside]
    dynamic = any(min(size) < 0 for size in sizes)
    flops = None if dynamic else sum(2 * math.prod(size) for size in sizes)
    return Operation(
        function=dispatch.function,
        name=name,
        kernel=dispatch.entry,
        bytes_moved=moved,
        flops=flops,
        results=tuple(
            str(ir.RankedTensorType(each.type).element_type)
            for each in dispatch.op.results
            if isinstance(each.type, ir.RankedTensorType)
        ),
        time=_time(call, moved, flops, target),
    )


def _time(
    call: Contraction | None, moved: int | None, flops: int | None, target: Target
) -> Time | None:
    if target.gpu is None or moved is None or flops is None:
        return None
    if call is None:
        return roofline(target.gpu, moved, flops)
    widths = (call.lhs.bits, call.rhs.bits) if call.kind == "scaled matrix" else None
    bound = roofline(target.gpu, moved, flops, widths)
    return by_schedule(target.gpu, bound, call.clocks, call.workgroups) if call.clocks else bound


def _matmul(
    dispatch: Dispatch,
    contraction: Product,
    prepared: Preparation,
    after: Sequence[Dispatch],
    kernel: Kernel | None,
    target: Target,
    *,
    shared: bool,
) -> Matmul:
    steps = [dispatch, *prepared.dispatches, *after]
    moved = _sum([moved_bytes(step) for step in steps])
    block = contraction.block or prepared.block
    lhs, rhs = prepared.lhs or contraction.lhs, prepared.rhs or contraction.rhs
    formats = lhs.format(block), rhs.format(block)
    packed = any(format.scale for format in formats)
    reason = _reason(dispatch, contraction.op)
    return Matmul(
        name=_name(dispatch, contraction, shared),
        function=dispatch.function,
        batch=contraction.batch,
        m=contraction.m,
        n=contraction.n,
        k=contraction.k,
        lhs=formats[0].name,
        rhs=formats[1].name,
        out=str(ir.RankedTensorType(contraction.op.results[0].type).element_type),
        kernel=dispatch.entry,
        lowering="not found" if kernel is None else lowering_of(kernel, target, packed=packed),
        kernels=len(steps),
        bytes_moved=moved,
        bytes_minimum=_minimum(dispatch, contraction, (lhs, rhs), block, after),
        fallback=explain(contraction, formats, prepared, kernel, target, reason),
        reason=reason or NO_REASON,
    )


def _reason(dispatch: Dispatch, op: ir.Operation) -> str | None:
    """Why no kernel of ours computes a sum.

    What a dispatch says goes before what its body says, which equal dispatches share.
    """
    own, inner = (read_reasons(each.location) for each in (dispatch.op, op))
    return next(iter(own if len(own) == 1 else [*inner, *own]), None)


def _own(
    dispatch: Dispatch,
    call: Contraction,
    steps: tuple[Sequence[Dispatch], Sequence[Dispatch]],
    kernels: Sequence[Kernel],
    target: Target,
) -> Matmul:
    """A contraction that a kernel of ours computes: what it is stands on the dispatch.

    `steps`: those that quantise what it reads, and those that finish its result; `kernels`: one,
    or those of which the rows of a call choose.
    """
    before, after = steps
    assert call.kind is not None
    found = [lowering_of(kernel, target, packed=call.rhs.is_packed) for kernel in kernels]
    return Matmul(
        name=next(iter(dispatch.names), dispatch.entry),
        function=dispatch.function,
        batch=_size(call.batch),
        m=_size(call.m),
        n=call.n,
        k=call.k,
        lhs=call.lhs.name,
        rhs=call.rhs.name,
        out=call.out.name,
        kernel=dispatch.entry,
        lowering=", ".join(dict.fromkeys(found)) or "not found",
        kernels=1 + len(before) + len(after),
        bytes_moved=_sum(
            [kernel_calls.moved_bytes(dispatch.op, call), *map(moved_bytes, (*before, *after))]
        ),
        bytes_minimum=_least_bytes(dispatch, call, after),
        fallback=explain_own(kernels, target, call.kind),
        choice=choice_of(call, target),
        unfused=call.unfused or None,
    )


def _least_bytes(dispatch: Dispatch, call: Contraction, after: Sequence[Dispatch]) -> int | None:
    """Bytes of both packed factors and the output, each once."""
    if call.batch is None or call.m is None:
        return None
    rows = call.batch * call.m
    written = rows * call.out.row_bytes(call.n)
    # Of a gated product half of the columns.
    own = [tensor_bytes(result.type) for result in dispatch.op.results]
    written = min(written, _sum(own) or written)
    for finish in after:
        written = min(written, tensor_bytes(finish.op.results[0].type) or written)
    return (
        call.weights * call.n * call.rhs.row_bytes(call.k)
        + rows * call.lhs.row_bytes(call.k)
        + written
    )


def _size(known: int | None) -> int:
    """As a row of the report has it."""
    return -1 if known is None else known


def _sum(parts: Sequence[int | None]) -> int | None:
    """None where a part is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _unread(
    every: list[Dispatch],
    bodies: dict[str, list[Product]],
    kernels: dict[str, Kernel],
    target: Target,
) -> list[Matmul]:
    """Sums of packed elements that are in no form that is understood: listed, never left out.

    So are sums of which a pass has said why no kernel computes them.
    """
    found = []
    for dispatch in every:
        read = {contraction.op for contraction in bodies.get(dispatch.entry, ())}
        for op in walk(dispatch.body) if dispatch.body is not None else ():
            listed = sums_elements(op) or (sums(op) and read_reasons(op.location))
            if op in read or not listed:
                continue
            reason = _reason(dispatch, op) or _NO_CONTRACTION
            kernel = kernels.get(dispatch.entry)
            found.append(
                Matmul(
                    name=next(iter([*dispatch.names, *names(op.location)]), dispatch.entry),
                    function=dispatch.function,
                    batch=-1,
                    m=-1,
                    n=-1,
                    k=-1,
                    lhs="unknown",
                    rhs="unknown",
                    out=str(ir.RankedTensorType(op.results[0].type).element_type),
                    kernel=dispatch.entry,
                    lowering="not found"
                    if kernel is None
                    else lowering_of(kernel, target, packed=True),
                    kernels=1,
                    bytes_moved=moved_bytes(dispatch),
                    bytes_minimum=None,
                    fallback=f"no kernel of mxc computes it: {reason}",
                    reason=reason,
                )
            )
    return found


def _name(dispatch: Dispatch, contraction: Product, shared: bool) -> str:
    """The builder's name of the contraction.

    Equal executables are merged, so the body of one that several dispatches share carries the
    name of the first only; the dispatches keep their own.
    """
    inner, outer = names(contraction.op.location), dispatch.names
    if not shared or not outer or not inner or inner[0] in outer:
        return next(iter([*inner, *outer]), dispatch.entry)
    alike = [name for name in outer if _NUMBER.sub("", name) == _NUMBER.sub("", inner[0])]
    return [*alike, *outer][0]


def _minimum(
    dispatch: Dispatch,
    contraction: Product,
    packed: tuple[Side, Side],
    block: int,
    after: Sequence[Dispatch],
) -> int | None:
    """Bytes of both packed factors, their scales and the output, each once.

    Rows that several groups of a batch share are counted once: no more than the operand holds.
    The output is what the dispatch writes where an epilogue makes it narrower, or a dispatch
    behind it does.
    """
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    own = tensor_bytes(contraction.op.results[0].type)
    last = after[-1] if after else dispatch
    written = [tensor_bytes(result.type) for result in last.op.results]
    if min(batch, m, n, k) < 0 or own is None or None in written:
        return None
    total = min(own, sum(size for size in written if size is not None))
    for rows, side, actual in zip((m, n), packed, (contraction.lhs, contraction.rhs), strict=True):
        elements = batch * rows * k
        needed = math.ceil(elements * element_bits(side.element) / 8)
        total += _at_most_whole(dispatch, side.tensor, actual.tensor, needed)
        if side.scale is not None and block:
            width = element_bits(ir.RankedTensorType(side.scale.type).element_type)
            needed = math.ceil(elements // block * width / 8)
            total += _at_most_whole(dispatch, side.scale, actual.scale, needed)
    return total


def _at_most_whole(
    dispatch: Dispatch, packed: ir.Value, actual: ir.Value | None, needed: int
) -> int:
    same = actual is not None and packed == actual
    whole = operand(dispatch, packed) if same else None
    held = None if whole is None else tensor_bytes(whole.type)
    return needed if held is None else min(needed, held)


def _written(flow: ir.Operation) -> list[str]:
    return [finding.message for finding in verify_packed_weights.findings(flow)]


def _prepared(stream: ir.Operation) -> list[str]:
    return [message for _, message in verify_transients.findings(stream)]


def _functions(every: list[Dispatch], stream: ir.Operation) -> tuple[FunctionCost, ...]:
    counts = Counter(dispatch.function for dispatch in every)
    buffers: dict[str, tuple[int, int]] = {}
    for op in stream.regions[0].blocks[0].operations:
        if op.operation.name == "util.func":
            name = str(ir.StringAttr(op.operation.attributes["sym_name"]).value)
            buffers[name] = transients(op.operation)
    return tuple(
        FunctionCost(
            name=name, dispatches=counts[name], transient_bytes=total, dynamic_transients=dynamic
        )
        for name in dict.fromkeys([*buffers, *counts])
        for total, dynamic in (buffers.get(name, (0, 0)),)
    )
