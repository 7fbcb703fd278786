"""The shapes that kernels of recurrences are built for, and the rows of a workgroup's run."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.reasons import Reason
from mxc.dialects.recurrence import ConvolutionCall, DeltaRuleCall
from mxc.passes.kernels.extents import Buffer, Size
from mxc.passes.kernels.vectors import f32, i32, index

#: Types of weights that are extended to f32 exactly.
_FLOATS = ("bf16", "f16", "f32")
#: Most tokens of a convolution, which a lane keeps in registers.
_MOST_WIDTH = 8


@dataclass(frozen=True)
class Extents:
    """Extents of a call: rows T, runs S, slots M; index values, or None before there is a call."""

    rows: Size = None
    runs: Size = None
    slots: Size = None


@dataclass(frozen=True)
class RuleShape:
    """The delta rule of `heads` of values, with states [M, layers, heads, key_depth, depth].

    `each`: each row of a state has its own decay.
    """

    key_heads: int
    heads: int
    key_depth: int
    depth: int
    layers: int
    each: bool

    @staticmethod
    def of(call: DeltaRuleCall) -> RuleShape:
        """The shape of a call."""
        _, layers, heads, key_depth, depth = shape_of(call.states.pool)
        each = len(shape_of(call.decay)) == 3
        return RuleShape(shape_of(call.keys)[1], heads, key_depth, depth, layers, each)

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        sizes = f"{self.key_heads}x{self.heads}x{self.key_depth}x{self.depth}"
        return f"mxc_delta_rule_{sizes}_of_{self.layers}{'_each' if self.each else ''}"

    @property
    def group(self) -> int:
        """Number of heads of values per head of keys."""
        return self.heads // self.key_heads

    def buffers(self, of: Extents) -> list[Buffer]:
        """Queries, keys, values, decay, beta, pool, runs, places, and the result."""
        keys = Buffer([of.rows, self.key_heads, self.key_depth], f32())
        values = Buffer([of.rows, self.heads, self.depth], f32())
        rates = Buffer([of.rows, self.heads], f32())
        decay = Buffer([of.rows, self.heads, self.key_depth], f32()) if self.each else rates
        pool = [of.slots, self.layers, self.heads, self.key_depth, self.depth]
        return [keys, keys, values, decay, rates, Buffer(pool, f32()), *_runs(of), values]


@dataclass(frozen=True)
class ConvolutionShape:
    """The convolution of `columns`, with states [M, layers, width - 1, columns]; `element` is the
    type of the weights."""

    columns: int
    width: int
    layers: int
    element: str

    @staticmethod
    def of(call: ConvolutionCall) -> ConvolutionShape | Reason:
        """The shape of a call, or the reason why no kernel on any target takes it."""
        columns, width = shape_of(call.weights)
        element, layers = str(element_of(call.weights)), shape_of(call.states.pool)[1]
        if not 2 <= width <= _MOST_WIDTH:
            return Reason(f"it sees {width} tokens; kernels take 2 to {_MOST_WIDTH}")
        if element not in _FLOATS:
            return Reason(f"weights are {element}; kernels take {', '.join(_FLOATS)}")
        return ConvolutionShape(columns, width, layers, element)

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        return f"mxc_convolution_{self.columns}x{self.width}_{self.element}_of_{self.layers}"

    def buffers(self, of: Extents) -> list[Buffer]:
        """x, weights (one column after the other), pool, runs, places, and the result."""
        x = Buffer([of.rows, self.columns], f32())
        weights = Buffer([self.columns * self.width], ir.Type.parse(self.element))
        pool = Buffer([of.slots, self.layers, self.width - 1, self.columns], f32())
        return [x, weights, pool, *_runs(of), x]


def _runs(of: Extents) -> list[Buffer]:
    return [Buffer([of.runs, 3], i32()), Buffer([of.runs], i32())]


@dataclass(frozen=True)
class Rows:
    """The rows `first` .. `behind` - 1 of a workgroup's run. Its states are in slot `place`, or
    zeros where `fresh`, an i1, is true."""

    first: ir.Value
    behind: ir.Value
    place: ir.Value
    fresh: ir.Value


def rows_of_run(runs: ir.Value, places: ir.Value, number: ir.Value) -> Rows:
    """Load the rows of run `number` of the call."""

    def load(source: ir.Value, *at: ir.Value) -> ir.Value:
        return arith.index_cast(ir.IndexType.get(), memref.LoadOp(source, list(at)).result)

    first, count, before = (load(runs, number, index(column)) for column in range(3))
    fresh = arith.cmpi(arith.CmpIPredicate.eq, before, index(0))
    return Rows(first, arith.addi(first, count), load(places, number), fresh)
