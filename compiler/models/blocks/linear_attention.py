"""Base class of linear attention: a delta rule with decay, after a short convolution.

    q, k, v  = act(convolution(projections of x)), where act is SiLU in all published models; each
               head of q and k is normalized to length one, then q is multiplied by K^-1/2
    o        = delta rule of q, k, v, a decay and sigmoid(b)
    result   = projection(norm(o) gate)

A subclass (gated_delta_net.py, kimi_delta_attention.py) defines the names in checkpoints, the
projections, the decay, and the activation of the gate.

The states of a sequence do not grow with it: the last input rows of the convolution, f32
[L, W - 1, C], and the matrices of the delta rule, f32 [L, H, K, V], of L layers. They are in pools
for all sequences, which dialects/recurrence.py describes. The result of a row depends only on the
earlier rows of its sequence, bit for bit.

Letters: T rows of this call, G heads of queries and keys, H heads of values, K and V the sizes of
their heads, C columns of all of them together, W the width of the convolution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.compiler.models.blocks.devices import Steps, divided
from mxc.compiler.models.blocks.gates import Plain, sigmoid, swish
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import CheckpointRows, Dim, FormatOf, Parameter, matrix
from mxc.compiler.models.blocks.primitives import collapse, expand, f32, parts_of
from mxc.compiler.models.blocks.scope import Scope, SequenceMemory, StepValues
from mxc.dialects.generic import constant, generic, shape_of, to_f32
from mxc.dialects.recurrence import States, delta_rule, short_convolution

#: The name of these layers in `layer_types` of configs.
LINEAR = "linear_attention"
#: Added to the sum of squares of a query or a key (transformers' l2norm).
_SMALL = 1e-6


@dataclass(frozen=True)
class InputProjections:
    """Projections of x.

    `mixed`: queries, keys and values, f32 [T, C]. `gate`: f32 [T, H V]. `beta`: f32 [T, H], before
    the sigmoid. `decay`: the input of the decay, in the shape that the subclass uses.
    """

    mixed: ir.Value
    gate: ir.Value
    beta: ir.Value
    decay: ir.Value


@dataclass(frozen=True, kw_only=True)
class LinearAttention(ABC):
    """Linear attention with `key_heads` (G) heads of queries and keys, `value_heads` (H) of values.

    H is a multiple of G. `key_depth` and `value_depth`: the head sizes K and V. `width`: number W
    of tokens that the convolution reads. `epsilon`: that of the norm after the delta rule.
    `convolved`: the activation after the convolution.
    """

    hidden: int
    key_heads: int
    value_heads: int
    key_depth: int
    value_depth: int
    width: int
    epsilon: float
    convolved: Plain = swish

    #: Names in checkpoints of the norm after the delta rule, and of the last projection.
    norm_name: ClassVar[str]
    output_name: ClassVar[str]
    #: Fields of configs: the number of key heads, of value heads, and the size of a value head.
    key_heads_field: ClassVar[str]
    heads_field: ClassVar[str]
    depth_field: ClassVar[str]

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """The shapes of a layer's states, f32, by name."""
        sizes = (self.value_heads, self.key_depth, self.value_depth)
        return {"convolution": (self.width - 1, sum(self.widths)), "delta_rule": sizes}

    @property
    def widths(self) -> tuple[int, int, int]:
        """Numbers of columns of all queries, of all keys and of all values."""
        keys = self.key_heads * self.key_depth
        return keys, keys, self.value_heads * self.value_depth

    @property
    def columns(self) -> Dim:
        """The dimension C."""
        return "columns of queries, keys and values", sum(self.widths)

    @property
    def heads(self) -> Dim:
        """The dimension H."""
        return self.heads_field, self.value_heads

    @property
    def values(self) -> Dim:
        """The dimension H V."""
        return f"{self.heads_field} * {self.depth_field}", self.widths[2]

    def parameters(self, name: str, norm: Norm, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`. `norm` is unused: it has its own norm."""
        yield from self.inputs(name)
        width = ("linear_conv_kernel_dim", self.width)
        rows = tuple(
            CheckpointRows(tensor=tensor, dims=(columns, ("one", 1), width))
            for tensor, columns in self.convolutions(name)
        )
        yield Parameter(
            key=f"{name}.conv1d.weight",
            shape=self._kernel,
            rows=rows,
            split="rows",
            sections=self.widths,
        )
        depth = (self.depth_field, self.value_depth)
        yield from self._norm.parameters(f"{name}.{self.norm_name}", depth)
        hidden, output = ("hidden_size", self.hidden), f"{name}.{self.output_name}.weight"
        yield matrix(output, hidden, self.values, split="columns")

    def share(self, devices: int) -> Self:
        """Return each device's share: some key heads with their value heads and states.

        Raises CheckpointError where the heads do not divide.
        """
        keys = divided(devices, self.key_heads_field, self.key_heads)
        values = divided(devices, self.heads_field, self.value_heads)
        return replace(self, key_heads=keys, value_heads=values)

    def build(
        self, scope: Scope, x: ir.Value, name: str, state: StepValues, memory: SequenceMemory
    ) -> Steps:
        """x [T, hidden] -> [T, hidden]; the states of the sequences are updated in the pools."""
        projected = self.projected(scope, x, name)
        weights = scope.weights
        assert state.places is not None
        with ir.Location.name(name):
            layer = constant(memory.layer, ir.IndexType.get())
            places = (layer, state.rows.runs, state.places)
            memory.layer += 1
            kernel = weights.load(f"{name}.conv1d.weight", *self._kernel)
            convolved, memory.states[0] = short_convolution(
                projected.mixed, kernel, States(memory.states[0], *places)
            )
            q, k, v = (
                _heads(part, count, self.convolved)
                for part, count in zip(
                    parts_of(convolved, self.widths),
                    (self.key_heads, self.key_heads, self.value_heads),
                    strict=True,
                )
            )
            read, memory.states[1] = delta_rule(
                _of_length(q, self.key_depth**-0.5),
                _of_length(k, 1.0),
                v,
                self.decay(scope, projected.decay, name),
                generic([(projected.beta, "m h")], "m h", f32(), sigmoid),
                States(memory.states[1], *places),
            )
            normed = self._norm.build(weights, read, f"{name}.{self.norm_name}")
            gate = expand(projected.gate, [[0], [1, 2]], shape_of(normed))
            loops = "m h k"
            gated = generic(
                [(normed, loops), (gate, loops)],
                loops,
                f32(),
                lambda a, z: arith.mulf(a, self.activation(z)),
            )
            output = f"{name}.{self.output_name}"
            prepared = weights.prepare(collapse(gated, [[0], [1, 2]]), f"{output}.weight")
        shape = (self.hidden, self.widths[2])
        return (yield weights.linear(prepared, output, f"{output}.weight", shape))

    @abstractmethod
    def inputs(self, name: str) -> Iterator[Parameter]:
        """Yield the parameters of the projections of x, and of the decay."""

    @abstractmethod
    def convolutions(self, name: str) -> Iterator[tuple[str, Dim]]:
        """Yield the tensors of the convolution's weights, and the columns of each."""

    @abstractmethod
    def projected(self, scope: Scope, x: ir.Value, name: str) -> InputProjections:
        """Project x [T, hidden]."""

    @abstractmethod
    def decay(self, scope: Scope, value: ir.Value, name: str) -> ir.Value:
        """Build the decay, the factor of the old state; see `dialects.recurrence.delta_rule`."""

    @abstractmethod
    def activation(self, gate: ir.Value) -> ir.Value:
        """Return the factor of the normalized result, for the gate as an f32 scalar."""

    @property
    def _kernel(self) -> tuple[int, int]:
        """The shape of the weights of the convolution."""
        return sum(self.widths), self.width

    @property
    def _norm(self) -> Norm:
        return Norm(epsilon=self.epsilon)


def decay_of(x: ir.Value, shift: ir.Value, rate: ir.Value) -> ir.Value:
    """exp(-exp(rate) softplus(x + shift)) of scalars: the decay of a state."""
    soft = softplus(arith.addf(x, to_f32(shift)))
    return math.exp(arith.negf(arith.mulf(math.exp(to_f32(rate)), soft)))


def softplus(x: ir.Value) -> ir.Value:
    """log(1 + exp(x)) of an f32 scalar, in a form that does not overflow."""
    small = math.log1p(math.exp(arith.negf(math.absf(x))))
    return arith.addf(arith.maximumf(x, constant(0.0, f32())), small)


def _heads(x: ir.Value, count: int, activation: Plain) -> ir.Value:
    """activation(x) of x [T, N], reshaped to heads [T, count, N / count]."""
    rows, width = shape_of(x)
    x = generic([(x, "m n")], "m n", f32(), activation)
    return expand(x, [[0], [1, 2]], [rows, count, width // count])


def _of_length(x: ir.Value, length: float) -> ir.Value:
    """Scale every row of x [T, G, K] to the length `length`."""
    squares = generic(
        [(x, "m g k")], "m g", f32(), lambda a, total: arith.addf(total, arith.mulf(a, a))
    )

    def scaled(a: ir.Value, total: ir.Value) -> ir.Value:
        inverse = math.rsqrt(arith.addf(total, constant(_SMALL, f32())))
        value = arith.mulf(a, inverse)
        return value if length == 1.0 else arith.mulf(value, constant(length, f32()))

    return generic([(x, "m g k"), (squares, "m g")], "m g k", f32(), scaled)
