"""Self-attention of a decoder: grouped queries, rotary positions, a cache, windows, sinks.

Letters as in attention.py; T rows of this call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, math
from numpy.typing import NDArray

from mxc.compiler.models.blocks import attention
from mxc.compiler.models.blocks.devices import divided, refuse_split
from mxc.compiler.models.blocks.gates import sigmoid
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import Parameter, matrix, vector
from mxc.compiler.models.blocks.primitives import (
    collapse,
    expand,
    f32,
    of_length_one,
    parts_of,
    rotate,
    slice_of,
)
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.scope import Memory, Scope, State
from mxc.dialects.attention import MASKED, Reach
from mxc.dialects.attention import attention as attend
from mxc.dialects.generic import constant, generic, shape_of

#: The projections of the input, where they are tensors of their own.
_INPUTS = ("q_proj", "k_proj", "v_proj")
#: The sinks of attention without any, f32 [V, G]: beside any score, their weight is zero.
NO_SINKS = "attention.no_sinks"


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """What queries at position p are multiplied with: 1 + factor * log(1 + (p + first) // step)."""

    step: int
    factor: float
    first: int = 1

    def at(self, position: ir.Value) -> ir.Value:
        """f32, of an index."""
        one, first, step = (
            constant(value, ir.IndexType.get()) for value in (1, self.first, self.step)
        )
        count = arith.addi(one, arith.divui(arith.addi(position, first), step))
        number = arith.uitofp(f32(), arith.index_cast(ir.IntegerType.get_signless(32), count))
        grown = arith.mulf(constant(self.factor, f32()), math.log(number))
        return arith.addf(constant(1.0, f32()), grown)


@dataclass(frozen=True, kw_only=True)
class SelfAttention:
    """Attention of `heads` query heads over `shared` key/value heads of size `depth`.

    `rope`: the rotary positions of queries and keys; None: they are not rotated (NoPE).
    `input_bias`: of the projections to queries, keys and values, `output_bias`: of that behind.
    `fused`: those three projections are one tensor, qkv_proj. `qk_norm`: queries and keys are
    normalized before they are rotated, each "head" by itself or "all" heads together; or behind, by
    "length" alone (Llama 4), with `epsilon`. `sinks`: one
    more logit a head. `window`: the last keys that a query sees, itself included, or
    those of its chunk; None: all.
    `scale`: what scores are multiplied with, None for depth^-1/2; `cap`: scores become
    cap * tanh(score / cap). `temperature`: what queries are multiplied with. `gated`: what
    attention gives of each head is multiplied with the sigmoid of a gate, whose rows stand behind
    those of the head's queries in q_proj (Qwen3-Next).
    """

    hidden: int
    heads: int
    shared: int
    depth: int
    rope: Rope | None
    input_bias: bool = False
    output_bias: bool = False
    fused: bool = False
    qk_norm: Literal["head", "all", "length"] | None = None
    sinks: bool = False
    window: Reach = None
    scale: float | None = None
    cap: float | None = None
    gated: bool = False
    epsilon: float = 0.0
    temperature: Temperature | None = None

    @property
    def row(self) -> attention.CacheRow:
        """What the cache keeps of a token in a layer: a key and a value a head."""
        return attention.CacheRow(entries=2, heads=self.shared, depth=self.depth)

    @property
    def rope_depth(self) -> int:
        """Elements of a head, of which rotary positions are for a part."""
        return self.depth

    def parameters(self, name: str, norm: Norm) -> Iterator[Parameter]:
        """What it reads, by names that begin with `name`; `norm` is the model's."""
        hidden = ("hidden_size", self.hidden)
        queries = ("num_attention_heads * head_dim", self.heads * self.depth)
        keys = ("num_key_value_heads * head_dim", self.shared * self.depth)
        asked = queries if not self.gated else (f"2 * {queries[0]}", 2 * queries[1])
        inputs = [("q_proj", asked), ("k_proj", keys), ("v_proj", keys)]
        sections: tuple[int, ...] = ()
        if self.fused:
            sections = tuple(size for _, (_, size) in inputs)
            why = "(num_attention_heads + 2 * num_key_value_heads) * head_dim"
            inputs = [("qkv_proj", (why, sum(sections)))]
        for part, rows in inputs:
            yield matrix(f"{name}.{part}.weight", rows, hidden, split="rows", sections=sections)
            if self.input_bias:
                yield vector(f"{name}.{part}.bias", rows, split="rows", sections=sections)
        yield matrix(f"{name}.o_proj.weight", hidden, queries, split="columns")
        if self.output_bias:
            yield vector(f"{name}.o_proj.bias", hidden, split="first")
        if self.qk_norm in ("head", "all"):
            head = ("head_dim", self.depth)
            sizes = {"q_norm": queries, "k_norm": keys}
            for part, whole in sizes.items():
                size = head if self.qk_norm == "head" else whole
                yield from norm.parameters(f"{name}.{part}", size)
        if self.sinks:
            yield vector(f"{name}.sinks", ("num_attention_heads", self.heads), split="rows")

    def share(self, devices: int) -> SelfAttention:
        """What each of several devices computes: some key/value heads and their queries.

        Raises CheckpointError where there are no such heads.
        """
        if self.qk_norm == "all":
            refuse_split(devices, "queries and keys that are normalized over all heads (QK norms)")
        heads = divided(devices, "num_attention_heads", self.heads)
        shared = divided(devices, "num_key_value_heads", self.shared)
        return replace(self, heads=heads, shared=shared)

    def generated(self) -> dict[str, NDArray[np.float32]]:
        """Parameters that are computed, not read."""
        shape = (self.shared, self.heads // self.shared)
        return {} if self.sinks else {NO_SINKS: np.full(shape, MASKED, np.float32)}

    def build(
        self,
        scope: Scope,
        x: ir.Value,
        name: str,
        state: State,
        memory: Memory,
    ) -> ir.Value:
        """x [T, H] -> [T, H]; the pages become those with the new keys and values."""
        heads, shared, depth = self.heads, self.shared, self.depth
        weights = scope.weights
        q, k, v = self._projected(scope, x, name)
        gate = None
        if self.gated:
            q, gate = self._queries_and_gate(q, name)
        if self.qk_norm in ("head", "all"):
            q = self._normalized(scope, q, heads, f"{name}.q_norm")
            k = self._normalized(scope, k, shared, f"{name}.k_norm")
        output = f"{name}.o_proj"
        with ir.Location.name(name):
            tokens = shape_of(q)[0]
            q, k = (self._rotated(each, n, state) for each, n in ((q, heads), (k, shared)))
            if self.qk_norm == "length":
                q, k = (of_length_one(each, self.epsilon) for each in (q, k))
            if self.temperature is not None:
                q = self._warmed(q, state)
            v = expand(v, [[0], [1, 2]], [tokens, shared, depth])
            q = expand(q, [[0], [1, 2], [3]], [tokens, shared, heads // shared, depth])
            cache = memory.caches[self.window]
            keys, values = cache.write(self.row, [k, v])
            mixed = attend(
                q,
                self._sinks(scope, name),
                state.rows,
                cache.pages,
                (keys, values),
                mixed=depth,
                reach=self.window,
                scale=depth**-0.5 if self.scale is None else self.scale,
                cap=self.cap,
            )
            mixed = collapse(mixed, [[0], [1, 2, 3]])
            if gate is not None:
                mixed = generic(
                    [(mixed, "m n"), (gate, "m n")],
                    "m n",
                    f32(),
                    lambda a, b: arith.mulf(a, sigmoid(b)),
                )
            prepared = weights.prepare(mixed, f"{output}.weight")
        return weights.linear(
            prepared,
            output,
            f"{output}.weight",
            (self.hidden, heads * depth),
            weights.own(f"{output}.bias"),
        )

    def _warmed(self, q: ir.Value, state: State) -> ir.Value:
        """q [T, heads, D] times what the temperature says of each row's position."""
        assert self.temperature is not None
        temperature = self.temperature

        def warmed(value: ir.Value, position: ir.Value) -> ir.Value:
            place = arith.index_cast(ir.IndexType.get(), position)
            return arith.mulf(value, temperature.at(place))

        return generic([(q, "m h d"), (state.rows.positions, "m")], "m h d", f32(), warmed)

    def _projected(self, scope: Scope, x: ir.Value, name: str) -> list[ir.Value]:
        """Queries, keys and values of x [T, H]: [T, heads * D] each."""
        counts = (self.heads * (2 if self.gated else 1), self.shared, self.shared)
        widths = [count * self.depth for count in counts]
        parts = {"qkv_proj": sum(widths)} if self.fused else dict(zip(_INPUTS, widths, strict=True))
        weights = scope.weights
        with ir.Location.name(name):
            prepared = weights.prepare(x, *(f"{name}.{part}.weight" for part in parts))
        found = [
            weights.linear(
                prepared,
                f"{name}.{part}",
                f"{name}.{part}.weight",
                (width, self.hidden),
                f"{name}.{part}.bias" if self.input_bias else None,
            )
            for part, width in parts.items()
        ]
        if not self.fused:
            return found
        return parts_of(found[0], widths)

    def _queries_and_gate(self, x: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
        """Both of x [T, heads * 2 D], where they lie head by head: [T, heads * D] each."""
        with ir.Location.name(name):
            sizes = [shape_of(x)[0], self.heads, 2, self.depth]
            x = expand(x, [[0], [1, 2, 3]], sizes)
            queries, gate = (collapse(slice_of(x, 2, part), [[0], [1, 2]]) for part in range(2))
        return queries, gate

    def _rotated(self, x: ir.Value, heads: int, state: State) -> ir.Value:
        """x [T, heads * D] with rotary positions, if there are any: [T, heads, D]."""
        if self.rope is None:
            return expand(x, [[0], [1, 2]], [shape_of(x)[0], heads, self.depth])
        cos, sin = state.rotations[self.rope]
        return rotate(x, heads, cos, sin, interleaved=self.rope.interleaved)

    def _normalized(self, scope: Scope, x: ir.Value, heads: int, name: str) -> ir.Value:
        """x [T, heads * D] normalized, head by head or as a whole."""
        if self.qk_norm == "all":
            return scope.norm(x, name)
        with ir.Location.name(name):
            rows = expand(x, [[0], [1, 2]], [shape_of(x)[0], heads, self.depth])
            return collapse(scope.norm(rows, name), [[0], [1, 2]])

    def _sinks(self, scope: Scope, name: str) -> ir.Value:
        group = self.heads // self.shared
        if not self.sinks:
            return scope.weights.load(f"{scope.prefix}{NO_SINKS}", self.shared, group)
        loaded = scope.weights.load(f"{name}.sinks", self.heads)
        return expand(loaded, [[0, 1]], [self.shared, group])
