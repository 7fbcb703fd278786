"""Bases of the kernels of recurrences, with their shapes and buffers; and the rows of a run.

A recurrence reads the state of a sequence from a slot of a pool, updates it with each row of a run
(consecutive tokens of the sequence), and writes it back to the slot.
"""

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
#: Most tokens that a convolution sees at once: a lane keeps them in registers.
_MOST_WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class Recurrence(Sized, ABC):
    """A kernel of a recurrence, on a pool with states of `layers` layers.

    `lanes`: of a register, or of a wave on a GPU. These come with each call: the `layer`, the
    number of `rows` T, of `runs` S, and of `slots` M of the pool.
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
        """Return the kernel itself, or the reason why there is none with these sizes."""

    @property
    def threads(self) -> Threads | None:
        """The workgroup on a GPU; None on a CPU."""
        return None

    @property
    @abstractmethod
    def workgroups(self) -> list[Size]:
        """Numbers of workgroups along columns, heads if any, and runs."""

    @property
    @abstractmethod
    def buffers(self) -> list[Buffer]:
        """The buffers that are read, the last of which are the pool (updated in place), runs and
        places; then the result."""

    @abstractmethod
    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""

    def _with_runs(self, given: list[Buffer], pool: list[int], result: Buffer) -> list[Buffer]:
        """The buffers `given`, then pool, runs, places and result. `pool`: the shape of a state."""
        runs, places = Buffer([self.runs, 3], i32()), Buffer([self.runs], i32())
        return [*given, Buffer([self.slots, self.layers, *pool], f32()), runs, places, result]


@dataclass(frozen=True, kw_only=True)
class DeltaRule(Recurrence):
    """The delta rule with `heads` heads of values, and states [M, layers, heads, key_depth, depth].

    `each`: whether each row of a state (of `key_depth`) has its own decay, instead of each head.
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
    """The convolution of each of `columns` columns over the last `width` tokens.

    States are [M, layers, width - 1, columns], the tokens before. `element`: type of the weights.
    """

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
        """Return the kernel itself, or the reason why no target has one with these sizes."""
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
    """The rows `first` .. `behind` - 1 of the run of a workgroup. `place`: the slot of its state.
    `fresh`: an i1 that is true if the run begins its sequence, so that the state starts as zeros.
    """

    first: ir.Value
    behind: ir.Value
    place: ir.Value
    fresh: ir.Value


def rows_of_run(runs: ir.Value, places: ir.Value, number: ir.Value) -> RunRows:
    """Build the loads of run `number` of a call from the memrefs `runs` [S, 3] and `places` [S]."""

    def load(source: ir.Value, *at: ir.Value) -> ir.Value:
        return arith.index_cast(ir.IndexType.get(), memref.LoadOp(source, list(at)).result)

    first, count, before = (load(runs, number, index(column)) for column in range(3))
    fresh = equal(before, 0)
    return RunRows(first, first + count, load(places, number), fresh)
