"""Mamba 2: a state space layer, whose state decays by a factor per head and row.

    z, x, B, C, dt = projection of the input;  x, B, C = act(convolution of the three + bias)
    dt             = softplus(dt + dt_bias)
    S              = exp(-exp(A_log) dt) S + B (dt x)^T;   y = C S + D x
    result         = projection(norm(y silu(z))), where act is SiLU in all published models

This is the delta rule without its correction, the part of the value that the state has already. So
keys are divided by 2^40 and values multiplied by it: the correction is 2^80 times smaller than in
the rule, and is lost when it is rounded, while products of key and value keep their bits.

Letters: T rows, H heads of P values, N the size of B and C, I = H P, W the width of the
convolution. The state of a sequence is f32 [L, W - 1, I + 2 N] and [L, H, N, P] of L layers; see
dialects/recurrence.py. Source: Dao and Gu, "Transformers are SSMs" (arXiv 2405.21060), and
transformers' models/mamba2, models/bamba and models/granitemoehybrid (5.23).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.models.blocks.devices import Steps, divided
from mxc.compiler.models.blocks.gates import Plain, swish
from mxc.compiler.models.blocks.linear_attention import decay_of, softplus
from mxc.compiler.models.blocks.mlp import linears
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import (
    CheckpointRows,
    FormatOf,
    Parameter,
    matrix,
    vector,
)
from mxc.compiler.models.blocks.primitives import collapse, expand, f32, parts_of
from mxc.compiler.models.blocks.scope import Scope, SequenceMemory, StepValues
from mxc.dialects.generic import constant, fill, generic, shape_of, to_f32
from mxc.dialects.recurrence import States, delta_rule, short_convolution
from mxc.dialects.sizes import sizes_of

#: Factor of values, and divisor of keys: a power of two, so that no product is rounded differently.
_APART = 2.0**40


@dataclass(frozen=True, kw_only=True)
class Mamba2:
    """The layer: `heads` (H) of `depth` (P) values, with one B and one C of `size` (N) numbers.

    `width` (W): tokens that the convolution reads. `bias`: whether it has one. `convolved`: the
    activation after the convolution.
    """

    hidden: int
    heads: int
    depth: int
    size: int
    width: int
    bias: bool
    convolved: Plain = swish

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a layer's states, f32, by name."""
        sizes = (self.heads, self.size, self.depth)
        return {"convolution": (self.width - 1, sum(self._convolved)), "delta_rule": sizes}

    def parameters(self, name: str, norm: Norm, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`. norm: the model's norm."""
        hidden, heads = ("hidden_size", self.hidden), ("mamba_n_heads", self.heads)
        inner, columns = ("mamba_n_heads * mamba_d_head", self._inner), sum(self._convolved)
        rows = ("gate, values, B, C and heads", sum(self._projected))
        # A state decays by the exponential of dt, and there are few rows: they stay plain.
        steps = (f"{name}.dt_proj.weight", self.heads)
        yield replace(matrix(f"{name}.in_proj.weight", rows, hidden), plain=steps)
        key, convolved = f"{name}.conv1d", ("values, B and C", columns)
        dims = (convolved, ("one", 1), ("mamba_d_conv", self.width))
        stored = CheckpointRows(tensor=f"{key}.weight", dims=dims)
        yield Parameter(key=f"{key}.weight", shape=(columns, self.width), rows=(stored,))
        if self.bias:
            yield vector(f"{key}.bias", convolved)
        for part in ("dt_bias", "A_log", "D"):
            yield vector(f"{name}.{part}", heads)
        yield from norm.parameters(f"{name}.norm", inner)
        yield matrix(f"{name}.out_proj.weight", hidden, inner)

    def share(self, devices: int) -> Mamba2:
        """Raise CheckpointError for several devices: all heads read the same B and C."""
        divided(devices, "mamba_n_groups", 1)
        return self

    def build(
        self, scope: Scope, x: ir.Value, name: str, state: StepValues, memory: SequenceMemory
    ) -> Steps:
        """x [T, hidden] -> [T, hidden]; the states of the sequences are updated in the pools."""
        weights, heads = scope.weights, self.heads
        gate, mixed, step = self._projections(scope, x, name)
        assert state.places is not None
        with ir.Location.name(name):
            layer = constant(memory.layer, ir.IndexType.get())
            places = (layer, state.rows.runs, state.places)
            memory.layer += 1
            kernel = weights.load(f"{name}.conv1d.weight", sum(self._convolved), self.width)
            mixed, memory.states[0] = short_convolution(
                mixed, kernel, States(memory.states[0], *places)
            )
            values, *keys = parts_of(self._activated(scope, mixed, name), self._convolved)
            values = expand(values, [[0], [1, 2]], [shape_of(values)[0], heads, self.depth])
            written, read = (
                expand(each, [[0], [1, 2]], [shape_of(each)[0], 1, self.size]) for each in keys
            )
            shift, rate, direct = (
                weights.load(f"{name}.{part}", heads) for part in ("dt_bias", "A_log", "D")
            )
            decay = generic([(step, "m h"), (shift, "h"), (rate, "h")], "m h", f32(), decay_of)
            found, memory.states[1] = delta_rule(
                read,
                _times(written, 1 / _APART),
                generic([(values, "m h p"), (step, "m h"), (shift, "h")], "m h p", f32(), _step),
                decay,
                fill(sizes_of(decay), f32(), 1.0),
                States(memory.states[1], *places),
            )
            loops = "m h p"
            found = generic([(found, loops), (values, loops), (direct, "h")], loops, f32(), _add)
            found = generic(
                [(collapse(found, [[0], [1, 2]]), "m n"), (gate, "m n")],
                "m n",
                f32(),
                lambda y, z: arith.mulf(y, swish(z)),
            )
        normed = scope.norm(found, f"{name}.norm")
        (part,) = linears(scope, normed, [f"{name}.out_proj"], (self.hidden, self._inner))
        return (yield part)

    def _projections(self, scope: Scope, x: ir.Value, name: str) -> Sequence[ir.Value]:
        """Project x [T, hidden] to the gate, the input of the convolution, and dt."""
        weights, sizes, names = scope.weights, [sum(self._projected)], [f"{name}.in_proj"]
        if weights.has(f"{name}.dt_proj.weight"):
            sizes = [sum(self._projected[:-1]), self.heads]
            names.append(f"{name}.dt_proj")
        with ir.Location.name(name):
            keys = [f"{each}.weight" for each in names]
            prepared = weights.prepare(x, *keys)
            first, *rest = (
                weights.linear(prepared, each, key, (size, self.hidden))
                for each, key, size in zip(names, keys, sizes, strict=True)
            )
            return [*parts_of(first, self._projected[: 3 - len(rest)]), *rest]

    def _activated(self, scope: Scope, x: ir.Value, name: str) -> ir.Value:
        """The activation of x + bias, of x [T, I + 2 N]."""
        if not self.bias:
            return generic([(x, "m n")], "m n", f32(), self.convolved)
        bias = scope.weights.load(f"{name}.conv1d.bias", sum(self._convolved))
        return generic(
            [(x, "m n"), (bias, "n")],
            "m n",
            f32(),
            lambda a, b: self.convolved(arith.addf(a, to_f32(b))),
        )

    @property
    def _inner(self) -> int:
        return self.heads * self.depth

    @property
    def _convolved(self) -> tuple[int, int, int]:
        """Columns of values, of B and of C."""
        return self._inner, self.size, self.size

    @property
    def _projected(self) -> tuple[int, int, int]:
        """Columns of the gate, of the input of the convolution, and of dt."""
        return self._inner, sum(self._convolved), self.heads


def _step(value: ir.Value, step: ir.Value, shift: ir.Value) -> ir.Value:
    """A value times dt, multiplied by the factor of values."""
    step = softplus(arith.addf(step, to_f32(shift)))
    return arith.mulf(arith.mulf(value, step), constant(_APART, f32()))


def _add(y: ir.Value, value: ir.Value, factor: ir.Value) -> ir.Value:
    return arith.addf(y, arith.mulf(value, to_f32(factor)))


def _times(x: ir.Value, factor: float) -> ir.Value:
    return generic([(x, "m g n")], "m g n", f32(), lambda a: arith.mulf(a, constant(factor, f32())))
