"""What a whole GPU has besides its compute units (compute_units.py): how many, clock and memory.

Imports no MLIR and no IREE: a schedule may be chosen by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxc.errors import PassError
from mxc.targets.compute_units import ComputeUnit, Rates, compute_unit
from mxc.targets.matrix_units import MatrixUnit, matrix_unit


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
    def rates(self) -> Rates:
        """Of a unit; where too little is known of them those of CDNA, to rank schedules by."""
        return self.unit.rates or Rates()

    @property
    def matrix(self) -> MatrixUnit:
        """The matrix instructions of the architecture."""
        found = matrix_unit(self.target)
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

    @property
    def bytes_in_flight(self) -> float:
        """What a unit must have asked for at any time, if all are to keep memory busy.

        Little's law: what is on its way is bandwidth times latency.
        """
        return self.memory_bandwidth * self.memory_latency / self.units


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

#: Units (38 on each of eight dies), clock and bandwidth: AMD Instinct MI300X data sheet. Of the
#: latency the same is assumed.
MI300X = Device(
    name="AMD Instinct MI300X",
    target="gfx942",
    units=304,
    clock=2.1e9,
    memory_bandwidth=5.3e12,
    memory_latency=0.8e-6,
    source="AMD Instinct MI300X data sheet",
)

#: 64 compute units are 32 work-group processors. Clock: the highest one. The latency is an
#: assumption: half of that of HBM.
RX9070XT = Device(
    name="AMD Radeon RX 9070 XT",
    target="gfx1201",
    units=32,
    clock=2.97e9,
    memory_bandwidth=640e9,
    memory_latency=0.4e-6,
    source="AMD Radeon RX 9070 XT product page",
)

#: Bandwidth: AMD's announcement of the MI400 series (HBM4, 19.6 TB/s). No more is published: the
#: rest is that of the MI355X, to rank schedules by.
MI400 = Device(
    name="AMD Instinct MI400 series",
    target="gfx1250",
    units=256,
    clock=2.4e9,
    memory_bandwidth=19.6e12,
    memory_latency=0.8e-6,
    source="AMD, Advancing AI 2025; assumptions",
)

DEVICES = (MI355X, MI300X, RX9070XT, MI400)


def device(target: str) -> Device | None:
    """The device that schedules for the GPU called `target` are chosen for; None without one."""
    return next((device for device in DEVICES if device.target == target), None)


def machine(target: str) -> Device:
    """`device`. Raises PassError where there is none, for then no kernel of ours is for it."""
    found = device(target)
    if found is None:
        known = ", ".join(each.target for each in DEVICES)
        raise PassError(f"no kernel of ours is for {target!r}; there are some for {known}")
    return found
