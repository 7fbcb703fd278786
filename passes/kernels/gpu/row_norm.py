"""RMS norm of rows on GPUs. A workgroup has a row, in registers from its loads to its stores.

    row      x, or residual + sum of shares * rows of experts, in the order of the choices
    sum      of the squares: over a lane, then over 16 lanes by DPP, then over the workgroup in LDS
    normed   row / sqrt(sum / width + epsilon) * (offset + weight)

In each iteration of the workgroup a lane has four consecutive elements. The order of the additions
depends on the width alone, and on the number of experts if a router is in the kernel; so a row has
the same bits in every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, vector

from mxc.dialects.amdgpu import barrier, shared, thread
from mxc.dialects.generic import constant, element_of, shape_of
from mxc.dialects.named_operations import is_call
from mxc.dialects.reasons import Reason
from mxc.dialects.routes import ROUTE, route_call
from mxc.dialects.row_norms import RowNormCall, is_sum_of_experts, row_norm_calls
from mxc.dialects.scalar_pattern import match_scalar
from mxc.dialects.sizes import dynamic_sizes
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import Threads, workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, named
from mxc.passes.kernels.gpu.lanes import at_most, long
from mxc.passes.kernels.gpu.route import Route
from mxc.passes.kernels.gpu.sums import over_workgroup, sum_of
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.roundings import is_plain, is_rounding
from mxc.passes.kernels.vectors import below, f32, i32, index, load, of, splat, when
from mxc.passes.rewriting.rebuild import replace
from mxc.passes.rewriting.worklist import replace_op

#: Consecutive elements of a lane in an iteration.
_RUN = 4
#: Lanes of a workgroup are a multiple of the first number, and at most the second; most iterations.
_STEP, _MOST_THREADS, _MOST_ITERATIONS = 64, 1024, 8
#: Most elements of a row.
_MOST = _MOST_THREADS * _RUN * _MOST_ITERATIONS
#: Types of weights.
_FLOATS = ("bf16", "f16", "f32")


@dataclass(frozen=True, kw_only=True)
class RowNorm(Sized):
    """The norm of `rows` rows of `width` f32 by weights of type `weight`, stored once in each of
    the types `stores`.

    `choices`: number of rows of experts that are added to each row first, out of `slots` rows; the
    sum is then a result too. `route`: the router that reads the norm, if the kernel computes it.
    `wave`: lanes of a wave.

    Buffers: the rows; with choices, the rows of experts, shares and slots; the weights; those of
    the router. Then the results: with choices, the sum; the norm in each type; those of the router.
    """

    width: int
    weight: str
    epsilon: float
    offset: float
    stores: tuple[str, ...]
    choices: int
    route: Route | None
    wave: int
    rows: Size
    slots: Size

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        of_experts = f"_of_{self.choices}x{named(self.slots)}" if self.choices else ""
        types = "_".join((self.weight, *self.stores))
        bits = "".join(f"_{np.float32(n).view(np.uint32):x}" for n in (self.epsilon, self.offset))
        route = f"_{self.route.name}" if self.route else ""
        return f"mxc_row_norm{of_experts}_{named(self.rows)}x{self.width}_{types}{bits}{route}"

    @property
    def threads(self) -> Threads:
        """Threads of a workgroup."""
        experts = self.route.experts if self.route else 0
        waves = max(-(-self.width // (_RUN * _STEP)), -(-experts // _STEP))
        return Threads(min(waves * _STEP, _MOST_THREADS), self.wave)

    @property
    def workgroups(self) -> list[Size]:
        """One workgroup per row."""
        return [self.rows]

    @property
    def buffers(self) -> list[Buffer]:
        """Buffers that are read, then the results."""
        row = [self.rows, self.width]
        experts = [
            Buffer([self.slots, self.width], f32()),
            Buffer([self.rows, self.choices], f32()),
            Buffer([self.rows, self.choices], i32()),
        ]
        return [
            Buffer(row, f32()),
            *(experts if self.choices else []),
            Buffer([self.width], ir.Type.parse(self.weight)),
            *(self.route.given(self.width) if self.route else []),
            *([Buffer(row, f32())] if self.choices else []),
            *(Buffer(row, ir.Type.parse(each)) for each in self.stores),
            *(self.route.made(self.rows) if self.route else []),
        ]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        rest = iter(buffers)
        given = [next(rest) for _ in range(4 if self.choices else 1)]
        weights = next(rest)
        routers = [next(rest) for _ in (self.route.given(self.width) if self.route else [])]
        sums = [next(rest) for _ in range(bool(self.choices))]
        results = [next(rest) for _ in self.stores]
        row, lane, size = workgroup(0), thread(), self.threads.count * _RUN
        columns = [lane * _RUN + step * size for step in range(-(-self.width // size))]
        places = [at_most(column, self.width - _RUN) for column in columns]
        factors = [self._factor(weights, place) for place in places]
        held = self._held(given, row, places)
        for into in sums:
            for column, value in zip(columns, held, strict=True):
                self._store(value, into, row, column)
        total = splat(0.0, f32(), _RUN)
        for column, value in zip(columns, held, strict=True):
            total = total + self._inside(column, value * value)
        squares = over_workgroup(sum_of(total), self.threads.count)
        mean = squares / float(self.width)
        root = math.sqrt(mean + self.epsilon)
        scale = vector.broadcast(of(f32(), _RUN), constant(1.0, f32()) / root)
        memory = shared([self.width], f32()) if self.route else None
        for column, value, factor in zip(columns, held, factors, strict=True):
            normed = factor * (value * scale)
            for result in results:
                self._store(normed, result, row, column)
            if self.route:
                normed = rounded(normed) if self.route.rounded else normed
                self._store(normed, memory, None, column)
        if self.route:
            barrier()
            self.route.body(row, memory, self.width, self.threads.count, *routers, *rest)

    def _factor(self, weights: ir.Value, place: ir.Value) -> ir.Value:
        """offset + weight, for the elements from `place` on."""
        kind = ir.Type.parse(self.weight)
        found = load(weights, [place], kind, _RUN)
        found = found if self.weight == "f32" else arith.extf(of(f32(), _RUN), found)
        return splat(self.offset, f32(), _RUN) + found if self.offset else found

    def _held(
        self, given: Sequence[ir.Value], row: ir.Value, places: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """The elements of the row from each of `places` on, with rows of experts added, if any."""
        x, *experts = given
        held = [load(x, [row, place], f32(), _RUN) for place in places]
        if not experts:
            return held
        rows, shares, slots = experts
        choices = [index(number) for number in range(self.choices)]
        numbers = [long(memref.LoadOp(slots, [row, each]).result) for each in choices]
        of_choices = [memref.LoadOp(shares, [row, each]).result for each in choices]
        found = []
        for place, residual in zip(places, held, strict=True):
            products = [
                load(rows, [number, place], f32(), _RUN) * vector.broadcast(of(f32(), _RUN), share)
                for number, share in zip(numbers, of_choices, strict=True)
            ]
            total = products[0]
            for product in products[1:]:
                total = total + product
            found.append(residual + total)
        return found

    def _ragged(self) -> bool:
        """Whether some lanes have columns past the end of the row."""
        return self.width % (self.threads.count * _RUN) != 0

    def _inside(self, column: ir.Value, value: ir.Value) -> ir.Value:
        """The value, or zeros if its column is past the end of the row."""
        if not self._ragged():
            return value
        return arith.select(below(column, self.width), value, splat(0.0, f32(), _RUN))

    def _store(
        self, value: ir.Value, into: ir.Value, row: ir.Value | None, column: ir.Value
    ) -> None:
        """Store elements that are not past the end of the row. `row`: its number, or None if the
        memory has a single row."""
        kind = ir.MemRefType(into.type).element_type
        if kind != f32():
            value = arith.truncf(of(kind, _RUN), value)
        at = [column] if row is None else [row, column]
        if not self._ragged():
            vector.store(value, into, at)
            return
        with when(below(column, self.width)):
            vector.store(value, into, at)


def rounded(values: ir.Value) -> ir.Value:
    """Round f32 [4] to bf16, and extend them to f32 again."""
    narrow = arith.truncf(of(ir.BF16Type.get(), _RUN), values)
    return arith.extf(of(f32(), _RUN), narrow)


def row_norm_lowering(wave: int) -> Lowering[RowNormCall, RowNorm]:
    """Return the lowering of norms of rows to kernels for waves of `wave` lanes."""
    return Lowering(row_norm_calls, lambda call: _kernel(call, wave), _dispatch)


def _kernel(call: RowNormCall, wave: int) -> RowNorm | Reason:
    rows, width = shape_of(call.x)
    weight, summed, read = str(element_of(call.weight)), _summed(call), _Readers.of(call)
    if weight not in _FLOATS:
        return Reason(f"weights are {weight}; kernels take {', '.join(_FLOATS)}")
    if not 0 < width <= _MOST or width % _RUN:
        return Reason(f"rows have {width} elements; kernels take multiples of {_RUN} up to {_MOST}")
    slots = shape_of(summed.experts.operands[0])[0] if summed else 0
    return RowNorm(
        width=width,
        weight=weight,
        epsilon=call.epsilon,
        offset=call.offset,
        stores=read.stores,
        choices=shape_of(summed.experts.operands[1])[1] if summed else 0,
        route=read.route,
        wave=wave,
        rows=rows if rows >= 0 else None,
        slots=slots if slots >= 0 else None,
    )


def _dispatch(calls: Calls, call: RowNormCall, kernel: RowNorm) -> Sequence[ir.Value] | None:
    summed, read = _summed(call), _Readers.of(call)
    tensors, place, location = [call.x], call.op, call.op.location
    if summed:
        # The kernel stands in place of the sum: other readers of the sum may come before the norm.
        place = summed.op
        tensors = [summed.residual, *summed.experts.operands]
    weights = [call.weight]
    if read.router is not None:
        weights += list(read.router.operands)[1:]
        location = read.router.location
    for each in weights:
        if not isinstance(each.owner, ir.Block):
            each.owner.operation.move_before(place)
    with ir.InsertionPoint(place), location:
        # Only the first two tensors have sizes of their own that may come with the call.
        scalars = [size for each in tensors[:2] for size in dynamic_sizes(each)]
        made = calls.dispatch(kernel.name, kernel, [*tensors, *weights], scalars, kernel.threads)
    results = list(made.results)
    if read.router is not None:
        assert kernel.route is not None
        rows = kernel.rows if isinstance(kernel.rows, int) else None
        kernel.route.contraction(rows, kernel.width).write(made)
        replace_op(read.router, [results.pop(-2), results.pop()])
    for op in read.roundings:
        if "bf16" in kernel.stores:
            replace(op, results[-1])
    if summed:
        replace(summed.op, results.pop(0))
    return results[:1] if "f32" in kernel.stores else None


@dataclass(frozen=True)
class _Readers:
    """The operations that read a norm. `roundings`: to bf16. `router`, `route`: the router that the
    kernel of the norm computes, if any. `stores`: the types in which other readers need the
    norm."""

    roundings: list[ir.Operation]
    router: ir.Operation | None
    route: Route | None
    stores: tuple[str, ...]

    @staticmethod
    def of(call: RowNormCall) -> _Readers:
        """Find the readers of a norm."""
        width = shape_of(call.x)[1]
        users = _users(call.op)
        roundings = [user for user in users if is_rounding(user)]
        of_roundings = [user for each in roundings for user in _users(each)]
        found = [op for op in (*users, *of_roundings) if is_call(op, ROUTE)]
        route = None
        if len(found) == 1 and all(is_loaded(each) for each in list(found[0].operands)[1:]):
            chosen = Route.of(route_call(found[0]), width, found[0] in of_roundings)
            route = None if isinstance(chosen, Reason) else chosen
        taken = found if route else []
        floats = [user for user in users if user not in (*roundings, *taken)]
        narrow = [user for user in of_roundings if user not in taken]
        stores = (*(("f32",) if floats else ()), *(("bf16",) if narrow else ()))
        return _Readers(roundings, taken[0] if taken else None, route, stores)


def _users(op: ir.Operation) -> list[ir.Operation]:
    return [use.owner.operation for use in op.results[0].uses]


def is_loaded(value: ir.Value) -> bool:
    """Whether a value is an argument or a loaded global, and so may be moved to an earlier
    place."""
    return isinstance(value.owner, ir.Block) or value.owner.name == "util.global.load"


@dataclass(frozen=True)
class _Summed:
    """The operation `op` that adds the result of `experts`, a call of `sum_experts`, to
    `residual`."""

    op: ir.Operation
    experts: ir.Operation
    residual: ir.Value


def _summed(call: RowNormCall) -> _Summed | None:
    """Return the sum that computes the rows of a norm, if the kernel of the norm can compute it."""
    op = call.x.owner
    if isinstance(op, ir.Block) or op.name != "linalg.generic":
        return None
    op = op.operation
    if not is_plain(op) or match_scalar(op, ("arith.addf", "%0", "%1")) is None:
        return None
    if not is_loaded(call.weight):
        return None
    residual, experts, _ = op.operands
    if not is_sum_of_experts(experts) or len(list(experts.uses)) > 1:
        return None
    return _Summed(op, experts.owner.operation, residual)
