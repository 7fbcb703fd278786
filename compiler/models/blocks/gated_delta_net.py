"""Gated DeltaNet: linear attention with a decay per head.

    qkv, z, b, a = projections of x
    decay        = exp(-exp(A_log) softplus(a + dt_bias))
    gate         = silu(z)

The rest is in linear_attention.py. Source: Yang et al., "Gated Delta Networks" (arXiv 2412.06464),
and transformers' models/qwen3_next and models/qwen3_5 (5.23).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.compiler.models.blocks.gates import swish
from mxc.compiler.models.blocks.linear_attention import (
    InputProjections,
    LinearAttention,
    decay_of,
)
from mxc.compiler.models.blocks.parameters import CheckpointRows, Dim, Parameter, matrix, vector
from mxc.compiler.models.blocks.primitives import f32
from mxc.compiler.models.blocks.scope import Scope
from mxc.dialects.generic import generic


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(LinearAttention):
    """The layer of Gated DeltaNet.

    `fused`: the checkpoint has in_proj_qkvz and in_proj_ba, whose rows are ordered by key head
    (Qwen3-Next). The program has a separate weight for each projection in either case.
    """

    fused: bool = False

    norm_name, output_name = "norm", "out_proj"
    key_heads_field = "linear_num_key_heads"
    heads_field, depth_field = "linear_num_value_heads", "linear_value_head_dim"

    def inputs(self, name: str) -> Iterator[Parameter]:
        """Yield the projections, then the parameters of the decay."""
        hidden = ("hidden_size", self.hidden)
        for part, rows, quantizable in self._projections:
            found = self._fused_rows(name, part) if self.fused else ()
            yield matrix(
                f"{name}.{part}.weight",
                rows,
                hidden,
                found,
                quantizable=quantizable,
                split="rows",
                sections=self.widths if rows == self.columns else rows[1:],
            )
        yield vector(f"{name}.dt_bias", self.heads, split="rows")
        yield vector(f"{name}.A_log", self.heads, split="rows")

    def convolutions(self, name: str) -> Iterator[tuple[str, Dim]]:
        """Yield the one convolution tensor."""
        yield f"{name}.conv1d.weight", self.columns

    def projected(self, scope: Scope, x: ir.Value, name: str) -> InputProjections:
        """Project x; `decay` of the result is `a`, f32 [T, H]."""
        weights = scope.weights
        rows = {f"{name}.{part}": size for part, (_, size), _ in self._projections}
        with ir.Location.name(name):
            prepared = weights.prepare(x, *(f"{part}.weight" for part in rows))
        found = (
            weights.linear(prepared, part, f"{part}.weight", (size, self.hidden))
            for part, size in rows.items()
        )
        return InputProjections(*found)

    def decay(self, scope: Scope, value: ir.Value, name: str) -> ir.Value:
        """Build the decay of each head from `a`: f32 [T, H]."""
        shift, rate = (
            scope.weights.load(f"{name}.{part}", self.value_heads) for part in ("dt_bias", "A_log")
        )
        return generic([(value, "m h"), (shift, "h"), (rate, "h")], "m h", f32(), decay_of)

    def activation(self, gate: ir.Value) -> ir.Value:
        """silu(gate)."""
        return swish(gate)

    @property
    def _projections(self) -> tuple[tuple[str, Dim, bool], ...]:
        """Name and rows of each projection, and whether it may be quantized (not b and a)."""
        return (
            ("in_proj_qkv", self.columns, True),
            ("in_proj_z", self.values, True),
            ("in_proj_b", self.heads, False),
            ("in_proj_a", self.heads, False),
        )

    def _fused_rows(self, name: str, part: str) -> tuple[CheckpointRows, ...]:
        """Return the rows of a projection in the fused tensor, which is ordered by key head."""
        group = self.value_heads // self.key_heads
        values = group * self.value_depth
        parts = {"q": self.key_depth, "k": self.key_depth, "v": values, "z": values}
        tensor = "in_proj_qkvz"
        if part in ("in_proj_b", "in_proj_a"):
            parts, tensor = {"b": group, "a": group}, "in_proj_ba"
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
            CheckpointRows(
                tensor=f"{name}.{tensor}.weight",
                dims=dims,
                taken=(head * each + starts[letter], parts[letter]),
            )
            for letter in part.removeprefix("in_proj_")
            for head in range(self.key_heads)
        )
