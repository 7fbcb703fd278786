"""Linear attention by a delta rule with decay, after a short convolution: what its kinds share.

    q, k, v  = silu(convolution(projections of x)); q and k of each head have length one,
               q times K^-1/2
    o        = delta rule of q, k, v, a decay and sigmoid(b)
    result   = projection(norm(o) gate)

A kind (gated_delta_net.py, kimi_delta_attention.py) has its names in checkpoints, its projections,
what its decay is made of, and the activation of its gate.

What a sequence keeps does not grow with it: the last rows that the convolution sees, f32
[L, W - 1, C], and the matrices of the delta rule, f32 [L, H, K, V], of L layers. They lie in pools
of those of all sequences, which dialects/recurrence.py describes; a row of a call is read after
those of its sequence alone, in their order, so that its bits depend on nothing else.

Letters: T rows of this call, G heads of queries and keys, H of values, K and V the sizes of their
heads, C columns of all of them, W the width of the convolution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.compiler.models.blocks.devices import refuse_split
from mxc.compiler.models.blocks.gates import sigmoid
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import Dim, FormatOf, Parameter, Rows, matrix
from mxc.compiler.models.blocks.primitives import collapse, expand, f32, parts_of, to_f32
from mxc.compiler.models.blocks.scope import Memory, Scope, State
from mxc.dialects.generic import constant, generic, shape_of
from mxc.dialects.recurrence import States, delta_rule, short_convolution

#: Layers of it, in `layer_types` of configs.
LINEAR = "linear_attention"
#: Beside the sum of squares of a query or a key (transformers' l2norm).
_SMALL = 1e-6


@dataclass(frozen=True)
class Projected:
    """What the rule reads of x: `mixed`, queries, keys and values f32 [T, C]; `gate` f32 [T, H V];
    `beta` f32 [T, H], before the sigmoid; `decay`, what it is made of, as the kind has it."""

    mixed: ir.Value
    gate: ir.Value
    beta: ir.Value
    decay: ir.Value


@dataclass(frozen=True, kw_only=True)
class LinearAttention(ABC):
    """`key_heads` heads of queries and keys, G, and `value_heads` of values, H, a multiple of G.

    `key_depth` and `value_depth` are the sizes of their heads, K and V; `width` is W, how many
    tokens the convolution sees; `epsilon` is that of the norm after.
    """

    hidden: int
    key_heads: int
    value_heads: int
    key_depth: int
    value_depth: int
    width: int
    epsilon: float

    #: Names in checkpoints: of the norm after the rule, and of the last projection.
    norm_name: ClassVar[str]
    output_name: ClassVar[str]
    #: Fields of configs: heads of values, and their size.
    heads_field: ClassVar[str]
    depth_field: ClassVar[str]

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what is kept of each layer, f32, by what it is."""
        sizes = (self.value_heads, self.key_depth, self.value_depth)
        return {"convolution": (self.width - 1, sum(self.widths)), "delta_rule": sizes}

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of all queries, keys and values."""
        keys = self.key_heads * self.key_depth
        return keys, keys, self.value_heads * self.value_depth

    @property
    def columns(self) -> Dim:
        """C."""
        return "columns of queries, keys and values", sum(self.widths)

    @property
    def heads(self) -> Dim:
        """H."""
        return self.heads_field, self.value_heads

    @property
    def values(self) -> Dim:
        """H V."""
        return f"{self.heads_field} * {self.depth_field}", self.widths[2]

    def parameters(self, name: str, norm: Norm, format_of: FormatOf) -> Iterator[Parameter]:
        """What it reads, by names that begin with `name`; the norm after is not the model's."""
        yield from self.inputs(name)
        width = ("linear_conv_kernel_dim", self.width)
        rows = tuple(
            Rows(tensor=tensor, dims=(columns, ("one", 1), width))
            for tensor, columns in self.convolutions(name)
        )
        yield Parameter(key=f"{name}.conv1d.weight", shape=self._kernel, rows=rows)
        depth = (self.depth_field, self.value_depth)
        yield from self._norm.parameters(f"{name}.{self.norm_name}", depth)
        yield matrix(f"{name}.{self.output_name}.weight", ("hidden_size", self.hidden), self.values)

    def share(self, devices: int) -> NoReturn:
        """Raises CheckpointError: the states of a sequence are on one device."""
        refuse_split(devices, "linear attention")

    def build(self, scope: Scope, x: ir.Value, name: str, state: State, memory: Memory) -> ir.Value:
        """x [T, H] -> [T, H]; the pools become those with the states after the rows."""
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
                _heads(part, count)
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
        return weights.linear(prepared, output, f"{output}.weight", (self.hidden, self.widths[2]))

    @abstractmethod
    def inputs(self, name: str) -> Iterator[Parameter]:
        """The projections of x, and what its decay reads beside."""

    @abstractmethod
    def convolutions(self, name: str) -> Iterator[tuple[str, Dim]]:
        """The tensors with the weights of the convolution, and the columns of each."""

    @abstractmethod
    def projected(self, scope: Scope, x: ir.Value, name: str) -> Projected:
        """Products of x [T, hidden]."""

    @abstractmethod
    def decay(self, scope: Scope, value: ir.Value, name: str) -> ir.Value:
        """What is left of the state: see `dialects.recurrence.delta_rule`."""

    @abstractmethod
    def activation(self, gate: ir.Value) -> ir.Value:
        """What the norm of the result is multiplied with, of an f32 scalar."""

    @property
    def _kernel(self) -> tuple[int, int]:
        """The shape of the weights of the convolution."""
        return sum(self.widths), self.width

    @property
    def _norm(self) -> Norm:
        return Norm(epsilon=self.epsilon)


def silu(x: ir.Value) -> ir.Value:
    """x * sigmoid(x) of an f32 scalar."""
    return arith.mulf(x, sigmoid(x))


def left(x: ir.Value, shift: ir.Value, rate: ir.Value) -> ir.Value:
    """exp(-exp(rate) softplus(x + shift)) of scalars: what is left of a state."""
    x = arith.addf(x, to_f32(shift))
    zero = constant(0.0, f32())
    # log(1 + exp(x)), where neither end overflows.
    small = math.log1p(math.exp(arith.negf(math.absf(x))))
    soft = arith.addf(arith.maximumf(x, zero), small)
    return math.exp(arith.negf(arith.mulf(math.exp(to_f32(rate)), soft)))


def _heads(x: ir.Value, count: int) -> ir.Value:
    """silu of x [T, N] by heads, [T, count, N / count]."""
    rows, width = shape_of(x)
    x = generic([(x, "m n")], "m n", f32(), silu)
    return expand(x, [[0], [1, 2]], [rows, count, width // count])


def _of_length(x: ir.Value, length: float) -> ir.Value:
    """Every row of x [T, G, K] times `length` over its own length."""
    squares = generic(
        [(x, "m g k")], "m g", f32(), lambda a, total: arith.addf(total, arith.mulf(a, a))
    )

    def scaled(a: ir.Value, total: ir.Value) -> ir.Value:
        inverse = math.rsqrt(arith.addf(total, constant(_SMALL, f32())))
        value = arith.mulf(a, inverse)
        return value if length == 1.0 else arith.mulf(value, constant(length, f32()))

    return generic([(x, "m g k"), (squares, "m g")], "m g k", f32(), scaled)
