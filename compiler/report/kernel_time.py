"""Estimated time of a kernel on a GPU, and its lower bound.

  bound   = max(bytes / bandwidth of memory, flops / rate of the matrix instruction)
  model   "schedule": the clocks by which the schedule of a product was chosen
          (passes/kernels/gpu/cost.py); "roofline": for anything else, bound + one latency

Neither includes the time between two kernels, some microseconds. The figures are those of
targets/amd/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mxc.targets.gpu import Gpu

Limit = Literal["memory", "matrix"]


@dataclass(frozen=True, kw_only=True)
class Time:
    """Seconds of one call.

    `bound_seconds` is the lower bound and `bound_by` the resource that decides it. `tail` is the
    idle share of all compute units in the time, because the number of workgroups is no multiple of
    that of the units; None if the number of workgroups is not known.
    """

    seconds: float
    model: Literal["schedule", "roofline"]
    bound_seconds: float
    bound_by: Limit
    tail: float | None = None

    @property
    def share(self) -> float:
        """The lower bound as a share of the time."""
        return self.bound_seconds / self.seconds


def roofline(gpu: Gpu, moved: int, flops: int, widths: tuple[int, int] | None = None) -> Time:
    """Return the roofline time of a kernel that moves `moved` bytes.

    widths: bits per element of both operands of a block-scaled instruction; None for bf16.
    """
    memory = moved / gpu.memory_bandwidth
    rate = gpu.flops(widths)
    products = flops / rate if rate else 0.0
    bound = max(memory, products)
    return Time(
        seconds=bound + gpu.memory_latency,
        model="roofline",
        bound_seconds=bound,
        bound_by="matrix" if products > memory else "memory",
    )


def by_schedule(gpu: Gpu, bound: Time, clocks: int, workgroups: int) -> Time:
    """Return the time of a product from `clocks`, by which its schedule was chosen."""
    rounds = -(-workgroups // gpu.units)
    return Time(
        seconds=clocks / gpu.clock,
        model="schedule",
        bound_seconds=bound.bound_seconds,
        bound_by=bound.bound_by,
        tail=round(1 - workgroups / (rounds * gpu.units), 4),
    )
