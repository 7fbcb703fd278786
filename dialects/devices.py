"""What a whole GPU has besides its compute units (compute_units.py): how many, clock and memory.

Imports no MLIR and no IREE: a schedule may be chosen by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxc.dialects.compute_units import ComputeUnit, compute_unit


@dataclass(frozen=True, kw_only=True)
class Device:
    """`units` compute units of the architecture `target` at a `clock` in Hz.

    `memory_bandwidth`: bytes a second of all memory. `memory_latency`: seconds from a load's issue
    to the data being there, when memory is busy; what is asked for within it must keep memory busy.
    """

    name: str
    target: str
    units: int
    clock: float
    memory_bandwidth: float
    memory_latency: float
    source: str

    @property
    def unit(self) -> ComputeUnit:
        """One of its compute units."""
        found = compute_unit(self.target)
        assert found is not None
        return found

    @property
    def bytes_a_clock(self) -> float:
        """Of memory, for all units together."""
        return self.memory_bandwidth / self.clock

    @property
    def latency_clocks(self) -> float:
        """Clocks of memory_latency."""
        return self.memory_latency * self.clock


#: Units (32 on each of eight dies), clock and bandwidth: AMD Instinct MI355X data sheet. The
#: latency is an assumption, twice that of compute_units.py; it was not measured on this device.
MI355X = Device(
    name="AMD Instinct MI355X",
    target="gfx950",
    units=256,
    clock=2.4e9,
    memory_bandwidth=8e12,
    memory_latency=0.8e-6,
    source="AMD Instinct MI355X data sheet",
)
