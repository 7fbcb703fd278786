"""Fills the report from the compiled program.

The program after IREE's flow phase gives the dispatches of each contraction and the bytes they
move, the program after the stream phase the allocations, and the assembly the instructions. Only
the result counts: a contraction whose kernel is not in the assembly is reported as a fallback, and
so is a sum over packed elements in an unknown form.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from iree.compiler import ir

from mxc.compiler.report import (
    FunctionCost,
    Matmul,
    MatmulCost,
    Report,
    ReportOperation,
    ReportSample,
)
from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.costs import (
    at_sizes,
    estimated,
    least_bytes,
    minimum,
    operation_cost,
    product_at,
    row_size,
    summed,
)
from mxc.compiler.report.following import following
from mxc.compiler.report.lowering import (
    NO_CODE,
    NO_REASON,
    UNLISTED,
    choice_of,
    explain,
    explain_own,
    lowering_of,
)
from mxc.compiler.report.preparation import (
    Preparation,
    hoisted_globals,
    preparation,
    quantizing,
)
from mxc.compiler.report.transfers import transfers
from mxc.dialects import kernel_calls
from mxc.dialects import samples as samples_of_program
from mxc.dialects.contraction import Contraction, read_contraction
from mxc.dialects.contractions import (
    FactorPair,
    contractions,
    sums,
    sums_elements,
)
from mxc.dialects.dispatches import (
    Dispatch,
    dispatches,
    moved_bytes,
    walk,
)
from mxc.dialects.kernel_calls import read_choice, read_reasons
from mxc.dialects.locations import names
from mxc.dialects.named_operations import symbol_of
from mxc.dialects.samples import STATED, Sizes, read_samples
from mxc.passes import verify_packed_weights, verify_transients
from mxc.passes.kernels.executables import cases_of
from mxc.passes.verify_packed_weights import WeightValues
from mxc.passes.verify_transients import transients
from mxc.targets.target import Target

_NUMBER = re.compile(r"\d+")

#: Reason for a sum over packed elements that no pass recognized as a contraction.
_NO_CONTRACTION = "a sum of scaled elements that is no contraction of two tensors"


def account(
    flow: ir.Operation,
    stream: ir.Operation,
    kernels: Mapping[str, KernelCode],
    target: Target,
) -> Report:
    """Return the report of one compilation; the arguments are those of `report.build_report`."""
    every = dispatches(flow)
    weights, stores = WeightValues(every), hoisted_globals(flow)
    kernels = dict(kernels)
    for symbol, (entry, rows) in cases_of(flow).items():
        if symbol in kernels:
            kernels[symbol] = replace(kernels[symbol], case_of=entry, from_rows=rows)
    cases: dict[str, list[KernelCode]] = defaultdict(list)
    for each in kernels.values():
        cases[each.entry].append(each)
    users = Counter(dispatch.entry for dispatch in every)
    code = {dispatch.entry: dispatch.body for dispatch in every}
    bodies = {entry: contractions(body) for entry, body in code.items() if body is not None}
    matmuls: list[Matmul] = []
    samples = read_samples(flow)
    for dispatch in every:
        kernel = kernels.get(dispatch.entry)
        call = read_contraction(dispatch.op)
        at = _sizes(samples, dispatch)
        if call is not None:
            before = quantizing(dispatch, weights, stores)
            after = following(dispatch, call.n, weights)
            steps = (before, after)
            matmuls.append(_own(dispatch, call, steps, cases[dispatch.entry], target, at))
            continue
        shared = users[dispatch.entry] > 1
        for contraction in bodies.get(dispatch.entry, ()):
            prepared = preparation(dispatch, contraction, weights, stores)
            after = following(dispatch, contraction.n, weights)
            matmuls.append(
                _matmul(dispatch, contraction, prepared, after, kernel, target, at, shared=shared)
            )
    matmuls += _unread(every, bodies, kernels, target)
    if not kernels:
        unlisted = {NO_CODE: UNLISTED}
        matmuls = [
            replace(each, fallback=unlisted.get(each.fallback or "", each.fallback))
            for each in matmuls
        ]
    return Report(
        target=target.name,
        matmuls=tuple(matmuls),
        kernels=tuple(kernel for entry in users for kernel in cases[entry]),
        functions=_functions(every, stream),
        findings=tuple(dict.fromkeys([*_written(flow), *_prepared(stream)])),
        operations=tuple(
            _operation(
                dispatch,
                bodies.get(dispatch.entry, []),
                users[dispatch.entry] > 1,
                target,
                _sizes(samples, dispatch),
            )
            for dispatch in every
        ),
        samples=tuple(
            ReportSample(
                name=each.name, function=each.function, rows=each.rows, positions=each.positions
            )
            for each in samples
        ),
        transfers=transfers(flow),
    )


def _sizes(samples: Sequence[samples_of_program.Sample], dispatch: Dispatch) -> dict[str, Sizes]:
    """Return the sizes at each sample of the function that contains `dispatch`, by sample name."""
    return {each.name: Sizes(each) for each in samples if each.function == dispatch.function}


def _operation(
    dispatch: Dispatch,
    inside: list[FactorPair],
    shared: bool,
    target: Target,
    samples: Mapping[str, Sizes],
) -> ReportOperation:
    call = read_contraction(dispatch.op)
    name = next(iter(dispatch.names), dispatch.entry)
    if call is None and inside:
        name = _name(dispatch, inside[0], shared)
    stated = operation_cost(dispatch, call, inside, target, STATED)
    return ReportOperation(
        function=dispatch.function,
        name=name,
        kernel=dispatch.entry,
        bytes_moved=stated.bytes_moved,
        flops=stated.flops,
        choice=read_choice(dispatch.op),
        results=tuple(
            str(ir.RankedTensorType(each.type).element_type)
            for each in dispatch.op.results
            if isinstance(each.type, ir.RankedTensorType)
        ),
        time=stated.time,
        samples={
            each: operation_cost(dispatch, estimated(dispatch, call, n), inside, target, sizes)
            for n, (each, sizes) in enumerate(samples.items())
        },
    )


def _matmul(
    dispatch: Dispatch,
    contraction: FactorPair,
    prepared: Preparation,
    after: Sequence[Dispatch],
    kernel: KernelCode | None,
    target: Target,
    samples: Mapping[str, Sizes],
    *,
    shared: bool,
) -> Matmul:
    steps = [dispatch, *prepared.dispatches, *after]
    block = contraction.block or prepared.block
    lhs, rhs = prepared.lhs or contraction.lhs, prepared.rhs or contraction.rhs
    formats = lhs.format(block), rhs.format(block)
    packed = any(format.scale for format in formats)
    reason = _reason(dispatch, contraction.op)

    def cost(sizes: Sizes) -> MatmulCost:
        known = product_at(dispatch, contraction, sizes)
        return MatmulCost(
            batch=known.batch,
            m=known.m,
            bytes_moved=summed([moved_bytes(step, sizes) for step in steps]),
            bytes_minimum=minimum(dispatch, known, (lhs, rhs), block, after, sizes),
        )

    stated = cost(STATED)
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
        bytes_moved=stated.bytes_moved,
        bytes_minimum=stated.bytes_minimum,
        fallback=explain(contraction, formats, prepared, kernel, target, reason),
        reason=reason or NO_REASON,
        samples={name: cost(sizes) for name, sizes in samples.items()},
    )


def _reason(dispatch: Dispatch, op: ir.Operation) -> str | None:
    """Return the reason why no kernel of ours computes the sum `op`, if a pass gave one.

    A single reason on the dispatch precedes those in its body, which equal dispatches share.
    """
    own, inner = (read_reasons(each.location) for each in (dispatch.op, op))
    return next(iter(own if len(own) == 1 else [*inner, *own]), None)


def _own(
    dispatch: Dispatch,
    call: Contraction,
    steps: tuple[Sequence[Dispatch], Sequence[Dispatch]],
    kernels: Sequence[KernelCode],
    target: Target,
    samples: Mapping[str, Sizes],
) -> Matmul:
    """Return the record of a contraction that a kernel of ours computes, read from the dispatch.

    `steps`: the dispatches that quantize its operands, and those that finish its result. `kernels`:
    one kernel, or several of which the number of rows of a call selects one.
    """
    before, after = steps
    assert call.kind is not None
    found = [lowering_of(kernel, target, packed=call.rhs.is_packed) for kernel in kernels]

    def cost(sizes: Sizes) -> MatmulCost:
        known = at_sizes(dispatch, call, sizes)
        moved = [moved_bytes(each, sizes) for each in (*before, *after)]
        return MatmulCost(
            batch=row_size(known.batch),
            m=row_size(known.m),
            bytes_moved=summed([kernel_calls.moved_bytes(dispatch, known, sizes), *moved]),
            bytes_minimum=least_bytes(dispatch, known, after, sizes),
        )

    stated = cost(STATED)
    return Matmul(
        name=next(iter(dispatch.names), dispatch.entry),
        function=dispatch.function,
        batch=row_size(call.batch),
        m=row_size(call.m),
        n=call.n,
        k=call.k,
        lhs=call.lhs.name,
        rhs=call.rhs.name,
        out=call.out.name,
        kernel=dispatch.entry,
        lowering=", ".join(dict.fromkeys(found)) or "not found",
        kernels=1 + len(before) + len(after),
        bytes_moved=stated.bytes_moved,
        bytes_minimum=stated.bytes_minimum,
        fallback=explain_own(kernels, target, call.kind),
        choice=choice_of(call, target),
        schedule=call.schedule or None,
        plan=call.plan or None,
        unfused=call.unfused or None,
        samples={name: cost(sizes) for name, sizes in samples.items()},
    )


def _unread(
    every: list[Dispatch],
    bodies: dict[str, list[FactorPair]],
    kernels: dict[str, KernelCode],
    target: Target,
) -> list[Matmul]:
    """Return a record for each sum of packed elements that is not recognized as a contraction.

    Sums for which a pass gave a reason against a kernel are included. Sizes and formats are
    unknown.
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


