"""What the blocks of one model share while its functions are built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iree.compiler import ir

from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.attention import Cache, CacheKind
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.weights import Weights
from mxc.dialects.attention import Runs


@dataclass(frozen=True)
class State:
    """What the layers of one call share.

    `rotations`: the rows cos and sin [T, R] of its T rows, by the rotary positions of a layer and
    the elements of a head that they are for.
    `rows`: their positions and their runs. `places` i32 [S]: which of the recurrent states are
    those of each run's sequence; None where the model has none.
    """

    rotations: Mapping[tuple[Rope, int], tuple[ir.Value, ir.Value]]
    rows: Runs
    places: ir.Value | None = None


@dataclass
class Memory:
    """What sequences keep from call to call; a layer replaces what it has written to.

    `caches`: pages of keys and values, by their kind. `states`: pools f32
    [M, L, ..] of a size that does not grow with the sequence, see linear_attention.py; `layer`: how
    many layers that have some are before the next one.
    """

    caches: Mapping[CacheKind, Cache]
    states: list[ir.Value]
    layer: int = 0

    @property
    def values(self) -> list[ir.Value]:
        """The pools of pages, then those of states."""
        return [*(cache.pages.pool for cache in self.caches.values()), *self.states]


@dataclass(frozen=True)
class Scope:
    """The weights of the model and what is made of activations; `grouped`: see experts.py.

    Of a model on several devices that of one, whose names begin with `prefix`.
    """

    weights: Weights
    activations: Activations
    normalization: Norm
    grouped: bool
    prefix: str = ""

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """The model's norm of x [.., H] by the weight of `name`."""
        return self.normalization.build(self.weights, x, name, named=self.grouped)
