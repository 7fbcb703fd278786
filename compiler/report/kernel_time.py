"""How long a kernel takes a GPU, estimated, and how long it must take at least.

    bound   = max(bytes / bandwidth of memory, products / rate of the matrix instruction)
    model   "schedule": the clocks by which the schedule of a product was chosen
            (passes/kernels/gpu/cost.py); "roofline": of whatever else, bound + one latency

Neither has the time from one kernel to the next, some microseconds. The figures are those of
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

    `bound_seconds`: at least; `bound_by`: what decides it. `tail`: of the time of all compute
    units the share in which they have no workgroup, because these do not divide by the units; None
    where the number of workgroups is not known.
    """

    seconds: float
    model: Literal["schedule", "roofline"]
    bound_seconds: float
    bound_by: Limit
    tail: float | None = None

    @property
    def share(self) -> float:
        """The bound's part of the time."""
        return self.bound_seconds / self.seconds


def roofline(gpu: Gpu, moved: int, flops: int, widths: tuple[int, int] | None = None) -> Time:
    """Roofline time of a kernel that moves so many bytes. widths: bits of an element of both sides,
    where an instruction multiplies them under their scales; None where it multiplies bf16."""
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
    """Time of a product that takes so many clocks of the device by the model that chose its
    schedule."""
    rounds = -(-workgroups // gpu.units)
    return Time(
        seconds=clocks / gpu.clock,
        model="schedule",
        bound_seconds=bound.bound_seconds,
        bound_by=bound.bound_by,
        tail=round(1 - workgroups / (rounds * gpu.units), 4),
    )
