"""The resources of a compute unit, and the rates of its pipes.

Sizes are in bytes, times in clocks of the unit, registers are counted per lane. Where sources
disagree, the record has the slower figure and says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Limit = Literal["registers", "LDS", "waves"]


@dataclass(frozen=True, kw_only=True)
class PipeRates:
    """Rates of the pipes of one compute unit.

    issue: clocks between two instructions of one wave, and of one kind on one SIMD; transcendental:
    clocks that a SIMD needs for a wave of v_exp, v_rcp, ..; matrix_start: clocks from a matrix
    instruction on in which its SIMD issues no other vector instruction; lds_bytes_per_clock,
    memory_bytes_per_clock: bandwidth between LDS, or the L1 path, and the registers of all SIMDs;
    lds_latency, memory_latency: clocks from the end of a transfer until its data can be used;
    lds_queue, memory_queue: clocks by which a pipe may lag before an instruction for it stalls;
    barrier: clocks from the last wave's arrival until the first wave continues.
    """

    issue: int = 4
    transcendental: int = 16
    matrix_start: int = 8
    lds_bytes_per_clock: int = 128
    lds_latency: int = 64
    lds_queue: int = 64
    memory_bytes_per_clock: int = 64
    memory_latency: int = 1000
    memory_queue: int = 128
    barrier: int = 16


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Waves of a kernel per SIMD, workgroups per compute unit, and the limiting resource."""

    waves_per_simd: int
    workgroups: int
    limited_by: Limit


@dataclass(frozen=True, kw_only=True)
class ComputeUnit:
    """The resources that workgroups on one LDS share: a compute unit, on RDNA a work-group
    processor.

    wave: lanes per wave. registers: vector registers per lane that the waves of one SIMD share,
    including accumulation registers; a wave gets whole groups of `register_granule`. lds_bytes: LDS
    that workgroups share, allocated in pieces of `lds_granule`. `rates` is None where too little is
    known.
    """

    wave: int
    registers: int
    register_granule: int
    waves: int
    lds_bytes: int
    lds_granule: int
    simds: int = 4
    rates: PipeRates | None = None

    def occupancy(self, *, registers: int, lds_bytes: int, workgroup_size: int) -> Occupancy:
        """Occupancy of a kernel with these registers per lane, LDS bytes and work-items per
        workgroup.

        Only whole workgroups run. At least one workgroup is always assumed to fit.
        """
        waves = max(1, math.ceil(workgroup_size / self.wave))
        granted = _up(max(1, registers), self.register_granule)
        by_registers = min(self.waves, self.registers // granted) * self.simds // waves
        by_lds = self.lds_bytes // _up(lds_bytes, self.lds_granule) if lds_bytes else None
        groups = max(1, by_registers if by_lds is None else min(by_registers, by_lds))
        limit: Limit = "waves" if by_registers * waves >= self.waves * self.simds else "registers"
        if by_lds is not None and by_lds < by_registers:
            limit = "LDS"
        return Occupancy(
            waves_per_simd=min(self.waves, math.ceil(groups * waves / self.simds)),
            workgroups=groups,
            limited_by=limit,
        )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