def _name(dispatch: Dispatch, contraction: FactorPair, shared: bool) -> str:
    """Return the builder's name of the contraction.

    Equal executables are merged: a body that several dispatches share has the name of the first
    only, while each dispatch keeps its own.
    """
    inner, outer = names(contraction.op.location), dispatch.names
    if not shared or not outer or not inner or inner[0] in outer:
        return next(iter([*inner, *outer]), dispatch.entry)
    alike = [name for name in outer if _NUMBER.sub("", name) == _NUMBER.sub("", inner[0])]
    return [*alike, *outer][0]


def _written(flow: ir.Operation) -> list[str]:
    return [finding.message for finding in verify_packed_weights.findings(flow)]


def _prepared(stream: ir.Operation) -> list[str]:
    return [message for _, message in verify_transients.findings(stream)]


def _functions(every: list[Dispatch], stream: ir.Operation) -> tuple[FunctionCost, ...]:
    counts = Counter(dispatch.function for dispatch in every)
    buffers: dict[str, tuple[int, int]] = {}
    known: dict[str, dict[str, int]] = {}
    for op in stream.regions[0].blocks[0].operations:
        if op.operation.name == "util.func":
            name = symbol_of(op.operation)
            buffers[name] = transients(op.operation)
            own = [each for each in read_samples(stream) if each.function == name]
            at = {each.name: transients(op.operation, Sizes(each)) for each in own}
            known[name] = {key: size for key, (size, unknown) in at.items() if not unknown}
    return tuple(
        FunctionCost(
            name=name,
            dispatches=counts[name],
            transient_bytes=total,
            dynamic_transients=dynamic,
            samples=known.get(name, {}),
        )
        for name in dict.fromkeys([*buffers, *counts])
        for total, dynamic in (buffers.get(name, (0, 0)),)
    )
