"""Kimi Delta Attention (KDA): linear attention with a decay per channel of a key.

    q, k, v, b = projections of x
    f, g       = f_b(f_a(x)), g_b(g_a(x)), low-rank, with the head size as rank
    decay      = exp(-exp(A_log) softplus(f + dt_bias))       [T, H, K], with A_log [H]
    gate       = sigmoid(g)

In Kimi K3 g is one projection of x, and the logarithm of the decay has a lower bound:

    g          = g_proj(x)
    decay      = exp(bound sigmoid(exp(A_log) (f + dt_bias)))

The rest is in linear_attention.py. Sources: Kimi Team, "Kimi Linear" (arXiv 2510.26692),
transformers' models/kimi_linear (5.23), the code in moonshotai/Kimi-K3, and
flash-linear-attention's ops/kda/gate.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.compiler.models.blocks.gates import sigmoid
from mxc.compiler.models.blocks.linear_attention import InputProjections, LinearAttention, decay_of
from mxc.compiler.models.blocks.mlp import linears
from mxc.compiler.models.blocks.parameters import CheckpointRows, Dim, Parameter, matrix
from mxc.compiler.models.blocks.primitives import expand, f32
from mxc.compiler.models.blocks.scope import Scope
from mxc.dialects.generic import constant, generic, shape_of, to_f32


@dataclass(frozen=True, kw_only=True)
class KimiDeltaAttention(LinearAttention):
    """The layer of KDA. Keys and values have the same number of heads and the same head size.

    `bound`: the lower bound of the logarithm of the decay; None for the unbounded decay.
    `whole_gate`: g is one projection. `flat`: A_log is a vector in checkpoints, which may have
    zeros after its H entries, instead of [1, 1, H, 1].
    """

    bound: float | None = None
    whole_gate: bool = False
    flat: bool = False

    norm_name, output_name = "o_norm", "o_proj"
    key_heads_field = heads_field = "linear_num_heads"
    depth_field = "linear_head_dim"

    def inputs(self, name: str) -> Iterator[Parameter]:
        """Yield the projections, with queries, keys and values as one weight, then the decay's."""
        hidden = ("hidden_size", self.hidden)
        rank = (self.depth_field, self.value_depth)
        mixed = [f"{name}.{part}_proj.weight" for part in "qkv"]
        yield matrix(f"{name}.qkv_proj.weight", self.values, hidden, mixed, split="rows")
        beta = f"{name}.b_proj.weight"
        yield matrix(beta, self.heads, hidden, quantizable=False, split="rows")
        # The decay is an exponential of f, so its projections are not quantized.
        low_rank = {"f": False} if self.whole_gate else {"f": False, "g": True}
        if self.whole_gate:
            yield matrix(f"{name}.g_proj.weight", self.values, hidden, split="rows")
        for part, quantizable in low_rank.items():
            low, high = (f"{name}.{part}_{key}_proj.weight" for key in "ab")
            yield matrix(low, rank, hidden, quantizable=quantizable)
            yield matrix(high, self.values, rank, quantizable=quantizable, split="rows")
        shift, rate = f"{name}.dt_bias", f"{name}.A_log"
        of_heads = (self.value_heads, self.value_depth)
        stored = CheckpointRows(tensor=shift, dims=(self.values,))
        yield Parameter(key=shift, shape=of_heads, rows=(stored,), split="rows")
        one = ("one", 1)
        dims = (self.heads,) if self.flat else (one, one, self.heads, one)
        stored = CheckpointRows(tensor=rate, dims=dims, padded=self.flat)
        yield Parameter(key=rate, shape=(self.value_heads,), rows=(stored,), split="rows")

    def convolutions(self, name: str) -> Iterator[tuple[str, Dim]]:
        """Yield the convolution tensors of queries, keys and values."""
        for part in "qkv":
            yield f"{name}.{part}_conv1d.weight", self.values

    def projected(self, scope: Scope, x: ir.Value, name: str) -> InputProjections:
        """Project x; `decay` of the result is f, f32 [T, H K]."""
        weights, rank, width = scope.weights, self.value_depth, self.widths[2]
        rows = {"qkv": 3 * width, "b": self.value_heads, "f_a": rank}
        rows |= {"g": width} if self.whole_gate else {"g_a": rank}
        names = {part: f"{name}.{part}_proj" for part in rows}
        with ir.Location.name(name):
            prepared = weights.prepare(x, *(f"{part}.weight" for part in names.values()))
        mixed, beta, low, gate = (
            weights.linear(prepared, names[part], f"{names[part]}.weight", (size, self.hidden))
            for part, size in rows.items()
        )
        (decay,) = linears(scope, low, [f"{name}.f_b_proj"], (width, rank))
        if not self.whole_gate:
            (gate,) = linears(scope, gate, [f"{name}.g_b_proj"], (width, rank))
        return InputProjections(mixed, gate, beta, decay)

    def decay(self, scope: Scope, value: ir.Value, name: str) -> ir.Value:
        """Build the decay of each channel from f: f32 [T, H, K]."""
        heads, depth = self.value_heads, self.value_depth
        shift = scope.weights.load(f"{name}.dt_bias", heads, depth)
        rate = scope.weights.load(f"{name}.A_log", heads)
        value = expand(value, [[0], [1, 2]], [shape_of(value)[0], heads, depth])
        loops = [(value, "m h k"), (shift, "h k"), (rate, "h")]
        if self.bound is None:
            return generic(loops, "m h k", f32(), decay_of)
        bound = self.bound

        def bounded(x: ir.Value, shift: ir.Value, rate: ir.Value) -> ir.Value:
            steep = arith.mulf(math.exp(to_f32(rate)), arith.addf(x, to_f32(shift)))
            return math.exp(arith.mulf(constant(bound, f32()), sigmoid(steep)))

        return generic(loops, "m h k", f32(), bounded)

    def activation(self, gate: ir.Value) -> ir.Value:
        """sigmoid(gate)."""
        return sigmoid(gate)
