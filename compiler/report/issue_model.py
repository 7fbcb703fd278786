"""Time of one iteration of a hot loop on a GPU's compute unit: a model of issue and shared pipes.

The model is beside the report, which has its figures for every artifact, because its input is the
compiler's assembly. The rates of machines are in targets/amd/, with sources, where a pass that
chooses schedules reads them too.

Modelled: the waves of all workgroups of a compute unit, spread over its SIMDs. Each wave issues in
order, one instruction every 4 clocks. A SIMD issues one instruction of each kind (vector, scalar,
LDS, memory) every 4 clocks, from the wave that has waited longest. Each SIMD has one matrix core,
beside which it issues no vector instruction in the first 8 clocks, and some not at all; all share
one LDS port and one path to memory. s_waitcnt waits for in-order counters, s_barrier for
the workgroup. Loads to LDS also take the LDS port. Not modelled: bank conflicts (the simulator
counts them; `lds_factor` includes them), caches, registers that are not ready (the compiler has put
waits and s_nop there), clocks that fall under load. All 64 lanes are taken as active with adjacent
addresses.

A share is the part of the time in which a pipe is busy. Like llvm-mca the model ranks kernels;
unlike it, it includes LDS, memory and barriers. docs/gpu-quality.md compares the two.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mxc.compiler.report.issue_steps import IssueStep
from mxc.targets.compute_unit import ComputeUnit, PipeRates

#: Iterations between which the time is measured: the first ones fill the pipes. No wave stops
#: before all have done ITERATIONS. The difference is even, because waits may come in pairs.
_FROM, ITERATIONS = 5, 11
#: Number of iterations of one wave after which the run ends without waiting for the others.
_LAST = 20 * ITERATIONS
#: Clocks between the starts of two waves.
_STAGGER = 8
#: Clocks of a scalar load that hits its cache; only the order of magnitude is known.
_SCALAR_LATENCY = 200


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimate of one iteration in the steady state: its clocks, and the share in which each pipe
    is busy.

    `shares` has "matrix" and "vector" of a SIMD, "lds" and "memory" of the compute unit, from 0 to
    1. `bytes_in_flight` is the mean number of bytes of the unit's outstanding memory operations.
    """

    clocks: float
    shares: dict[str, float]
    bytes_in_flight: int

    @property
    def matrix_share(self) -> float:
        """Share of the time in which the matrix cores are busy."""
        return self.shares["matrix"]

    @property
    def bound_by(self) -> str:
        """The busiest pipe, or "latency" if none is busy half of the time."""
        busiest = max(self.shares, key=lambda pipe: self.shares[pipe])
        return busiest if self.shares[busiest] >= 0.5 else "latency"


