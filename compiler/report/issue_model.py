"""Time of one iteration of a hot loop on a compute unit: a model of issue and of shared pipes.

It lives beside the report, which prints its figures for every artifact, because what it reads is
the compiler's assembly. What it knows of the machine is in targets/amd/, with
sources, where a pass that chooses schedules finds it too.

What is modelled: the waves of the workgroups that share a unit, spread over its SIMDs; each wave
issues in order, one instruction every 4 clocks, and a SIMD one of each kind (vector, scalar, LDS,
memory) every 4 clocks, the wave that has waited longest first; one matrix core a SIMD; one port to
LDS and one path to memory for all; s_waitcnt by its counters, of which each is in order; s_barrier
by workgroup; loads to LDS take the LDS port as well. What is not: bank conflicts (the simulator
counts them; `lds_factor` takes them in), caches, registers that are not ready (the compiler has put
waits and s_nop there), clocks that fall under load. Bytes per lane are taken as if all 64 lanes
were active and their addresses adjacent.

A share is the time that the matrix cores work. Like llvm-mca it ranks kernels; unlike it, it also
sees LDS, memory and barriers. docs/gpu-quality.md compares the two.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from mxc.compiler.report.issue_steps import Step
from mxc.targets.compute_unit import ComputeUnit, Rates

#: Iterations after which time is taken, and until when: the first ones fill the pipes. No wave
#: stops before all have got there. An even number between: waits may come in pairs.
_FROM, ITERATIONS = 5, 11
#: Iterations of one wave after which nobody waits for the others any more.
_LAST = 20 * ITERATIONS
#: Clocks between the starts of two waves.
_STAGGER = 8
#: Clocks of a scalar load that hits its cache. Only an order of magnitude is known.
_SCALAR_LATENCY = 200


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One iteration in the steady state: its clocks, and the share of them that each pipe works.

    `shares` has "matrix" and "vector" of a SIMD, "lds" and "memory" of the unit, from 0 to 1.
    `bytes_in_flight` is what has been asked of memory and is not there yet, on average, of a unit.
    """

    clocks: float
    shares: dict[str, float]
    bytes_in_flight: int

    @property
    def matrix_share(self) -> float:
        """What the matrix cores do of what they could."""
        return self.shares["matrix"]

    @property
    def bound_by(self) -> str:
        """The pipe that works most, or "latency" where none works half of the time."""
        busiest = max(self.shares, key=lambda pipe: self.shares[pipe])
        return busiest if self.shares[busiest] >= 0.5 else "latency"


