"""An AMD GPU as one record: its memory, its compute units and its matrix instructions.

The choice of schedules, the lowering, the time models of the report, and the simulator read the
record. A schedule can be chosen without MLIR. Each GPU has its file in targets/amd/.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxc.targets.compute_unit import ComputeUnit, PipeRates
from mxc.targets.matrix_unit import MatrixUnit

#: Rows of a group of one expert, each from so many pairs of an expert on average on: (pairs, rows),
#: in order, the first from none on (dialects/expert_groups.py).
GroupRows = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The GPU that LLVM calls `name`, with the figures of the product for which schedules are
    chosen.

    `units` compute units at a `clock` in Hz. `workgroup_lds_bytes`: LDS that one workgroup may
    hold. `memory_bandwidth`: bytes per second of all memory. `memory_latency`: seconds from issuing
    a load until its data can be used, when memory is busy; loads in flight must cover it.
    `decoders`: prefixes of mnemonics that convert packed MX elements to wider ones. `extends_f8`:
    IREE can convert 8-bit elements to wider ones there. `group_rows`: those that are
    fastest by the cost model. `elf_machine`: EF_AMDGPU_MACH of its code objects. `unverified`: a
    sentence for reports about code for it that nothing has executed; empty where all has been
    executed.
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
    group_rows: GroupRows
    elf_machine: int
    source: str
    decoders: tuple[str, ...] = ()
    extends_f8: bool = False
    unverified: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for parts that contradict each other."""
        if self.unit.wave != self.matrix.lanes:
            raise ValueError(f"{self.name}: waves of {self.unit.wave} or {self.matrix.lanes}")
        if not 0 < self.workgroup_lds_bytes <= self.unit.lds_bytes:
            raise ValueError(f"{self.name}: a workgroup with more LDS than its compute unit has")
        if min(self.units, self.clock, self.memory_bandwidth, self.memory_latency) <= 0:
            raise ValueError(f"{self.name}: a size or rate that is not positive")
        if self.group_rows[0][0] != 0 or self.group_rows != tuple(sorted(self.group_rows)):
            raise ValueError(f"{self.name}: rows of groups are listed from no pairs on")

    @property
    def rates(self) -> PipeRates:
        """Rates of a compute unit; if not known, those of CDNA, for ranking schedules."""
        return self.unit.rates or PipeRates()

    @property
    def bytes_a_clock(self) -> float:
        """Bytes of memory per clock, for all units together."""
        return self.memory_bandwidth / self.clock

    @property
    def latency_clocks(self) -> float:
        """The memory latency in clocks."""
        return self.memory_latency * self.clock

    @property
    def bytes_in_flight(self) -> float:
        """Bytes that each unit must have in flight to keep memory busy.

        Little's law: bytes in flight are bandwidth times latency.
        """
        return self.memory_bandwidth * self.memory_latency / self.units

    def flops(self, widths: tuple[int, int] | None = None) -> float:
        """Operations per second of the fastest matrix instruction on all units; 0 where no source
        states it. widths: bits of the scaled elements of both operands; None for bf16."""
        forms = self.matrix.forms if widths is None else self.matrix.scaled
        slower = 2 if widths is not None and max(widths) >= 8 else 1
        rates = [2 * f.m * f.n * f.k / (f.clocks * slower) for f in forms if f.clocks]
        return max(rates, default=0.0) * self.unit.simds * self.units * self.clock
