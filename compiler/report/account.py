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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from iree.compiler import ir

from mxc.artifact.code_objects.metadata import read_resources
from mxc.compiler.report import (
    FunctionCost,
    Matmul,
    MatmulCost,
    Operation,
    OperationCost,
    Report,
    Sample,
)
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
from mxc.dialects import kernel_calls
from mxc.dialects import samples as samples_of_program
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
    operand_bytes,
    result_bytes,
    shaped_bytes,
    walk,
)
from mxc.dialects.kernel_calls import read_reasons
from mxc.dialects.locations import names
from mxc.dialects.pool_reads import read_pool
from mxc.dialects.samples import STATED, Sizes, read_estimates, read_samples
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
    samples = read_samples(flow)
    for dispatch in every:
        kernel = kernels.get(dispatch.entry)
        call = read_contraction(dispatch.op)
        at = _sizes(samples, dispatch)
        if call is not None:
            before = quantising(dispatch, weights, stores)
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
            Sample(
                name=each.name, function=each.function, rows=each.rows, positions=each.positions
            )
            for each in samples
        ),
    )


def _sizes(samples: Sequence[samples_of_program.Sample], dispatch: Dispatch) -> dict[str, Sizes]:
    """Sizes at each sample of the function that a dispatch is in."""
    return {each.name: Sizes(each) for each in samples if each.function == dispatch.function}


def _operation(
    dispatch: Dispatch,
    inside: list[Product],
    shared: bool,
    target: Target,
    samples: Mapping[str, Sizes],
) -> Operation:
    call = read_contraction(dispatch.op)
    name = next(iter(dispatch.names), dispatch.entry)
    if call is None and inside:
        name = _name(dispatch, inside[0], shared)
    stated = _operation_cost(dispatch, call, inside, target, STATED)
    return Operation(
        function=dispatch.function,
        name=name,
        kernel=dispatch.entry,
        bytes_moved=stated.bytes_moved,
        flops=stated.flops,
        results=tuple(
            str(ir.RankedTensorType(each.type).element_type)
            for each in dispatch.op.results
            if isinstance(each.type, ir.RankedTensorType)
        ),
        time=stated.time,
        samples={
            each: _operation_cost(dispatch, _estimated(dispatch, call, n), inside, target, sizes)
            for n, (each, sizes) in enumerate(samples.items())
        },
    )


def _estimated(dispatch: Dispatch, call: Contraction | None, sample: int) -> Contraction | None:
    """With the clocks and workgroups of a sample, by its number, where they come with the call."""
    estimates = read_estimates(dispatch.op)
    if call is None or not estimates:
        return call
    clocks, workgroups = estimates[sample]
    return replace(call, clocks=clocks, workgroups=workgroups)


def _operation_cost(
    dispatch: Dispatch,
    call: Contraction | None,
    inside: Sequence[Product],
    target: Target,
    sizes: Sizes,
) -> OperationCost:
    pool = read_pool(dispatch.op)
    products: list[int | None] = []
    if call is not None:
        call = _known(dispatch, call, sizes)
        moved = kernel_calls.moved_bytes(dispatch, call, sizes)
        products = [_flops(_size(call.batch), _size(call.m), call.n, call.k)]
    else:
        moved = moved_bytes(dispatch, sizes)
        known = [_product_at(dispatch, each, sizes) for each in inside]
        products = [_flops(each.batch, each.m, each.n, each.k) for each in known]
    if pool is not None:
        products.append(pool.flops(dispatch.op, sizes))
    flops = _sum(products)
    return OperationCost(
        bytes_moved=moved, flops=flops, time=_time(call, moved, flops, target)
    )


def _flops(batch: int, m: int, n: int, k: int) -> int | None:
    return None if min(batch, m, n, k) < 0 else 2 * batch * m * n * k


def _known(dispatch: Dispatch, call: Contraction, sizes: Sizes) -> Contraction:
    """With the groups or rows that come with the call, which are the workload of its kernel."""
    if call.batch is not None and call.m is not None:
        return call
    count = list(ir.DenseI32ArrayAttr(dispatch.op.attributes["operandSegmentSizes"]))[0]
    given = iter([sizes.number(value) for value in list(dispatch.op.operands)[:count]])
    batch, m = (next(given, None) if size is None else size for size in (call.batch, call.m))
    return replace(call, batch=batch, m=m)