def estimate(
    steps: Sequence[Step],
    unit: ComputeUnit,
    *,
    workgroup_size: int,
    workgroups: int = 1,
    rates: Rates | None = None,
    lds_factor: float = 1.0,
    restart: bool = False,
) -> Estimate:
    """Run a loop on `workgroups` workgroups of `workgroup_size` work-items that share a unit.

    rates: other figures than the unit's; lds_factor: passes over the LDS banks for each that would
    be needed without conflicts; restart: an iteration is a whole kernel, and the wave of the next
    workgroup takes its place. Raises ValueError where the unit has no rates, or nothing to do.
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


#: A unit of a SIMD, or the queue of a pipe that all share.
_Key = tuple[str, int]
_NOTHING: _Key = ("", 0)
#: What must be free for a step to issue.
_KEYS: dict[str, tuple[str, ...]] = {
    "matrix": ("matrix", "vector"),
    "vector": ("vector",),
    "scalar": ("scalar",),
    "lds": ("lds", "LDS queue"),
    "memory": ("memory", "memory queue"),
}


@dataclass
class _Wave:
    simd: int
    group: int
    at: int = 0
    iteration: int = 0
    marks: list[float] = field(default_factory=list)
    vm: list[float] = field(default_factory=list)
    lgkm: list[float] = field(default_factory=list)


class _Run:
    """One run: waves by the time at which they want to issue, and when each pipe is free."""

    def __init__(
        self,
        steps: Sequence[Step],
        unit: ComputeUnit,
        rates: Rates,
        waves: int,
        groups: int,
        lds_factor: float,
        restart: bool,
    ) -> None:
        self.steps, self.rates, self.lanes = steps, rates, unit.wave
        self.lds_factor, self.restart = lds_factor, restart
        self.waves = [_Wave(n % unit.simds, n // waves) for n in range(waves * groups)]
        self.size = waves
        #: When the units of a SIMD take the next instruction: (kind, SIMD).
        self.free: dict[_Key, float] = {}
        #: Until when LDS and the path to memory are busy.
        self.lds = self.memory = 0.0
        #: Waves that something keeps from issuing: since when, and which.
        self.parked: dict[_Key, list[tuple[float, int]]] = {}
        self.called: set[_Key] = set()
        self.arrived: dict[int, list[int]] = {}
        self.byte_clocks = 0.0
        #: When a wave wants to issue, or (with no wave) when what kept others from it may be free.
        self.queue: list[tuple[float, int, _Key]] = []

    def needs(self, step: Step) -> dict[str, float]:
        """Clocks of the shared pipes that a step of one wave takes."""
        size = step.lane_bytes * self.lanes
        found: dict[str, float] = {}
        if step.pipe == "memory":
            found["memory"] = size / self.rates.memory_bytes_per_clock
        if step.pipe == "lds" or step.to_lds:
            found["lds"] = size / self.rates.lds_bytes_per_clock * self.lds_factor
        return found

    def time(self) -> float:
        """Clocks of an iteration, once it is steady, on average over the waves."""
        for number in range(len(self.waves)):
            self._ready(float(number * _STAGGER), number)
        left = len(self.waves)
        while self.queue:
            now, number, key = heapq.heappop(self.queue)
            if number < 0:
                self._wake(now, key)
                continue
            wave = self.waves[number]
            if wave.at == len(self.steps):
                wave.at, wave.iteration = 0, wave.iteration + 1
                if self.restart:
                    wave.vm, wave.lgkm = [], []
                wave.marks.append(now)
                left -= wave.iteration == ITERATIONS
                if not left or wave.iteration == _LAST:
                    break
            self._issue(now, now, number)
        done = [wave.marks for wave in self.waves if len(wave.marks) >= ITERATIONS]
        spans = [marks[ITERATIONS - 1] - marks[_FROM - 1] for marks in done]
        return sum(spans) / len(spans) / (ITERATIONS - _FROM)

    def _ready(self, at: float, number: int) -> None:
        """The wave wants to issue its next step at `at`."""
        heapq.heappush(self.queue, (at, number, _NOTHING))

    def _park(self, since: float, number: int, key: _Key) -> None:
        """The wave waits in line for what `key` stands for."""
        heapq.heappush(self.parked.setdefault(key, []), (since, number))
        self._call(0.0, key)

    def _call(self, now: float, key: _Key) -> None:
        """Wake the first in line when there is room for it, once."""
        if key not in self.called:
            self.called.add(key)
            heapq.heappush(self.queue, (max(now, self._when(key)), -1, key))

    def _wake(self, now: float, key: _Key) -> None:
        """Let the first in line try again, and then call the next."""
        self.called.discard(key)
        line = self.parked[key]
        self._issue(now, *heapq.heappop(line))
        if line:
            self._call(now, key)

    def _issue(self, now: float, since: float, number: int) -> None:
        """Issue the wave's step at `now`, or wait in line for what it needs."""
        wave = self.waves[number]
        step = self.steps[wave.at]
        if step.pipe == "barrier":
            self._arrive(now, number, wave)
            return
        issue = self.rates.issue
        done = now + issue
        if step.pipe == "wait":
            later = max(_came_down(wave.vm, step.vm), _came_down(wave.lgkm, step.lgkm))
            done = max(now, later) + issue
        elif step.pipe == "nop":
            done = now + step.clocks
        else:
            # One line for all SIMDs where they share a queue, so that none is always first.
            needed = [(kind, -1 if "queue" in kind else wave.simd) for kind in _KEYS[step.pipe]]
            last = max(needed, key=self._when)
            if self._when(last) > now:
                self._park(since, number, last)
                return
            self.free[step.pipe, wave.simd] = now + max(issue, step.clocks)
            if step.pipe == "matrix":  # it is issued as a vector instruction
                self.free["vector", wave.simd] = now + issue
            self._transfer(now, wave, step)
        wave.at += 1
        self._ready(done, number)

    def _when(self, key: _Key) -> float:
        """From when on the next instruction can be issued to a unit of a SIMD, or to a queue."""
        if key[0] == "LDS queue":
            return self.lds - self.rates.lds_queue
        if key[0] == "memory queue":
            return self.memory - self.rates.memory_queue
        return self.free.get(key, 0.0)

    def _transfer(self, now: float, wave: _Wave, step: Step) -> None:
        """Take the shared pipes, and note when the data will be there."""
        needs, rates = self.needs(step), self.rates
        if "memory" in needs:
            self.memory = max(self.memory, now) + needs["memory"]
            done = self.memory + rates.memory_latency
            self.byte_clocks += step.lane_bytes * self.lanes * (done - now)
            wave.vm.append(max([done, *wave.vm[-1:]]))
        if "lds" in needs:
            self.lds = max(self.lds, now) + needs["lds"]
        if step.pipe == "lds":
            wave.lgkm.append(max([self.lds + rates.lds_latency, *wave.lgkm[-1:]]))
        if step.pipe == "scalar" and step.lane_bytes:
            wave.lgkm.append(max([now + _SCALAR_LATENCY, *wave.lgkm[-1:]]))

    def _arrive(self, now: float, number: int, wave: _Wave) -> None:
        wave.at += 1
        here = self.arrived.setdefault(wave.group, [])
        here.append(number)
        if len(here) == self.size:
            for each in self.arrived.pop(wave.group):
                self._ready(now + self.rates.barrier, each)


def _came_down(pending: list[float], wanted: int | None) -> float:
    """When no more than `wanted` of the pending are left; those that are done are forgotten."""
    if wanted is None or len(pending) <= wanted:
        return 0.0
    last = pending[len(pending) - wanted - 1]
    del pending[: len(pending) - wanted - 1]
    return last
