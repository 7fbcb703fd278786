"""Dense MLPs: gate and up projections, an activation, and a down projection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir

from mxc.compiler.models.blocks.devices import Steps, divided
from mxc.compiler.models.blocks.gates import Activation, combined, gated, silu
from mxc.compiler.models.blocks.parameters import (
    FormatOf,
    Parameter,
    matrix,
    projections,
    vector,
)
from mxc.compiler.models.blocks.primitives import f32
from mxc.compiler.models.blocks.scope import Scope
from mxc.dialects.generic import generic


class SummedOverDevices(ABC):
    """A block whose result is one sum over the devices."""

    @abstractmethod
    def addend(self, scope: Scope, x: ir.Value, name: str) -> ir.Value:
        """Build this device's addend [T, H] for x [T, H]."""

    def build(self, scope: Scope, x: ir.Value, name: str) -> Steps:
        """x [T, H] -> [T, H]."""
        return (yield self.addend(scope, x, name))


@dataclass(frozen=True, kw_only=True)
class Mlp(SummedOverDevices):
    """down(activation(gate(x), up(x))). Gate and up of one format are concatenated to one weight.

    `fused`: gate and up are one tensor in the checkpoint, gate_up_proj. `width_field`: the field of
    configs with the width.
    """

    hidden: int
    width: int
    bias: bool = False
    activation: Activation = silu
    fused: bool = False
    width_field: str = "intermediate_size"

    def parameters(self, name: str, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`."""
        hidden, width = ("hidden_size", self.hidden), (self.width_field, self.width)
        whole = (f"2 * {self.width_field}", 2 * self.width) if self.fused else None
        halves = {"gate_proj": width, "up_proj": width}
        yield from projections(
            name, "gate_up_proj", halves, hidden, format_of, bias=self.bias, fused=whole
        )
        yield matrix(f"{name}.down_proj.weight", hidden, width, split="columns")
        if self.bias:
            yield vector(f"{name}.down_proj.bias", hidden, split="first")

    def share(self, devices: int) -> Mlp:
        """Return each device's share: a part of the width.

        Raises CheckpointError where the width does not divide.
        """
        return replace(self, width=divided(devices, self.width_field, self.width))

    def addend(self, scope: Scope, x: ir.Value, name: str) -> ir.Value:
        """Build this device's addend [T, H] for x [T, H]."""
        whole = f"{name}.gate_up_proj"
        if scope.weights.has(f"{whole}.weight"):
            (y,) = linears(scope, x, [whole], (2 * self.width, self.hidden))
            inner = gated(y, self.activation)
        else:
            names = [f"{name}.{half}_proj" for half in ("gate", "up")]
            gate, up = linears(scope, x, names, (self.width, self.hidden))
            inner = combined(gate, up, self.activation)
        shape = (self.hidden, self.width)
        (y,) = linears(scope, inner, [f"{name}.down_proj"], shape)
        return y


@dataclass(frozen=True, kw_only=True)
class FeedForward(SummedOverDevices):
    """down(activation(up(x))), an MLP without a gate. `up`, `down`: the names of its weights."""

    hidden: int
    width: int
    activation: Callable[[ir.Value], ir.Value]
    bias: bool = False
    up: str = "up_proj"
    down: str = "down_proj"

    def parameters(self, name: str, format_of: FormatOf) -> Iterator[Parameter]:
        """Yield its parameters; names begin with `name`."""
        hidden, width = ("hidden_size", self.hidden), ("intermediate_size", self.width)
        yield matrix(f"{name}.{self.up}.weight", width, hidden, split="rows")
        yield matrix(f"{name}.{self.down}.weight", hidden, width, split="columns")
        if self.bias:
            yield vector(f"{name}.{self.up}.bias", width, split="rows")
            yield vector(f"{name}.{self.down}.bias", hidden, split="first")

    def share(self, devices: int) -> FeedForward:
        """Return each device's share: a part of the width.

        Raises CheckpointError where the width does not divide.
        """
        return replace(self, width=divided(devices, "intermediate_size", self.width))

    def addend(self, scope: Scope, x: ir.Value, name: str) -> ir.Value:
        """Build this device's addend [T, H] for x [T, H]."""
        shape = (self.width, self.hidden)
        (inner,) = linears(scope, x, [f"{name}.{self.up}"], shape)
        inner = generic([(inner, "m n")], "m n", f32(), self.activation)
        (y,) = linears(scope, inner, [f"{name}.{self.down}"], shape[::-1])
        return y


def linears(
    scope: Scope, x: ir.Value, names: Sequence[str], shape: tuple[int, int]
) -> list[ir.Value]:
    """x [T, K] times each of the weights `names` [N, K] = `shape`, and its bias: f32 [T, N]."""
    with ir.Location.name(names[0]):
        prepared = scope.weights.prepare(x, *(f"{name}.weight" for name in names))
    return [
        scope.weights.linear(
            prepared, name, f"{name}.weight", shape, scope.weights.own(f"{name}.bias")
        )
        for name in names
    ]
