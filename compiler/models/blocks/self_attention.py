"""Self-attention of a decoder: grouped queries, rotary embedding, KV cache, windows, sinks.

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
from mxc.compiler.models.blocks.devices import Steps, divided
from mxc.compiler.models.blocks.gates import sigmoid
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import (
    FormatOf,
    Parameter,
    matrix,
    projections,
    vector,
)
from mxc.compiler.models.blocks.primitives import (
    collapse,
    divide_by_rms,
    expand,
    f32,
    parts_of,
    rotate,
    slice_of,
)
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.scope import Scope, SequenceMemory, StepValues
from mxc.dialects.attention import MASKED, Reach
from mxc.dialects.attention import attention as attend
from mxc.dialects.generic import constant, generic, shape_of
from mxc.dialects.rotary_writes import Scales
from mxc.dialects.slices import columns_of, widened

#: The projections of the input, where they are separate tensors.
_INPUTS = ("q_proj", "k_proj", "v_proj")
#: When, and over which elements, queries and keys are normalized; see SelfAttention.
QKNorm = Literal["head", "all", "rotated", "length"]
#: Names, after a layer's name, of the scales of keys and values in fp8 pages, one per head.
SCALES = ("k_scale", "v_scale")
#: Name of the parameter f32 [heads] that serves as sinks where a model has none: MASKED, weight 0.
NO_SINKS = "attention.no_sinks"


def no_sinks(heads: int) -> dict[str, NDArray[np.float32]]:
    """Return the parameter NO_SINKS of a model with `heads` query heads."""
    return {NO_SINKS: np.full(heads, MASKED, np.float32)}


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """The factor of queries at position p: 1 + factor * log(1 + (p + first) // step)."""

    step: int
    factor: float
    first: int = 1

    def at(self, position: ir.Value) -> ir.Value:
        """Build the factor, f32, at a position, an index."""
        one, first, step = (
            constant(value, ir.IndexType.get()) for value in (1, self.first, self.step)
        )
        count = arith.addi(one, arith.divui(arith.addi(position, first), step))
        number = arith.uitofp(f32(), arith.index_cast(ir.IntegerType.get_signless(32), count))
        grown = arith.mulf(constant(self.factor, f32()), math.log(number))
        return arith.addf(constant(1.0, f32()), grown)

    def times(self, queries: ir.Value, positions: ir.Value) -> ir.Value:
        """Multiply queries [T, heads, D] by the factor at each row's position, i32 [T]."""

        def grown(value: ir.Value, position: ir.Value) -> ir.Value:
            place = arith.index_cast(ir.IndexType.get(), position)
            return arith.mulf(value, self.at(place))

        return generic([(queries, "m h d"), (positions, "m")], "m h d", f32(), grown)


@dataclass(frozen=True, kw_only=True)
class SelfAttention:
    """Attention of `heads` query heads over `shared` key/value heads of size `depth`.

    `rope`: the rotary embedding of queries and keys; None for no rotation (NoPE).
    `input_bias`: whether the projections to queries, keys and values have biases; `output_bias`:
    whether o_proj has one. `fused`: these three projections are one tensor, qkv_proj.
    `qk_norm`: queries and keys are normalized before the rotation, over each "head" or over "all"
    heads together; or after the rotation, over each head ("rotated", Hunyuan), or over each head
    without a weight and with `epsilon` ("length", Llama 4).
    `sinks`: one extra logit per head. `window`: the number of keys that a query sees, its own
    included, or its chunk; None for all.
    `scale`: factor of scores, None for depth^-1/2. `cap`: scores become cap * tanh(score / cap).
    `temperature`: factor of queries by position. `gated`: the result of each head is multiplied by
    the sigmoid of a gate, whose rows follow those of the head's queries in q_proj (Qwen3-Next).
    `value_norm`: values are normalized per head, without a weight. `values_are_keys`: values are
    the result of k_proj too, before keys are normalized and rotated. `borrows`: the layer reads the
    keys and values of the last earlier layer with pages of the same kind (Gemma 4).
    """

    hidden: int
    heads: int
    shared: int
    depth: int
    rope: Rope | None
    input_bias: bool = False
    output_bias: bool = False
    fused: bool = False
    qk_norm: QKNorm | None = None
    sinks: bool = False
    window: Reach = None
    scale: float | None = None
    cap: float | None = None
    gated: bool = False
    epsilon: float = 0.0
    temperature: Temperature | None = None
    value_norm: bool = False
    values_are_keys: bool = False
    borrows: bool = False

    @property
    def row(self) -> attention.CacheRow:
        """The cache row of a token in a layer: a key and a value per head."""
        return attention.CacheRow.of_heads(self.shared, self.depth)

    @property
    def rope_depth(self) -> int:
        """The head size, of which the rotary embedding may rotate a part."""
        return self.depth

    def parameters(self, name: str, norm: Norm, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`. norm: the model's norm."""
        hidden = ("hidden_size", self.hidden)
        queries = ("num_attention_heads * head_dim", self.heads * self.depth)
        keys = ("num_key_value_heads * head_dim", self.shared * self.depth)
        asked = queries if not self.gated else (f"2 * {queries[0]}", 2 * queries[1])
        sizes = dict(zip(_INPUTS, (asked, keys, keys), strict=True))
        why = "(num_attention_heads + 2 * num_key_value_heads) * head_dim"
        yield from projections(
            name,
            self._whole,
            {part: sizes[part] for part in self._inputs},
            hidden,
            format_of,
            bias=self.input_bias,
            fused=(why, queries[1] + 2 * keys[1]) if self.fused else None,
            # Queries that are not rotated are read by attention directly. As columns of a wider
            # result they would be copied.
            apart=self.rope is None,
        )
        yield matrix(f"{name}.o_proj.weight", hidden, queries, split="columns")
        if self.output_bias:
            yield vector(f"{name}.o_proj.bias", hidden, split="first")
        if self.qk_norm not in (None, "length"):
            head = ("head_dim", self.depth)
            for part, whole in (("q_norm", queries), ("k_norm", keys))[: 2 - self.borrows]:
                if self.qk_norm == "all":
                    yield from norm.parameters(f"{name}.{part}", whole, split="rows")
                else:
                    yield from norm.parameters(f"{name}.{part}", head)
        if self.sinks:
            yield vector(f"{name}.sinks", ("num_attention_heads", self.heads), split="rows")

    def share(self, devices: int) -> SelfAttention:
        """Return each device's share: some key/value heads and their query heads.

        Raises CheckpointError where the heads cannot be divided.
        """
        heads = divided(devices, "num_attention_heads", self.heads)
        shared = divided(devices, "num_key_value_heads", self.shared)
        return replace(self, heads=heads, shared=shared)

    def generated(self) -> dict[str, NDArray[np.float32]]:
        """Return the computed parameters by key."""
        return {} if self.sinks else no_sinks(self.heads)

    def build(
        self,
        scope: Scope,
        x: ir.Value,
        name: str,
        state: StepValues,
        memory: SequenceMemory,
    ) -> Steps:
        """x [T, H] -> [T, H]; the new keys and values are written to the pages."""
        heads, shared, depth = self.heads, self.shared, self.depth
        weights = scope.weights
        q, *projected = self._projected(scope, x, name)
        gate = None
        if self.gated:
            q, gate = self._queries_and_gate(q, name)
        if self.qk_norm == "all":
            named = {f"{name}.q_norm": q, f"{name}.k_norm": projected[0]}
            q, projected[0] = yield from scope.norms_over_devices(named)
        cache = memory.caches[self.window, self.row]
        if self._rotates_as_it_writes:
            q = self._written(scope, q, projected, name, state, cache)
        else:
            q = self._turned(scope, q, heads, f"{name}.q_norm", state)
            if not self.borrows:
                parts = self._keys_and_values(scope, projected, name, state)
                with ir.Location.name(name):
                    parts = [widened(part, self.row.depth) for part in parts]
                    cache.write(self.row, parts, self._cache_scales(scope, name))
        output = f"{name}.o_proj"
        with ir.Location.name(name):
            (keys, values), scales = cache.last, cache.scales
            tokens = shape_of(q)[0]
            if self.temperature is not None:
                q = self.temperature.times(q, state.rows.positions)
            q = expand(q, [[0], [1, 2], [3]], [tokens, shared, heads // shared, depth])
            # A key is its fp8 code times its scale, so the scale is applied to the query instead.
            q = widened(_times(q, scales[0]), self.row.depth)
            mixed = attend(
                q,
                self._sinks(scope, name),
                state.rows,
                cache.pages,
                (keys, values),
                mixed=self.row.depth,
                reach=self.window,
                scale=depth**-0.5 if self.scale is None else self.scale,
                cap=self.cap,
                bits=scope.activations.bits,
            )
            mixed = _times(columns_of(mixed, 0, depth), scales[1])
            mixed = collapse(mixed, [[0], [1, 2, 3]])
            if gate is not None:
                mixed = generic(
                    [(mixed, "m n"), (gate, "m n")],
                    "m n",
                    f32(),
                    lambda a, b: arith.mulf(a, sigmoid(b)),
                )
            prepared = weights.prepare(mixed, f"{output}.weight")
        part = weights.linear(
            prepared,
            output,
            f"{output}.weight",
            (self.hidden, heads * depth),
            weights.own(f"{output}.bias"),
        )
        return (yield part)

    @property
    def _inputs(self) -> tuple[str, ...]:
        """The projections of the input that this layer has, as separate tensors."""
        return _INPUTS[:1] if self.borrows else _INPUTS[: 3 - self.values_are_keys]

    @property
    def _whole(self) -> str:
        """The name of the concatenated projections of the input, such as "qkv_proj"."""
        return f"{''.join(part[0] for part in self._inputs)}_proj"

    @property
    def _rotates_as_it_writes(self) -> bool:
        """Whether one operation rotates and writes keys, as nothing is done to them in between."""
        whole = not self.borrows and self.row.depth == self.depth
        return whole and self.rope is not None and self.qk_norm not in ("rotated", "length")

    def _written(
        self,
        scope: Scope,
        q: ir.Value,
        projected: list[ir.Value],
        name: str,
        state: StepValues,
        cache: attention.Cache,
    ) -> ir.Value:
        """Rotate queries q [T, heads * D] and keys, and write keys and values to the pages.

        Returns the rotated queries [T, heads, D].
        """
        assert self.rope is not None
        k, v = projected[0], projected[-1]
        if self.qk_norm == "head":
            q = self._normalized(scope, q, self.heads, f"{name}.q_norm")
            k = self._normalized(scope, k, self.shared, f"{name}.k_norm")
        with ir.Location.name(name):
            if self.value_norm:
                heads = [shape_of(v)[0], self.shared, self.depth]
                v = divide_by_rms(expand(v, [[0], [1, 2]], heads), scope.normalization.epsilon)
                v = collapse(v, [[0], [1, 2]])
            rotations = state.rotations[self.rope, self.depth]
            distance = self.rope.distance(self.depth)
            scales = self._cache_scales(scope, name)
            q = cache.write_rotated(self.row, q, k, v, rotations, distance, scales)
            return expand(q, [[0], [1, 2]], [shape_of(q)[0], self.heads, self.depth])

    def _keys_and_values(
        self, scope: Scope, projected: list[ir.Value], name: str, state: StepValues
    ) -> list[ir.Value]:
        """Build the keys and values to write, [T, V, D] each, from the results of projections."""
        k, v = projected[0], projected[-1]
        with ir.Location.name(name):
            v = expand(v, [[0], [1, 2]], [shape_of(v)[0], self.shared, self.depth])
            if self.value_norm:
                v = divide_by_rms(v, scope.normalization.epsilon)
        return [self._turned(scope, k, self.shared, f"{name}.k_norm", state), v]

    def _projected(self, scope: Scope, x: ir.Value, name: str) -> list[ir.Value]:
        """Project x [T, H] to queries, and keys and values if any: [T, heads * D] each."""
        counts = (self.heads * (2 if self.gated else 1), self.shared, self.shared)
        widths = [count * self.depth for count, _ in zip(counts, self._inputs, strict=False)]
        weights = scope.weights
        fused = weights.has(f"{name}.{self._whole}.weight")
        parts = dict(zip(self._inputs, widths, strict=True))
        if fused:
            parts = {self._whole: sum(widths)}
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
        return parts_of(found[0], widths) if fused else found

    def _queries_and_gate(self, x: ir.Value, name: str) -> tuple[ir.Value, ir.Value]:
        """Split x [T, heads * 2 D], per head queries then gate, into both: [T, heads * D] each."""
        with ir.Location.name(name):
            sizes = [shape_of(x)[0], self.heads, 2, self.depth]
            x = expand(x, [[0], [1, 2, 3]], sizes)
            queries, gate = (collapse(slice_of(x, 2, part), [[0], [1, 2]]) for part in range(2))
        return queries, gate

    def _turned(
        self, scope: Scope, x: ir.Value, heads: int, norm: str, state: StepValues
    ) -> ir.Value:
        """Normalize and rotate queries or keys x [T, heads * D], in the model's order.

        Returns [T, heads, D]. norm: the name of the norm.
        """
        if self.qk_norm == "head":
            x = self._normalized(scope, x, heads, norm)
        with ir.Location.name(norm.rpartition(".")[0]):
            x = self._rotated(x, heads, state)
            if self.qk_norm == "length":
                x = divide_by_rms(x, self.epsilon)
        return scope.norm(x, norm) if self.qk_norm == "rotated" else x

    def _rotated(self, x: ir.Value, heads: int, state: StepValues) -> ir.Value:
        """Rotate x [T, heads * D], if there is a rotary embedding: [T, heads, D]."""
        rope = self.rope
        if rope is None:
            return expand(x, [[0], [1, 2]], [shape_of(x)[0], heads, self.depth])
        cos, sin = state.rotations[rope, self.depth]
        return rotate(x, heads, cos, sin, interleaved=rope.interleaved, spread=rope.proportional)

    def _normalized(self, scope: Scope, x: ir.Value, heads: int, name: str) -> ir.Value:
        """Normalize x [T, heads * D] per head."""
        with ir.Location.name(name):
            rows = expand(x, [[0], [1, 2]], [shape_of(x)[0], heads, self.depth])
            return collapse(scope.norm(rows, name), [[0], [1, 2]])

    def _cache_scales(self, scope: Scope, name: str) -> Scales:
        """The scales f32 [V] of keys and of values in pages of fp8; None where they are one."""
        weights = scope.weights
        keys, values = (
            weights.load(key, self.shared) if weights.has(key) else None
            for key in (f"{name}.{part}" for part in SCALES)
        )
        return keys, values

    def _sinks(self, scope: Scope, name: str) -> ir.Value:
        key = f"{name}.sinks" if self.sinks else f"{scope.prefix}{NO_SINKS}"
        loaded = scope.weights.load(key, self.heads)
        return expand(loaded, [[0, 1]], [self.shared, self.heads // self.shared])


def _times(x: ir.Value, scales: ir.Value | None) -> ir.Value:
    """x [T, V, G, D] times scales f32 [V] of key/value heads; x itself for None."""
    if scales is None:
        return x
    reads = [(x, "m h g d"), (scales, "h")]
    return generic(reads, "m h g d", f32(), lambda value, scale: arith.mulf(value, scale))