def estimate(
    steps: Sequence[IssueStep],
    unit: ComputeUnit,
    *,
    workgroup_size: int,
    workgroups: int = 1,
    rates: PipeRates | None = None,
    lds_factor: float = 1.0,
    restart: bool = False,
) -> Estimate:
    """Estimate a loop run by `workgroups` workgroups of `workgroup_size` work-items on one unit.

    rates: replaces the unit's rates. lds_factor: passes over the LDS banks relative to those
    without conflicts. restart: an iteration is a whole kernel, and a wave of the next workgroup
    follows. Raises ValueError if no rates are known, or if `steps` is empty.
    """
    rates = rates or unit.rates
    if rates is None or not steps:
        raise ValueError("no rates of the compute unit are known, or the loop is empty")
    waves = max(1, -(-workgroup_size // unit.wave))
    run = _Run(steps, unit, rates, waves, workgroups, lds_factor, restart)
    clocks = run.time()
    count = waves * workgroups
    busy = dict.fromkeys(("matrix", "vector", "lds", "memory"), 0.0)
    for step in steps:
        if step.pipe in ("matrix", "vector"):
            busy[step.pipe] += step.clocks * count / unit.simds
        else:
            for pipe, needed in run.needs(step).items():
                busy[pipe] += needed * count
    iterations = sum(wave.iteration for wave in run.waves)
    return Estimate(
        clocks=clocks,
        shares={pipe: min(1.0, needed / clocks) for pipe, needed in busy.items()},
        bytes_in_flight=round(run.byte_clocks / iterations * count / clocks),
    )


def waits(
    steps: Sequence[IssueStep], unit: ComputeUnit, *, workgroup_size: int, workgroups: int = 1
) -> list[float]:
    """Return the clocks that one wave waits after each step, in addition to the clocks of issue, in
    one iteration of the steady state. Raises as `estimate`.
    """
    if unit.rates is None or not steps:
        raise ValueError("no rates of the compute unit are known, or the loop is empty")
    count = max(1, -(-workgroup_size // unit.wave))
    run = _Traced(steps, unit, unit.rates, count, workgroups, 1.0, restart=False)
    run.time()
    between = (later - now for now, later in itertools.pairwise(run.issued))
    return [clocks - unit.rates.issue for clocks in between]


#: The units of a SIMD and the queues that must be free before a step of each pipe can issue. The
#: SIMDs have one queue for a pipe that they share, so that no SIMD always comes first.
_UNITS: dict[str, tuple[str, ...]] = {
    "matrix": ("matrix", "vector"),
    "vector": ("vector",),
    "vector alone": ("vector", "matrix"),
    "scalar": ("scalar",),
    "lds": ("lds", "LDS queue"),
    "memory": ("memory", "memory queue"),
}


@dataclass(frozen=True)
class _Demand:
    """The units and clocks that a step takes, computed before the run. `places`: for each SIMD, the
    units and queues that must be free, as indices in `_Run.free`. `busy`: clocks for which the
    first and the second of them are busy. `memory`, `lds`: clocks of the shared pipes; None where
    the step does not use them. `latency`: clocks until the data arrives that lgkmcnt counts, from
    the end of the LDS transfer, or from the issue of a scalar load; None for other steps.
    `transfers`: whether `memory`, `lds` or `latency` is not None."""

    step: IssueStep
    places: tuple[tuple[int, ...], ...]
    busy: tuple[float, ...]
    memory: float | None
    lds: float | None
    latency: float | None
    transfers: bool


#: (time, wave that wants to issue, -1) or (time, -1, unit that may be free then).
_Event = tuple[float, int, int]


@dataclass(slots=True)
class _Wave:
    simd: int
    group: int
    at: int = 0
    iteration: int = 0
    marks: list[float] = field(default_factory=list)
    vm: list[float] = field(default_factory=list)
    lgkm: list[float] = field(default_factory=list)


class _Run:
    """One simulation: waves ordered by the time of their next issue, and when each pipe is free.

    A run has up to 60,000 steps. What depends on a step alone is worked out once (`_Demand`), and
    units and queues are numbers.
    """

    def __init__(
        self,
        steps: Sequence[IssueStep],
        unit: ComputeUnit,
        rates: PipeRates,
        waves: int,
        groups: int,
        lds_factor: float,
        restart: bool,
    ) -> None:
        self.rates, self.issue, self.lanes = rates, rates.issue, unit.wave
        self.lds_factor, self.restart = lds_factor, restart
        self.waves = [_Wave(n % unit.simds, n // waves) for n in range(waves * groups)]
        self.size = waves
        simds = unit.simds
        #: The index in `free` of each queue, and of the first SIMD's unit; the other SIMDs' follow.
        self.first: dict[str, int] = {}
        count = 0
        for name in sorted({name for names in _UNITS.values() for name in names}):
            self.first[name] = count
            count += 1 if "queue" in name else simds
        #: When each unit of a SIMD, or a queue, takes the next instruction.
        self.free = [0.0] * count
        self.lds_queue, self.memory_queue = self.first["LDS queue"], self.first["memory queue"]
        self.free[self.lds_queue] = -float(rates.lds_queue)
        self.free[self.memory_queue] = -float(rates.memory_queue)
        #: When LDS and the path to memory become free.
        self.lds = self.memory = 0.0
        #: Waiting waves by the unit they wait for: (start of the wait, wave).
        self.parked: list[list[tuple[float, int]]] = [[] for _ in self.free]
        self.called = [False] * len(self.free)
        self.arrived: dict[int, list[int]] = {}
        self.byte_clocks = 0.0
        self.queue: list[_Event] = []
        self.demands = [self._demand(step, simds) for step in steps]

    def _demand(self, step: IssueStep, simds: int) -> _Demand:
        needs = self.needs(step)
        names = _UNITS.get("vector alone" if step.alone else step.pipe, ())
        busy = [max(self.rates.issue, step.clocks)] * 2
        if step.pipe == "matrix":
            busy[1] = self.rates.matrix_start
        latency: float | None = None
        if step.pipe == "lds":
            latency = self.rates.lds_latency
        elif step.pipe == "scalar" and step.lane_bytes:
            latency = _SCALAR_LATENCY
        memory, lds = needs.get("memory"), needs.get("lds")
        return _Demand(
            step=step,
            places=tuple(
                tuple(self.first[name] + (0 if "queue" in name else simd) for name in names)
                for simd in range(simds)
            ),
            busy=tuple(busy),
            memory=memory,
            lds=lds,
            latency=latency,
            transfers=any(each is not None for each in (memory, lds, latency)),
        )

    def needs(self, step: IssueStep) -> dict[str, float]:
        """Return the clocks of each shared pipe that a step of one wave takes."""
        size = step.lane_bytes * self.lanes
        found: dict[str, float] = {}
        if step.pipe == "memory":
            found["memory"] = size / self.rates.memory_bytes_per_clock
        if step.pipe == "lds" or step.to_lds:
            found["lds"] = size / self.rates.lds_bytes_per_clock * self.lds_factor
        return found

    def time(self) -> float:
        """Return the mean clocks of a steady iteration over all waves."""
        queue, waves, count = self.queue, self.waves, len(self.demands)
        for number in range(1, len(waves)):
            heapq.heappush(queue, (float(number * _STAGGER), number, -1))
        left = len(waves)
        event: _Event | None = (0.0, 0, -1)
        while event is not None:
            now, number, place = event
            if number < 0:
                event = self._wake(now, place)
            else:
                wave = waves[number]
                if wave.at == count:
                    wave.at, wave.iteration = 0, wave.iteration + 1
                    if self.restart:
                        wave.vm, wave.lgkm = [], []
                    wave.marks.append(now)
                    left -= wave.iteration == ITERATIONS
                    if not left or wave.iteration == _LAST:
                        break
                event = self._issue(now, now, number)
            if event is not None:
                event = heapq.heappushpop(queue, event)
            elif queue:
                event = heapq.heappop(queue)
        done = [wave.marks for wave in waves if len(wave.marks) >= ITERATIONS]
        intervals = [marks[ITERATIONS - 1] - marks[_FROM - 1] for marks in done]
        return sum(intervals) / len(intervals) / (ITERATIONS - _FROM)

    def _wake(self, now: float, place: int) -> _Event | None:
        """Let the first wave that waits for a unit try again, and schedule the next."""
        self.called[place] = False
        line = self.parked[place]
        event = self._issue(now, *heapq.heappop(line))
        if line and not self.called[place]:
            self.called[place] = True
            heapq.heappush(self.queue, (max(now, self.free[place]), -1, place))
        return event

    def _issue(self, now: float, since: float, number: int) -> _Event | None:
        """Issue the wave's step at `now`, or queue the wave for the unit that is busy longest.
        Returns the event that follows from it, if any.
        """
        wave = self.waves[number]
        demand = self.demands[wave.at]
        free = self.free
        places = demand.places[wave.simd]
        if places:
            first = last = places[0]
            if len(places) > 1 and free[places[1]] > free[first]:
                last = places[1]
            if free[last] > now:
                heapq.heappush(self.parked[last], (since, number))
                if self.called[last]:
                    return None
                self.called[last] = True
                return free[last], -1, last
            done = now + self.issue
            free[first] = now + demand.busy[0]
            if demand.transfers:
                self._transfer(now, wave, demand)
            elif len(places) > 1:
                free[places[1]] = now + demand.busy[1]
        else:
            step = demand.step
            if step.pipe == "wait":
                later = max(_came_down(wave.vm, step.vm), _came_down(wave.lgkm, step.lgkm))
                done = max(now, later) + self.issue
            elif step.pipe == "nop":
                done = now + step.clocks
            else:
                self._arrive(now, number, wave)
                return None
        wave.at += 1
        return done, number, -1

    def _transfer(self, now: float, wave: _Wave, demand: _Demand) -> None:
        """Occupy the shared pipes, and record when the data arrives."""
        rates = self.rates
        if demand.memory is not None:
            self.memory = max(self.memory, now) + demand.memory
            self.free[self.memory_queue] = self.memory - rates.memory_queue
            done = self.memory + rates.memory_latency
            self.byte_clocks += demand.step.lane_bytes * self.lanes * (done - now)
            _arrives(wave.vm, done)
        if demand.lds is not None:
            self.lds = max(self.lds, now) + demand.lds
            self.free[self.lds_queue] = self.lds - rates.lds_queue
        if demand.latency is not None:
            _arrives(wave.lgkm, (now if demand.lds is None else self.lds) + demand.latency)

    def _arrive(self, now: float, number: int, wave: _Wave) -> None:
        wave.at += 1
        here = self.arrived.setdefault(wave.group, [])
        here.append(number)
        if len(here) == self.size:
            for each in self.arrived.pop(wave.group):
                heapq.heappush(self.queue, (now + self.rates.barrier, each, -1))


class _Traced(_Run):
    """A simulation that notes when the first wave issues each step of an iteration of the steady
    state, and the first step of the next one."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.issued: list[float] = []

    def _issue(self, now: float, since: float, number: int) -> _Event | None:
        wave = self.waves[number]
        at, iteration = wave.at, wave.iteration
        event = super()._issue(now, since, number)
        counted = (iteration, at) == (_FROM + 1, 0) or iteration == _FROM
        if number == 0 and wave.at != at and counted:
            self.issued.append(now)
        return event


def _arrives(pending: list[float], done: float) -> None:
    """Add the time of an arrival: data arrives in the order in which it was asked for."""
    pending.append(max(done, pending[-1]) if pending else done)


def _came_down(pending: list[float], wanted: int | None) -> float:
    """Return when at most `wanted` entries of `pending` are outstanding, and drop finished ones."""
    if wanted is None or len(pending) <= wanted:
        return 0.0
    last = pending[len(pending) - wanted - 1]
    del pending[: len(pending) - wanted - 1]
    return last