def _product_at(dispatch: Dispatch, product: Product, sizes: Sizes) -> Product:
    """With the one of groups and rows that is dynamic, by the elements of the result."""
    others = [size for size in (product.batch, product.m, product.n) if size >= 0]
    shape = sizes.inside(product.op.results[0], dispatch.op)
    if product.k < 0 or len(others) != 2 or product.n < 0 or shape is None:
        return product
    found = math.prod(shape) // max(1, math.prod(others))
    return replace(
        product,
        batch=found if product.batch < 0 else product.batch,
        m=found if product.m < 0 else product.m,
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
        known = _product_at(dispatch, contraction, sizes)
        return MatmulCost(
            batch=known.batch,
            m=known.m,
            bytes_moved=_sum([moved_bytes(step, sizes) for step in steps]),
            bytes_minimum=_minimum(dispatch, known, (lhs, rhs), block, after, sizes),
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
    samples: Mapping[str, Sizes],
) -> Matmul:
    """A contraction that a kernel of ours computes: what it is stands on the dispatch.

    `steps`: those that quantise what it reads, and those that finish its result; `kernels`: one,
    or those of which the rows of a call choose.
    """
    before, after = steps
    assert call.kind is not None
    found = [lowering_of(kernel, target, packed=call.rhs.is_packed) for kernel in kernels]

    def cost(sizes: Sizes) -> MatmulCost:
        known = _known(dispatch, call, sizes)
        moved = [moved_bytes(each, sizes) for each in (*before, *after)]
        return MatmulCost(
            batch=_size(known.batch),
            m=_size(known.m),
            bytes_moved=_sum([kernel_calls.moved_bytes(dispatch, known, sizes), *moved]),
            bytes_minimum=_least_bytes(dispatch, known, after, sizes),
        )

    stated = cost(STATED)
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
        bytes_moved=stated.bytes_moved,
        bytes_minimum=stated.bytes_minimum,
        fallback=explain_own(kernels, target, call.kind),
        choice=choice_of(call, target),
        unfused=call.unfused or None,
        samples={name: cost(sizes) for name, sizes in samples.items()},
    )


def _least_bytes(
    dispatch: Dispatch, call: Contraction, after: Sequence[Dispatch], sizes: Sizes
) -> int | None:
    """Bytes of both packed factors and the output, each once."""
    if call.batch is None or call.m is None:
        return None
    rows = call.batch * call.m
    written = rows * call.out.row_bytes(call.n)
    # Of a gated product half of the columns.
    written = min(written, _results(dispatch, sizes) or written)
    for finish in after:
        written = min(written, result_bytes(finish, 0, sizes) or written)
    return (
        call.weights * call.n * call.rhs.row_bytes(call.k)
        + rows * call.lhs.row_bytes(call.k)
        + written
    )


def _results(dispatch: Dispatch, sizes: Sizes) -> int | None:
    """Bytes of all results of a dispatch."""
    return _sum([result_bytes(dispatch, n, sizes) for n in range(len(dispatch.op.results))])


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
    sizes: Sizes,
) -> int | None:
    """Bytes of both packed factors, their scales and the output, each once.

    Rows that several groups of a batch share are counted once: no more than the operand holds.
    The output is what the dispatch writes where an epilogue makes it narrower, or a dispatch
    behind it does.
    """
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    result = contraction.op.results[0]
    own = shaped_bytes(result.type, sizes.inside(result, dispatch.op))
    written = _results(after[-1] if after else dispatch, sizes)
    if min(batch, m, n, k) < 0 or own is None or written is None:
        return None
    total = min(own, written)
    for rows, side, actual in zip((m, n), packed, (contraction.lhs, contraction.rhs), strict=True):
        elements = batch * rows * k
        needed = math.ceil(elements * element_bits(side.element) / 8)
        total += _at_most_whole(dispatch, side.tensor, actual.tensor, needed, sizes)
        if side.scale is not None and block:
            width = element_bits(ir.RankedTensorType(side.scale.type).element_type)
            needed = math.ceil(elements // block * width / 8)
            total += _at_most_whole(dispatch, side.scale, actual.scale, needed, sizes)
    return total


def _at_most_whole(
    dispatch: Dispatch, packed: ir.Value, actual: ir.Value | None, needed: int, sizes: Sizes
) -> int:
    same = actual is not None and packed == actual
    whole = operand(dispatch, packed) if same else None
    places = [at for at, value in enumerate(dispatch.operands) if value == whole]
    held = operand_bytes(dispatch, places[0], sizes) if places else None
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
