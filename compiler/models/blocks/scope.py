"""What the blocks of one model share while its functions are built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iree.compiler import ir

from mxc.compiler.models.blocks import attention
from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.weights import Weights
from mxc.dialects.attention import Reach


@dataclass(frozen=True)
class Span:
    """Where the rows of one sequence stand: the first at `position`, an index.

    `windows` are the keys that they look at, by what a query sees of them (None: all before it).
    """

    position: ir.Value
    windows: dict[Reach, attention.Window]


@dataclass(frozen=True)
class State:
    """What the layers of one call share.

    `rotations`: the rows cos and sin [T, R] of its T rows, by the rotary positions of a layer. The
    rows are those of the sequences one after the other, equally many of each in `spans`. `count`:
    how many of the rows are tokens, an index; the others, behind them, fill up a chunk. None where
    all are.
    """

    tokens: int
    zero: ir.Value
    rotations: Mapping[Rope, tuple[ir.Value, ir.Value]]
    spans: tuple[Span, ...]
    count: ir.Value | None = None


@dataclass
class Memory:
    """What a sequence keeps from call to call; a layer replaces what it has written to.

    `cache`: keys and values, see attention.py. `states`: of a size that does not grow with the
    sequence, see gated_delta_net.py.
    """

    cache: ir.Value
    states: list[ir.Value]


@dataclass(frozen=True)
class Scope:
    """The weights of the model and what is made of activations; `grouped`: see experts.py."""

    weights: Weights
    activations: Activations
    normalization: Norm
    grouped: bool

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """The model's norm of x [.., H] by the weight of `name`."""
        return self.normalization.build(self.weights, x, name)
