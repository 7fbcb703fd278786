"""State that the blocks of one model share while its function is built."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import reduce

from iree.compiler import ir

from mxc.compiler.models.blocks.activations import Activations
from mxc.compiler.models.blocks.attention import Cache, CacheKind
from mxc.compiler.models.blocks.devices import Device
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.primitives import concatenate, parts_of
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.weights import Weights
from mxc.dialects.attention import Runs
from mxc.dialects.generic import shape_of
from mxc.targets.gpu import GroupRows


@dataclass(frozen=True)
class StepValues:
    """Values of one call that all layers read.

    `rotations`: cos and sin [T, R] of the T rows of the call, by rotary embedding and head size.
    `rows`: the positions and the runs of the rows. `places` i32 [S]: the slot of the recurrent
    states of each run's sequence; None where the model has none.
    """

    rotations: Mapping[tuple[Rope, int], tuple[ir.Value, ir.Value]]
    rows: Runs
    places: ir.Value | None = None


@dataclass
class SequenceMemory:
    """The memory of sequences across calls. A layer that writes to a pool replaces its value here.

    `caches`: pages of keys and values, by kind. `states`: pools f32 [M, L, ..] of recurrent states,
    see linear_attention.py. `layer`: number of layers with states that are already built.
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
    """The weights of the model on one device, its activations, and its norm.

    `group_rows`: rows of a group of one expert (dialects/expert_groups.py); () where a kernel reads
    the weights of each row, on CPUs.
    """

    weights: Weights
    activations: Activations
    normalization: Norm
    group_rows: GroupRows
    device: Device

    @property
    def on_gpu(self) -> bool:
        """Whether the program is for a GPU, which has kernels of norms and routers."""
        return bool(self.group_rows)

    @property
    def prefix(self) -> str:
        """The prefix of the device's names, "" for a single device."""
        return self.device.prefix

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """Build the model's norm of x [.., H] with the weight of `name`."""
        return self.normalization.build(self.weights, x, name, named=self.on_gpu)

    def norms_over_devices(
        self, parts: Mapping[str, ir.Value]
    ) -> Generator[ir.Value, ir.Value, list[ir.Value]]:
        """Build the model's norm of rows [T, H] of which each device has a part, by its name.

        Several devices sum the squares of each row, of all parts in one transfer.
        """
        count, norm = self.device.count, self.normalization
        if count == 1:
            return [self.norm(x, name) for name, x in parts.items()]
        with ir.Location.name(next(iter(parts))):
            squares = yield reduce(concatenate, [norm.squares(x) for x in parts.values()])
            sums = parts_of(squares, [1] * len(parts))
        return [
            norm.build_part(self.weights, x, total, count * shape_of(x)[1], name)
            for (name, x), total in zip(parts.items(), sums, strict=True)
        ]
