"""The dense half of a layer: two projections, a gate, one projection back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.compiler.models.blocks.gates import Activation, combined, gated, silu
from mxc.compiler.models.blocks.parameters import Parameter, matrix, vector
from mxc.compiler.models.blocks.scope import Scope

#: Format of a tensor by its name; None where there is no such tensor.
FormatOf = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """down(activation(gate(x), up(x))). Gate and up are one weight where they are of one format."""

    hidden: int
    width: int
    bias: bool = False
    activation: Activation = silu

    def parameters(self, name: str, format_of: FormatOf) -> Iterator[Parameter]:
        """What it reads, by names that begin with `name`."""
        hidden, width = ("hidden_size", self.hidden), ("intermediate_size", self.width)
        halves = [f"{name}.{half}_proj" for half in ("gate", "up")]
        formats = {format_of(f"{half}.weight") for half in halves}
        for key, parts in (
            {f"{name}.gate_up_proj": halves} if len(formats) == 1 else {h: [h] for h in halves}
        ).items():
            yield matrix(f"{key}.weight", width, hidden, [f"{part}.weight" for part in parts])
            if self.bias:
                yield vector(f"{key}.bias", width, [f"{part}.bias" for part in parts])
        yield matrix(f"{name}.down_proj.weight", hidden, width)
        if self.bias:
            yield vector(f"{name}.down_proj.bias", hidden)

    def build(self, scope: Scope, x: ir.Value, name: str) -> ir.Value:
        """x [T, H] -> [T, H]."""
        whole = f"{name}.gate_up_proj"
        if scope.weights.has(f"{whole}.weight"):
            (y,) = self._linear(scope, x, [whole], (2 * self.width, self.hidden))
            inner = gated(y, self.activation)
        else:
            names = [f"{name}.{half}_proj" for half in ("gate", "up")]
            gate, up = self._linear(scope, x, names, (self.width, self.hidden))
            inner = combined(gate, up, self.activation)
        (y,) = self._linear(scope, inner, [f"{name}.down_proj"], (self.hidden, self.width))
        return y

    def _linear(
        self, scope: Scope, x: ir.Value, names: list[str], shape: tuple[int, int]
    ) -> list[ir.Value]:
        with ir.Location.name(names[0]):
            prepared = scope.weights.prepare(x, *(f"{name}.weight" for name in names))
        return [
            scope.weights.linear(
                prepared, name, f"{name}.weight", shape, f"{name}.bias" if self.bias else None
            )
            for name in names
        ]
