"""An AMD GPU as one record: its memory, its compute units and its matrix instructions.

The choice of schedules, the lowering, the report's models of time, and the simulator read it; a
schedule may be chosen without MLIR. Each GPU has its file in targets/amd/.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxc.targets.compute_unit import ComputeUnit, Rates
from mxc.targets.matrix_unit import MatrixUnit


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The GPU that LLVM calls `name`, as in the product for which schedules are chosen.

    `units` compute units at a `clock` in Hz. `workgroup_lds_bytes`: of LDS that one workgroup may
    hold. `memory_bandwidth`: bytes per second of all memory. `memory_latency`: seconds from a
    load's issue to the data being there when memory is busy; what is asked for within it must keep
    memory busy. `decoders`: mnemonic prefixes that turn packed MX elements into wider ones.
    `extends_f8`: IREE can turn 8-bit elements into wider ones there. `elf_machine`: EF_AMDGPU_MACH
    of its code objects. `unverified`: what of its code nothing has executed, a sentence for
    reports; empty where all has been.
    """

    name: str
    product: str
    unit: ComputeUnit
    matrix: MatrixUnit
    units: int
    clock: float
    workgroup_lds_bytes: int
    memory_bandwidth: float
    memory_latency: float
    elf_machine: int
    source: str
    decoders: tuple[str, ...] = ()
    extends_f8: bool = False
    unverified: str = ""

    def __post_init__(self) -> None:
        """Refuse parts that contradict each other."""
        if self.unit.wave != self.matrix.lanes:
            raise ValueError(f"{self.name}: waves of {self.unit.wave} or {self.matrix.lanes}")
        if not 0 < self.workgroup_lds_bytes <= self.unit.lds_bytes:
            raise ValueError(f"{self.name}: a workgroup with more LDS than its compute unit has")
        if min(self.units, self.clock, self.memory_bandwidth, self.memory_latency) <= 0:
            raise ValueError(f"{self.name}: a size or rate that is not positive")

    @property
    def rates(self) -> Rates:
        """Rates of a unit; where too little is known those of CDNA, to rank schedules by."""
        return self.unit.rates or Rates()

    @property
    def bytes_a_clock(self) -> float:
        """Bytes of memory per clock, for all units together."""
        return self.memory_bandwidth / self.clock

    @property
    def latency_clocks(self) -> float:
        """Clocks of memory_latency."""
        return self.memory_latency * self.clock

    @property
    def bytes_in_flight(self) -> float:
        """What a unit must have asked for at any time, if all are to keep memory busy.

        Little's law: what is on its way is bandwidth times latency.
        """
        return self.memory_bandwidth * self.memory_latency / self.units

    def flops(self, widths: tuple[int, int] | None = None) -> float:
        """Operations a second of the fastest matrix instruction on all units; 0 where no source
        says. widths: bits of the elements of both sides, under their scales; None for bf16."""
        forms = self.matrix.forms if widths is None else self.matrix.scaled
        slower = 2 if widths is not None and max(widths) >= 8 else 1
        rates = [2 * f.m * f.n * f.k / (f.clocks * slower) for f in forms if f.clocks]
        return max(rates, default=0.0) * self.unit.simds * self.units * self.clock
