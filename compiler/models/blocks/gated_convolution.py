"""Gated short convolution: a product of two projections is convolved, then multiplied by a third.

    b, c, x = projection of the input, in three equal parts
    result  = projection(c convolution(b x))

The state of a sequence is the last W - 1 rows of b x, f32 [L, W - 1, C], of L layers; see
dialects/recurrence.py. W is the width of the convolution, C its columns. Source: transformers'
models/lfm2 (5.23).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.models.blocks.devices import Steps, divided
from mxc.compiler.models.blocks.mlp import linears
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import CheckpointRows, FormatOf, Parameter, matrix
from mxc.compiler.models.blocks.primitives import f32, parts_of
from mxc.compiler.models.blocks.scope import Scope, SequenceMemory, StepValues
from mxc.dialects.generic import constant, generic
from mxc.dialects.recurrence import States, short_convolution


@dataclass(frozen=True, kw_only=True)
class GatedConvolution:
    """The convolution of `columns` (C), each over the last `width` (W) tokens, without biases."""

    hidden: int
    columns: int
    width: int

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """The shape of a layer's state, f32, by name."""
        return {"convolution": (self.width - 1, self.columns)}

    def parameters(self, name: str, norm: Norm, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`. `norm` is unused."""
        hidden, columns = ("hidden_size", self.hidden), ("columns", self.columns)
        parts, kernel = ("3 * columns", 3 * self.columns), f"{name}.conv.weight"
        inner = f"{name}.in_proj.weight"
        yield matrix(inner, parts, hidden, split="rows", sections=(self.columns,) * 3)
        stored = CheckpointRows(
            tensor=kernel, dims=(columns, ("one", 1), ("conv_L_cache", self.width))
        )
        yield Parameter(key=kernel, shape=(self.columns, self.width), rows=(stored,), split="rows")
        yield matrix(f"{name}.out_proj.weight", hidden, columns, split="columns")

    def share(self, devices: int) -> GatedConvolution:
        """Return each device's share: some columns.

        Raises CheckpointError where the columns do not divide.
        """
        return replace(self, columns=divided(devices, "hidden_size", self.columns))

    def build(
        self, scope: Scope, x: ir.Value, name: str, state: StepValues, memory: SequenceMemory
    ) -> Steps:
        """x [T, hidden] -> [T, hidden]; the states of the sequences are updated in the pool."""
        (projected,) = linears(scope, x, [f"{name}.in_proj"], (3 * self.columns, self.hidden))
        assert state.places is not None
        with ir.Location.name(name):
            before, after, value = parts_of(projected, [self.columns] * 3)
            layer = constant(memory.layer, ir.IndexType.get())
            states = States(memory.states[0], layer, state.rows.runs, state.places)
            memory.layer += 1
            kernel = scope.weights.load(f"{name}.conv.weight", self.columns, self.width)
            mixed, memory.states[0] = short_convolution(_product(before, value), kernel, states)
            mixed = _product(after, mixed)
        (part,) = linears(scope, mixed, [f"{name}.out_proj"], (self.hidden, self.columns))
        return (yield part)


def _product(a: ir.Value, b: ir.Value) -> ir.Value:
    """a * b of rows f32 [T, C]."""
    return generic([(a, "m n"), (b, "m n")], "m n", f32(), arith.mulf)
