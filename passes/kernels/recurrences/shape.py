"""The shapes that kernels of recurrences are built for, and the rows of a workgroup's run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.reasons import Reason
from mxc.dialects.recurrence import ConvolutionCall, DeltaRuleCall
from mxc.passes.kernels.executables import Threads
from mxc.passes.kernels.extents import Buffer, Size, Sized
from mxc.passes.kernels.vectors import equal, f32, i32, index

#: Types of weights that are extended to f32 exactly.
_FLOATS = ("bf16", "f16", "f32")
#: Most tokens of a convolution, which a lane keeps in registers.
_MOST_WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class Recurrence(Sized, ABC):
    """A kernel for states of `layers` layers. `lanes`: of a register, or of a wave on a GPU.

    With each call come the `layer`, rows T, runs S, and slots M of the pool.
    """

    layers: int
    lanes: int
    layer: Size = None
    rows: Size = None
    runs: Size = None
    slots: Size = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The symbol of the kernel."""

    @abstractmethod
    def checked(self) -> Self | Reason:
        """This, or why no kernel has these sizes."""

    @property
    def threads(self) -> Threads | None:
        """Threads of a workgroup, on a GPU."""
        return None

    @property
    @abstractmethod
    def workgroups(self) -> list[Size]:
        """Along columns, heads if any, and runs."""

    @property
    @abstractmethod
    def buffers(self) -> list[Buffer]:
        """What is read: the last ones are the pool, runs and places; and the result."""

    @abstractmethod
    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""

    def _with_runs(self, given: list[Buffer], pool: list[int], result: Buffer) -> list[Buffer]:
        runs, places = Buffer([self.runs, 3], i32()), Buffer([self.runs], i32())
        return [*given, Buffer([self.slots, self.layers, *pool], f32()), runs, places, result]


@dataclass(frozen=True, kw_only=True)
class DeltaRule(Recurrence):
    """The delta rule of `heads` of values, with states [M, layers, heads, key_depth, depth].

    `each`: each row of a state has its own decay.
    """

    key_heads: int
    heads: int
    key_depth: int
    depth: int
    each: bool

    @classmethod
    def of(cls, call: DeltaRuleCall, lanes: int) -> Self:
        """The kernel of a call; see `checked`."""
        _, layers, heads, key_depth, depth = shape_of(call.states.pool)
        return cls(
            key_heads=shape_of(call.keys)[1],
            heads=heads,
            key_depth=key_depth,
            depth=depth,
            layers=layers,
            each=len(shape_of(call.decay)) == 3,
            lanes=lanes,
        )

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        sizes = f"{self.key_heads}x{self.heads}x{self.key_depth}x{self.depth}"
        return f"mxc_delta_rule_{sizes}_of_{self.layers}{'_each' if self.each else ''}"

    @property
    def group(self) -> int:
        """Number of heads of values per head of keys."""
        return self.heads // self.key_heads

    @property
    def buffers(self) -> list[Buffer]:
        """Queries, keys, values, decay, beta, pool, runs, places, and the result."""
        keys = Buffer([self.rows, self.key_heads, self.key_depth], f32())
        values = Buffer([self.rows, self.heads, self.depth], f32())
        rates = Buffer([self.rows, self.heads], f32())
        decay = Buffer([self.rows, self.heads, self.key_depth], f32()) if self.each else rates
        given = [keys, keys, values, decay, rates]
        return self._with_runs(given, [self.heads, self.key_depth, self.depth], values)


@dataclass(frozen=True, kw_only=True)
class Convolution(Recurrence):
    """The convolution of `columns`, with states [M, layers, width - 1, columns]; `element` is the
    type of the weights."""

    columns: int
    width: int
    element: str

    @classmethod
    def of(cls, call: ConvolutionCall, lanes: int) -> Self:
        """The kernel of a call; see `checked`."""
        columns, width = shape_of(call.weights)
        element, layers = str(element_of(call.weights)), shape_of(call.states.pool)[1]
        return cls(columns=columns, width=width, element=element, layers=layers, lanes=lanes)

    def checked(self) -> Self | Reason:
        """This, or why no kernel has these sizes, whatever the target."""
        if not 2 <= self.width <= _MOST_WIDTH:
            return Reason(f"it sees {self.width} tokens; kernels take 2 to {_MOST_WIDTH}")
        if self.element not in _FLOATS:
            return Reason(f"weights are {self.element}; kernels take {', '.join(_FLOATS)}")
        return self

    @property
    def name(self) -> str:
        """The symbol of the kernel."""
        return f"mxc_convolution_{self.columns}x{self.width}_{self.element}_of_{self.layers}"

    @property
    def buffers(self) -> list[Buffer]:
        """x, weights (one column after the other), pool, runs, places, and the result."""
        x = Buffer([self.rows, self.columns], f32())
        weights = Buffer([self.columns * self.width], ir.Type.parse(self.element))
        return self._with_runs([x, weights], [self.width - 1, self.columns], x)


@dataclass(frozen=True)
class RunRows:
    """The rows `first` .. `behind` - 1 of a workgroup's run. Its states are in slot `place`, or
    zeros where `fresh`, an i1, is true."""

    first: ir.Value
    behind: ir.Value
    place: ir.Value
    fresh: ir.Value


def rows_of_run(runs: ir.Value, places: ir.Value, number: ir.Value) -> RunRows:
    """Load the rows of run `number` of the call."""

    def load(source: ir.Value, *at: ir.Value) -> ir.Value:
        return arith.index_cast(ir.IndexType.get(), memref.LoadOp(source, list(at)).result)

    first, count, before = (load(runs, number, index(column)) for column in range(3))
    fresh = equal(before, 0)
    return RunRows(first, first + count, load(places, number), fresh)
