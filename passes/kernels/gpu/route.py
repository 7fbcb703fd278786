"""The router of a mixture of experts, as a part of the kernel of the norm before it, on GPUs.

    logits   16 lanes for each expert: a lane multiplies 8 elements at a time by multiply-adds; its
             8 sums are added up, then those of the lanes by DPP
    chosen   a lane for each expert: the number of logits before its own is its place (top_k.py)
    shares   a lane for each choice: exp(chosen - greatest) / sum of these, in the order of choices

The row, the logits and the chosen logits are in LDS.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, scf, vector

from mxc.dialects.amdgpu import barrier, shared, thread
from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.generic import constant, element_of, shape_of
from mxc.dialects.reasons import Reason
from mxc.dialects.routes import MOST_BYTES, RouteCall, route_calls
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.exponential import LOG2_E
from mxc.passes.kernels.extents import Buffer, Size
from mxc.passes.kernels.gpu.attention.softmax import power
from mxc.passes.kernels.gpu.lanes import at_most, long
from mxc.passes.kernels.gpu.sums import TOGETHER, over_lanes, sum_of
from mxc.passes.kernels.gpu.top_k import known, places_before
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.vectors import below, equal, f32, i32, index, load, loop, of, splat, when

#: Consecutive elements that a lane loads at once; such loads that are issued before the first wait.
_RUN, _AHEAD = 8, 8
#: Experts have to be a multiple of the first number, and at most the second.
_FOUR, _MOST = 4, 1024
#: Types of weights and biases -> bytes of an element.
_FLOATS = {"bf16": 2, "f16": 2, "f32": 4}


@dataclass(frozen=True, kw_only=True)
class Route:
    """A router that chooses `choices` of `experts` for each row. `weight`, `bias`: types of the
    weights, and of the biases ("" without). `rounded`: whether rows are rounded to bf16 first."""

    experts: int
    choices: int
    weight: str
    bias: str
    rounded: bool

    @staticmethod
    def of(call: RouteCall, width: int, rounded: bool) -> Route | Reason:
        """Return the router of a call on rows of `width` elements, or why no kernel computes it."""
        experts, choices = shape_of(call.weight)[0], shape_of(call.op.results[0])[1]
        weight = str(element_of(call.weight))
        bias = "" if call.bias is None else str(element_of(call.bias))
        if weight not in _FLOATS or bias not in ("", *_FLOATS):
            return Reason(f"weights are {weight} {bias}; kernels take {', '.join(_FLOATS)}")
        if experts % _FOUR or experts > _MOST or width % _RUN:
            return Reason(
                f"it chooses of {experts} experts by {width} elements; kernels take multiples of "
                f"{_FOUR} up to {_MOST} by multiples of {_RUN}"
            )
        size = experts * width * _FLOATS[weight]
        if size > MOST_BYTES:
            return Reason(f"weights have {size} bytes, which each row reads; {MOST_BYTES} may be")
        return Route(experts=experts, choices=choices, weight=weight, bias=bias, rounded=rounded)

    @property
    def name(self) -> str:
        """A part of the symbol of the kernel."""
        types = "_".join(filter(None, (self.weight, self.bias, "rounded" * self.rounded)))
        return f"top_{self.choices}_of_{self.experts}_{types}"

    def given(self, width: int) -> list[Buffer]:
        """The buffers of the weights and of the biases, if any."""
        biases = [Buffer([self.experts], ir.Type.parse(self.bias))] if self.bias else []
        return [Buffer([self.experts, width], ir.Type.parse(self.weight)), *biases]

    def made(self, rows: Size) -> list[Buffer]:
        """The buffers of the results: the shares and the numbers of the chosen experts."""
        return [Buffer([rows, self.choices], kind) for kind in (f32(), i32())]

    def contraction(self, rows: int | None, width: int) -> Contraction:
        """The description of the product for reports."""
        return Contraction(
            batch=1,
            m=rows,
            n=self.experts,
            k=width,
            lhs=OperandFormat("bf16" if self.rounded else "f32"),
            rhs=OperandFormat(self.weight),
            out=OperandFormat("f32"),
            kind="multiply-add",
        )

    def body(
        self, number: ir.Value, row: ir.Value, width: int, threads: int, *buffers: ir.Value
    ) -> None:
        """Build the router for row `number` of a call, which is in LDS as `row`, f32 [width].
        `threads`: lanes of the workgroup; `buffers`: those of `given` and `made`."""
        *given, shares, experts = buffers
        logits, chosen = shared([self.experts], f32()), shared([self.choices], f32())
        self._multiply(row, logits, width, threads, *given)
        barrier()
        own = thread()
        # Lanes past the last expert read the logit of the last one, and store nothing.
        raw = memref.LoadOp(logits, [at_most(own, self.experts - 1)]).result
        value, counts = known(raw)
        rank = places_before(value, own, logits, self.experts)
        first = below(own, self.experts) & below(rank, self.choices)
        with when(first):
            at = long(rank)
            memref.StoreOp(value, chosen, [at])
            expert = arith.index_cast(i32(), own)
            memref.StoreOp(arith.select(counts, expert, constant(0, i32())), experts, [number, at])
        barrier()
        with when(below(own, self.choices)):
            every = [memref.LoadOp(chosen, [index(n)]).result for n in range(self.choices)]

            def weight(x: ir.Value) -> ir.Value:
                difference = x - every[0]
                return power(difference * LOG2_E)

            total = functools.reduce(arith.addf, [weight(x) for x in every])
            own_weight = weight(memref.LoadOp(chosen, [own]).result)
            memref.StoreOp(own_weight / total, shares, [number, own])

    def _multiply(
        self,
        row: ir.Value,
        logits: ir.Value,
        width: int,
        threads: int,
        weights: ir.Value,
        biases: ir.Value | None = None,
    ) -> None:
        """Store the logit of each expert: the product of the row and its weights, and its bias;
        -inf for NaN."""
        own, together = thread(), threads // TOGETHER
        part, size = own % TOGETHER, TOGETHER * _RUN
        for step in range(-(-self.experts // together)):
            expert = own // TOGETHER + step * together
            at = at_most(expert, self.experts - 1)
            end = index(-(-width // (size * _AHEAD)) * size * _AHEAD)
            zero = splat(0.0, f32(), _RUN)
            with loop(index(0), end, index(size * _AHEAD), [zero]) as (first, (total,), op):
                columns = [first + part * _RUN + step * size for step in range(_AHEAD)]
                places = [at_most(column, width - _RUN) for column in columns]
                kind = ir.Type.parse(self.weight)
                found = [load(weights, [at, place], kind, _RUN) for place in places]
                for column, place, each in zip(columns, places, found, strict=True):
                    w = each if self.weight == "f32" else arith.extf(of(f32(), _RUN), each)
                    x = vector.load(of(f32(), _RUN), row, [place], alignment=16)
                    total = arith.select(below(column, width), math.fma(x, w, total), total)
                scf.YieldOp([total])
            logit = over_lanes(sum_of(op.results[0]))
            if biases is not None:
                bias = memref.LoadOp(biases, [at]).result
                logit = logit + (bias if self.bias == "f32" else arith.extf(f32(), bias))
            stores = equal(part, 0) & below(expert, self.experts)
            with when(stores):
                memref.StoreOp(known(logit)[0], logits, [expert])


def route_lowering() -> Lowering[RouteCall, Route]:
    """Return the lowering of the routers that no kernel of a norm has taken: a reason for each."""
    return Lowering(route_calls, _refused, _dispatch)


def _refused(call: RouteCall) -> Reason:
    found = Route.of(call, shape_of(call.x)[1], rounded=False)
    return found if isinstance(found, Reason) else Reason("it reads no norm that a kernel computes")


def _dispatch(calls: Calls, call: RouteCall, kernel: Route) -> None:
    raise AssertionError(f"{call.op}: no kernel is chosen for a router alone")
