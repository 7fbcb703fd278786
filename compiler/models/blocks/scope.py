"""What the blocks of one model share while its functions are built."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.compiler.models.blocks import attention
from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.primitives import rms_norm
from mxc.compiler.models.blocks.weights import Weights
from mxc.dialects.generic import shape_of


@dataclass(frozen=True)
class Span:
    """Where the rows of one sequence stand: the first at `position`, an index.

    `windows` are the keys that they look at, by the width of the window (None: all before them).
    """

    position: ir.Value
    windows: dict[int | None, attention.Window]


@dataclass(frozen=True)
class State:
    """What the layers of one call share: `cos` and `sin` [T, D / 2] of its T rows.

    The rows are those of the sequences one after the other, equally many of each in `spans`.
    """

    tokens: int
    zero: ir.Value
    cos: ir.Value
    sin: ir.Value
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Scope:
    """The weights of the model and what is made of activations; `grouped`: see experts.py."""

    weights: Weights
    activations: Activations
    epsilon: float
    grouped: bool

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """RMS norm of x [.., H] by the weight `name` [H]."""
        weight = self.weights.load(f"{name}.weight", shape_of(x)[-1])
        with ir.Location.name(name):
            return rms_norm(x, weight, self.epsilon)
