"""Self-attention of a decoder: grouped queries, rotary positions, a cache, windows, sinks.

Letters as in attention.py; T rows of this call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.compiler.models.blocks import attention
from mxc.compiler.models.blocks.parameters import Parameter, matrix, vector
from mxc.compiler.models.blocks.primitives import collapse, expand, joined, rotate, rows_from
from mxc.compiler.models.blocks.scope import Scope, Span, State
from mxc.dialects.attention import MASKED
from mxc.dialects.generic import shape_of

#: The sinks of attention without any, f32 [V, G]: beside any score, their weight is zero.
NO_SINKS = "attention.no_sinks"


@dataclass(frozen=True, kw_only=True)
class SelfAttention:
    """Attention of `heads` query heads over `shared` key/value heads of size `depth`.

    `input_bias`: of the projections to queries, keys and values, `output_bias`: of that behind.
    `head_norms`: queries and keys are normalised, head by head, before they are rotated. `sinks`:
    one more logit a head. `window`: the last keys that a query sees, itself included; None: all.
    """

    hidden: int
    heads: int
    shared: int
    depth: int
    input_bias: bool = False
    output_bias: bool = False
    head_norms: bool = False
    sinks: bool = False
    window: int | None = None

    def parameters(self, name: str) -> Iterator[Parameter]:
        """What it reads, by names that begin with `name`."""
        hidden = ("hidden_size", self.hidden)
        queries = ("num_attention_heads * head_dim", self.heads * self.depth)
        keys = ("num_key_value_heads * head_dim", self.shared * self.depth)
        for part, rows, columns, bias in (
            ("q_proj", queries, hidden, self.input_bias),
            ("k_proj", keys, hidden, self.input_bias),
            ("v_proj", keys, hidden, self.input_bias),
            ("o_proj", hidden, queries, self.output_bias),
        ):
            yield matrix(f"{name}.{part}.weight", rows, columns)
            if bias:
                yield vector(f"{name}.{part}.bias", rows)
        if self.head_norms:
            for part in ("q_norm", "k_norm"):
                yield vector(f"{name}.{part}.weight", ("head_dim", self.depth))
        if self.sinks:
            yield vector(f"{name}.sinks", ("num_attention_heads", self.heads))

    def generated(self) -> dict[str, NDArray[np.float32]]:
        """Parameters that are computed, not read."""
        shape = (self.shared, self.heads // self.shared)
        return {} if self.sinks else {NO_SINKS: np.full(shape, MASKED, np.float32)}

    def build(
        self, scope: Scope, x: ir.Value, layer: int, name: str, state: State, caches: list[ir.Value]
    ) -> ir.Value:
        """x [T, H] -> [T, H]; the caches in the list become those with the new keys and values."""
        heads, shared, depth = self.heads, self.shared, self.depth
        weights = scope.weights
        projections = {part: f"{name}.{part}_proj.weight" for part in "qkv"}
        with ir.Location.name(name):
            prepared = weights.prepare(x, *projections.values())
        q, k, v = (
            weights.linear(
                prepared,
                f"{name}.{part}_proj",
                projections[part],
                (count * depth, self.hidden),
                f"{name}.{part}_proj.bias" if self.input_bias else None,
            )
            for part, count in (("q", heads), ("k", shared), ("v", shared))
        )
        if self.head_norms:
            q = self._normalised(scope, q, heads, f"{name}.q_norm")
            k = self._normalised(scope, k, shared, f"{name}.k_norm")
        output = f"{name}.o_proj"
        with ir.Location.name(name):
            q = rotate(q, heads, state.cos, state.sin)
            k = rotate(k, shared, state.cos, state.sin)
            v = expand(v, [[0], [1, 2]], [state.tokens, shared, depth])
            group = heads // shared
            q = expand(q, [[0], [1, 2], [3]], [state.tokens, shared, group, depth])
            k, v = (attention.as_cached(rows, caches[0]) for rows in (k, v))
            sinks = self._sinks(scope, name)
            mixed = joined(
                [
                    self._attend(part, sinks, layer, state.zero, span, caches, number)
                    for number, (span, part) in enumerate(
                        zip(state.spans, _parts((q, k, v), len(state.spans)), strict=True)
                    )
                ]
            )
            mixed = collapse(mixed, [[0], [1, 2, 3]])
            prepared = weights.prepare(mixed, f"{output}.weight")
        return weights.linear(
            prepared,
            output,
            f"{output}.weight",
            (self.hidden, heads * depth),
            f"{output}.bias" if self.output_bias else None,
        )

    def _normalised(self, scope: Scope, x: ir.Value, heads: int, name: str) -> ir.Value:
        """Each head of x [T, heads * D] normalised."""
        tokens = shape_of(x)[0]
        with ir.Location.name(name):
            rows = expand(x, [[0], [1, 2]], [tokens, heads, self.depth])
            return collapse(scope.norm(rows, name), [[0], [1, 2]])

    def _sinks(self, scope: Scope, name: str) -> ir.Value:
        group = self.heads // self.shared
        if not self.sinks:
            return scope.weights.load(NO_SINKS, self.shared, group)
        loaded = scope.weights.load(f"{name}.sinks", self.heads)
        return expand(loaded, [[0, 1]], [self.shared, group])

    def _attend(
        self,
        rows: tuple[ir.Value, ...],
        sinks: ir.Value,
        layer: int,
        zero: ir.Value,
        span: Span,
        caches: list[ir.Value],
        number: int,
    ) -> ir.Value:
        """Attention of the queries, keys and values `rows` of the sequence of this number."""
        queries, *new = rows
        window = span.windows[self.window]
        for entry, part in enumerate(new, start=2 * layer):
            caches[number] = attention.write_cache(caches[number], entry, span.position, part)
        keys, values = (
            attention.read_cache(caches[number], zero, entry, window)
            for entry in (2 * layer, 2 * layer + 1)
        )
        scale = self.depth**-0.5
        return attention.attend(queries, keys, values, sinks, span.position, window, scale)


def _parts(values: tuple[ir.Value, ...], count: int) -> Iterator[tuple[ir.Value, ...]]:
    """The rows of each of `count` sequences, of every value."""
    if count == 1:
        yield values
        return
    for number in range(count):
        yield tuple(rows_from(value, attention.index(number), 1) for value in values)
