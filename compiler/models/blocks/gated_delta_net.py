"""Linear attention by the gated delta rule, behind a short convolution (Gated DeltaNet).

    qkv, z, b, a = projections of x
    q, k, v      = silu(convolution(qkv)); q and k of each head have length one, q times K^-1/2
    decay        = exp(-exp(A_log) softplus(a + dt_bias))
    o            = delta rule of q, k, v, decay and sigmoid(b)
    result       = out_proj(norm(o) silu(z))

What a sequence keeps does not grow with it: the last rows that the convolution sees, f32
[L, W - 1, C], and the matrices of the delta rule, f32 [L, H, K, V], of L layers. They lie in pools
of those of all sequences, which dialects/recurrence.py describes; a row of a call is read after
those of its sequence alone, in their order, so that its bits depend on nothing else.

Source: Yang et al., "Gated Delta Networks" (arXiv 2412.06464), and transformers' models/qwen3_next
and models/qwen3_5 (5.23). Letters: T rows of this call, G heads of queries and keys, H of values, K
and V the sizes of their heads, C columns of all of them, W the width of the convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.compiler.models.blocks.devices import refuse_split
from mxc.compiler.models.blocks.gates import sigmoid
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import Dim, Parameter, Rows, matrix, vector
from mxc.compiler.models.blocks.primitives import collapse, expand, f32, parts_of, to_f32
from mxc.compiler.models.blocks.scope import Memory, Scope, State
from mxc.dialects.generic import constant, generic, shape_of
from mxc.dialects.recurrence import States, delta_rule, short_convolution

#: Beside the sum of squares of a query or a key (transformers' l2norm).
_SMALL = 1e-6


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet:
    """`key_heads` heads of queries and keys, G, and `value_heads` of values, H, a multiple of G.

    `key_depth` and `value_depth` are the sizes of their heads, K and V; `width` is W, how many
    tokens the convolution sees; `epsilon` is that of the norm behind. `fused`: the checkpoint has
    in_proj_qkvz and in_proj_ba, whose rows lie by heads of keys (Qwen3-Next); the program has each
    projection as a weight of its own all the same.
    """

    hidden: int
    key_heads: int
    value_heads: int
    key_depth: int
    value_depth: int
    width: int
    epsilon: float
    fused: bool = False

    def share(self, devices: int) -> NoReturn:
        """Raises CheckpointError: the states of a sequence are on one device."""
        refuse_split(devices, "linear attention (gated delta nets)")

    @property
    def group(self) -> int:
        """Heads of values for each of keys."""
        return self.value_heads // self.key_heads

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what is kept of each layer, f32, by what it is."""
        sizes = (self.value_heads, self.key_depth, self.value_depth)
        return {"convolution": (self.width - 1, sum(self._widths)), "delta_rule": sizes}

    @property
    def _widths(self) -> tuple[int, int, int]:
        """Columns of all queries, keys and values."""
        keys = self.key_heads * self.key_depth
        return keys, keys, self.value_heads * self.value_depth

    def parameters(self, name: str, norm: Norm) -> Iterator[Parameter]:
        """What it reads, by names that begin with `name`; the norm behind is not the model's."""
        hidden, heads = ("hidden_size", self.hidden), ("linear_num_value_heads", self.value_heads)
        for part, rows, quantisable in self._projections:
            key = f"{name}.{part}.weight"
            found = self._fused_rows(name, part) if self.fused else None
            yield matrix(key, rows, hidden, found or (), quantisable=quantisable)
        mixed = ("columns of queries, keys and values", sum(self._widths))
        key = f"{name}.conv1d.weight"
        dims = (mixed, ("one", 1), ("linear_conv_kernel_dim", self.width))
        shape = (mixed[1], self.width)
        yield Parameter(key=key, shape=shape, rows=(Rows(tensor=key, dims=dims),))
        yield vector(f"{name}.dt_bias", heads)
        yield vector(f"{name}.A_log", heads)
        depth = ("linear_value_head_dim", self.value_depth)
        yield from self._norm.parameters(f"{name}.norm", depth)
        values = ("linear_num_value_heads * linear_value_head_dim", self._widths[2])
        yield matrix(f"{name}.out_proj.weight", hidden, values)

    def build(self, scope: Scope, x: ir.Value, name: str, state: State, memory: Memory) -> ir.Value:
        """x [T, H] -> [T, H]; the pools become those with the states behind the rows."""
        mixed, gate, rate, decay = self._projected(scope, x, name)
        weights = scope.weights
        assert state.places is not None
        with ir.Location.name(name):
            layer = constant(memory.layer, ir.IndexType.get())
            places = (layer, state.rows.runs, state.places)
            memory.layer += 1
            kernel = weights.load(f"{name}.conv1d.weight", sum(self._widths), self.width)
            convolved, memory.states[0] = short_convolution(
                mixed, kernel, States(memory.states[0], *places)
            )
            q, k, v = (
                self._heads(part, count)
                for part, count in zip(
                    parts_of(convolved, self._widths),
                    (self.key_heads, self.key_heads, self.value_heads),
                    strict=True,
                )
            )
            read, memory.states[1] = delta_rule(
                _of_length(q, self.key_depth**-0.5),
                _of_length(k, 1.0),
                v,
                self._decay(scope, decay, name),
                generic([(rate, "m h")], "m h", f32(), sigmoid),
                States(memory.states[1], *places),
            )
            normed = self._norm.build(weights, read, f"{name}.norm")
            gate = expand(gate, [[0], [1, 2]], shape_of(normed))
            loops = "m h k"
            gated = generic(
                [(normed, loops), (gate, loops)], loops, f32(), lambda a, z: arith.mulf(a, _silu(z))
            )
            output = f"{name}.out_proj"
            prepared = weights.prepare(collapse(gated, [[0], [1, 2]]), f"{output}.weight")
        shape = (self.hidden, self._widths[2])
        return weights.linear(prepared, output, f"{output}.weight", shape)

    @property
    def _norm(self) -> Norm:
        return Norm(epsilon=self.epsilon)

    @property
    def _projections(self) -> tuple[tuple[str, Dim, bool], ...]:
        """Name and rows of each projection, and whether it may be quantised: rates may not."""
        mixed, values = sum(self._widths), self._widths[2]
        heads = ("linear_num_value_heads", self.value_heads)
        return (
            ("in_proj_qkv", ("columns of queries, keys and values", mixed), True),
            ("in_proj_z", (f"{heads[0]} * linear_value_head_dim", values), True),
            ("in_proj_b", heads, False),
            ("in_proj_a", heads, False),
        )

    def _fused_rows(self, name: str, part: str) -> tuple[Rows, ...]:
        """The rows of a projection in the tensor that has those of several, head by head."""
        values = self.group * self.value_depth
        parts = {"q": self.key_depth, "k": self.key_depth, "v": values, "z": values}
        tensor = "in_proj_qkvz"
        if part in ("in_proj_b", "in_proj_a"):
            parts, tensor = {"b": self.group, "a": self.group}, "in_proj_ba"
        each = sum(parts.values())
        dims = (
            (
                f"{self.key_heads} heads of {' + '.join(map(str, parts.values()))}",
                each * self.key_heads,
            ),
            ("hidden_size", self.hidden),
        )
        starts = {letter: sum(list(parts.values())[:n]) for n, letter in enumerate(parts)}
        return tuple(
            Rows(
                tensor=f"{name}.{tensor}.weight",
                dims=dims,
                taken=(head * each + starts[letter], parts[letter]),
            )
            for letter in part.removeprefix("in_proj_")
            for head in range(self.key_heads)
        )

    def _projected(self, scope: Scope, x: ir.Value, name: str) -> tuple[ir.Value, ...]:
        """Queries, keys and values [T, C], gates [T, H V], b and a [T, H] of x [T, hidden]."""
        weights = scope.weights
        rows = {f"{name}.{part}": size for part, (_, size), _ in self._projections}
        with ir.Location.name(name):
            prepared = weights.prepare(x, *(f"{part}.weight" for part in rows))
        return tuple(
            weights.linear(prepared, part, f"{part}.weight", (size, self.hidden))
            for part, size in rows.items()
        )

    def _decay(self, scope: Scope, a: ir.Value, name: str) -> ir.Value:
        """What is left of a state, [T, H], of a."""
        shift, rate = (
            scope.weights.load(f"{name}.{part}", self.value_heads) for part in ("dt_bias", "A_log")
        )

        def decay(x: ir.Value, b: ir.Value, log: ir.Value) -> ir.Value:
            x = arith.addf(x, to_f32(b))
            zero = constant(0.0, f32())
            # log(1 + exp(x)), where neither end overflows.
            small = math.log1p(math.exp(arith.negf(math.absf(x))))
            soft = arith.addf(arith.maximumf(x, zero), small)
            return math.exp(arith.negf(arith.mulf(math.exp(to_f32(log)), soft)))

        return generic([(a, "m h"), (shift, "h"), (rate, "h")], "m h", f32(), decay)

    def _heads(self, x: ir.Value, count: int) -> ir.Value:
        """silu of x [T, N] by heads, [T, count, N / count]."""
        rows, width = shape_of(x)
        x = generic([(x, "m n")], "m n", f32(), _silu)
        return expand(x, [[0], [1, 2]], [rows, count, width // count])


def _silu(x: ir.Value) -> ir.Value:
    return arith.mulf(x, sigmoid(x))


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
