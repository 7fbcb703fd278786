"""Multi-head latent attention (DeepSeek-V2): all heads share one compressed cache row per token.

    c, r   = columns of kv_a_proj(x)                    latent [T, C], rotary part [T, R]
    row    = norm(c) | rotated(r)                       the cache row of a token
    a, b   = each head of q_b_proj(norm(q_a_proj(x))), or of q_proj(x)
    query  = K a | rotated(b)                           K [C, N], V [E, C] of each head: kv_b_proj
    mixed  = attention of queries over rows; values are the first C elements of a row
    result = o_proj(V mixed), or o_proj(V mixed sigmoid(g_proj(x))) with a gate (Kimi K3)

The keys K' c and values V c of the heads are never computed, neither in decode nor in prefill: K is
absorbed into the queries, and V into the result. A chunk of T tokens over S earlier ones costs
T S (C + R + C) multiplications per head. Computing keys and values would cost S C (N + E), and
T S (N + R + E) after it, which is more up to about T = 170 for DeepSeek-V3.

kv_b_proj becomes two parameters. V is its rows of values as they are stored, in blocks or plain,
since the blocks are along C, the axis that its product sums over. The product with K sums over N:
the parameter's rows are columns of the checkpoint's tensor. Plain elements, and elements with
scales of square blocks, keep their format; elements in blocks along C are packed as plain numbers,
and a note says so.

Letters: T tokens, H heads, N, R and E sizes of a head (qk_nope_head_dim, qk_rope_head_dim,
v_head_dim), C kv_lora_rank. Source: transformers' models/deepseek_v3 (5.23); absorbed products:
DeepSeek-V2 (arXiv 2405.04434), 2.1.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.compiler.models.blocks import attention
from mxc.compiler.models.blocks.devices import Steps, divided
from mxc.compiler.models.blocks.gates import combined, sigmoid
from mxc.compiler.models.blocks.mlp import linears
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import (
    CheckpointRows,
    Dim,
    FormatOf,
    Parameter,
    matrix,
    vector,
)
from mxc.compiler.models.blocks.primitives import (
    collapse,
    concatenate,
    expand,
    f32,
    parts_of,
    rotate,
)
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.scope import Scope, SequenceMemory, StepValues
from mxc.compiler.models.blocks.self_attention import NO_SINKS, Temperature, no_sinks
from mxc.dialects.attention import attention as attend
from mxc.dialects.generic import generic, shape_of

#: The norms of q_a and kv_a, which have a fixed epsilon (transformers' DeepseekV3RMSNorm).
_INNER = Norm(epsilon=1e-6)


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Attention of `heads` heads over cache rows of `latent` + `rotated` elements.

    `plain`, `rotated` and `value` are N, R and E. `query_rank`: rank of the low-rank projection of
    queries; None for a single projection. `rope`: the rotary embedding; None for no rotation.
    `bias`: whether the first projections and o_proj have biases. `scale`: factor of scores.
    `temperature`: factor of queries by position (Mistral Small 4). `gated`: the sigmoid of a
    projection of x multiplies the result of each head.
    """

    hidden: int
    heads: int
    latent: int
    plain: int
    rotated: int
    value: int
    query_rank: int | None
    rope: Rope | None
    scale: float
    bias: bool = False
    temperature: Temperature | None = None
    gated: bool = False

    #: Every query sees all earlier tokens.
    window = None

    @property
    def row(self) -> attention.CacheRow:
        """The cache row of a token in a layer."""
        return attention.CacheRow(entries=1, heads=1, depth=self.latent + self.rotated)

    @property
    def rope_depth(self) -> int:
        """Elements of a head that the rotary embedding applies to."""
        return self.rotated

    def parameters(self, name: str, norm: Norm, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`. `norm` is unused, see _INNER."""
        hidden, latent = ("hidden_size", self.hidden), ("kv_lora_rank", self.latent)
        queries = "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)"
        asked = (queries, self.heads * (self.plain + self.rotated))
        row = ("kv_lora_rank + qk_rope_head_dim", self.latent + self.rotated)
        inputs: list[tuple[str, Dim]] = [("kv_a_proj_with_mqa", row)]
        if self.query_rank is None:
            yield matrix(f"{name}.q_proj.weight", asked, hidden, split="rows")
        else:
            rank = ("q_lora_rank", self.query_rank)
            inputs.append(("q_a_proj", rank))
            yield from _INNER.parameters(f"{name}.q_a_layernorm", rank)
            yield matrix(f"{name}.q_b_proj.weight", asked, rank, split="rows")
        for part, size in inputs:
            yield matrix(f"{name}.{part}.weight", size, hidden)
            if self.bias:
                yield vector(f"{name}.{part}.bias", size)
        yield from _INNER.parameters(f"{name}.kv_a_layernorm", latent)
        yield self._of_heads(name, "keys")
        yield self._of_heads(name, "values")
        values = ("num_attention_heads * v_head_dim", self.heads * self.value)
        if self.gated:
            yield matrix(f"{name}.g_proj.weight", values, hidden, split="rows")
        yield matrix(f"{name}.o_proj.weight", hidden, values, split="columns")
        if self.bias:
            yield vector(f"{name}.o_proj.bias", hidden, split="first")

    def share(self, devices: int) -> LatentAttention:
        """Return each device's share: some of the heads.

        The cache row of a token, which all heads share, is on every device. Raises CheckpointError
        where the heads do not divide.
        """
        return replace(self, heads=divided(devices, "num_attention_heads", self.heads))

    def _of_heads(self, name: str, part: str) -> Parameter:
        """Return kv_b_proj's part for keys, transposed [H, C, N], or for values [H, E, C]."""
        key, each = f"{name}.kv_b_proj", self.plain + self.value
        why = "num_attention_heads * (qk_nope_head_dim + v_head_dim)"
        dims = ((why, self.heads * each), ("kv_lora_rank", self.latent))
        first, count = (0, self.plain) if part == "keys" else (self.plain, self.value)
        return Parameter(
            key=f"{key}.{part}",
            shape=self._shape(part),
            rows=tuple(
                CheckpointRows(
                    tensor=f"{key}.weight", dims=dims, taken=(head * each + first, count)
                )
                for head in range(self.heads)
            ),
            matrix=True,
            quantizable=True,
            experts=True,
            turned=part == "keys",
            split="matrices",
        )

    def _shape(self, part: str) -> tuple[int, int, int]:
        if part == "keys":
            return self.heads, self.latent, self.plain
        return self.heads, self.value, self.latent

    def generated(self) -> dict[str, NDArray[np.float32]]:
        """Return the computed parameters by key."""
        return no_sinks(self.heads)

    def build(
        self,
        scope: Scope,
        x: ir.Value,
        name: str,
        state: StepValues,
        memory: SequenceMemory,
    ) -> Steps:
        """x [T, H] -> [T, H]; the cache rows of x are written to the pages."""
        tokens, weights = shape_of(x)[0], scope.weights
        asked, kept, *gates = self._projected(scope, x, name)
        with ir.Location.name(name):
            asked = expand(asked, [[0], [1, 2]], [tokens, self.heads, self.plain + self.rotated])
            plain, turned = parts_of(asked, (self.plain, self.rotated))
            seen = self._by_head(scope, plain, name, "keys")
            queries = concatenate(seen, self._rotated(turned, state))
            if self.temperature is not None:
                queries = self.temperature.times(queries, state.rows.positions)
            queries = expand(queries, [[0], [1, 2], [3]], [tokens, 1, *shape_of(queries)[1:]])
            latent, turned = parts_of(kept, (self.latent, self.rotated))
            latent = _INNER.build(weights, latent, f"{name}.kv_a_layernorm")
            latent, turned = (
                expand(each, [[0], [1, 2]], [tokens, 1, shape_of(each)[1]])
                for each in (latent, turned)
            )
            row = concatenate(latent, self._rotated(turned, state))
            cache = memory.caches[self.window, self.row]
            (entry,) = cache.write(self.row, [row])
            mixed = attend(
                queries,
                expand(
                    weights.load(f"{scope.prefix}{NO_SINKS}", self.heads), [[0, 1]], [1, self.heads]
                ),
                state.rows,
                cache.pages,
                (entry, entry),
                mixed=self.latent,
                reach=self.window,
                scale=self.scale,
                bits=scope.activations.bits,
            )
            mixed = collapse(mixed, [[0], [1, 2], [3]])
            values = collapse(self._by_head(scope, mixed, name, "values"), [[0], [1, 2]])
            for gate in gates:
                values = combined(gate, values, lambda g, v: arith.mulf(sigmoid(g), v))
        shape = (self.hidden, self.heads * self.value)
        (part,) = linears(scope, values, [f"{name}.o_proj"], shape)
        return (yield part)

    def _projected(self, scope: Scope, x: ir.Value, name: str) -> list[ir.Value]:
        """Project x [T, H] to queries of all heads [T, H (N + R)] and cache rows [T, C + R], and
        to the gate of all heads [T, H E] if there is one."""
        width, row = self.heads * (self.plain + self.rotated), self.latent + self.rotated
        sizes = {"q_proj": width} if self.query_rank is None else {"q_a_proj": self.query_rank}
        sizes["kv_a_proj_with_mqa"] = row
        if self.gated:
            sizes["g_proj"] = self.heads * self.value
        weights = scope.weights
        with ir.Location.name(name):
            prepared = weights.prepare(x, *(f"{name}.{part}.weight" for part in sizes))
        asked, *others = (
            weights.linear(
                prepared,
                f"{name}.{part}",
                f"{name}.{part}.weight",
                (size, self.hidden),
                weights.own(f"{name}.{part}.bias"),
            )
            for part, size in sizes.items()
        )
        if self.query_rank is not None:
            asked = _INNER.build(weights, asked, f"{name}.q_a_layernorm")
            (asked,) = linears(scope, asked, [f"{name}.q_b_proj"], (width, self.query_rank))
        return [asked, *others]

    def _by_head(self, scope: Scope, x: ir.Value, name: str, part: str) -> ir.Value:
        """x [T, H, K] times the weight of each head [N, K]: [T, H, N]."""
        key = f"{name}.kv_b_proj.{part}"
        by_head = generic([(x, "m h k")], "h m k", f32(), lambda e: e)
        y = scope.weights.batched(by_head, key, key, self._shape(part))
        return generic([(y, "h m n")], "m h n", f32(), lambda e: e)

    def _rotated(self, x: ir.Value, state: StepValues) -> ir.Value:
        """Rotate x [T, heads, R], if there is a rotary embedding."""
        if self.rope is None:
            return x
        cos, sin = state.rotations[self.rope, self.rotated]
        heads, whole = shape_of(x)[1], collapse(x, [[0], [1, 2]])
        return rotate(whole, heads, cos, sin, interleaved=self.rope.interleaved)
