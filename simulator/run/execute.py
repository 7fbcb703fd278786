"""Executes a program for a batch of workgroups, all waves in lockstep.

Waves that branch differently run group by group, the group at the lowest address first, so that
they reconverge where the paths join. Waves continue after a barrier when all running waves of the
batch have reached one or have ended.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import numpy as np

from mxc.simulator.code.instruction import EXEC, VCC
from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.state import Waves
from mxc.simulator.run.translate import BasicBlock, TranslatedKernel

_RUNNING, _WAITING, _ENDED = 0, 1, 2
_NEVER = 1 << 60


def execute(
    program: TranslatedKernel,
    w: Waves,
    *,
    limit: int,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Run all waves to their end; return the number of executed instructions.

    limit: the number of instructions after which the kernel is taken to hang. Raises
    SimulationError with the place of the instruction that failed.
    """
    run = _Run(program, w, limit)
    with np.errstate(all="ignore"):
        run.all()
    return run.stepped


class _Run:
    def __init__(self, program: TranslatedKernel, w: Waves, limit: int) -> None:
        self.program, self.w, self.limit = program, w, limit
        self.stepped = 0
        self.state: Array = np.zeros(w.count, np.int8)
        self.next: Array = np.zeros(w.count, np.int64)
        self.next[:] = program.at_address(program.kernel.descriptor.start)

    def all(self) -> None:
        while True:
            running = self.state == _RUNNING
            if not running.any():
                if not (self.state == _WAITING).any():
                    return
                self.release()
                continue
            place = int(self.next[running].min())
            chosen = running & (self.next == place)
            modes = self.w.modes
            if modes is not None:
                # Waves that execute together have one MODE.
                chosen &= modes == modes[chosen.argmax()]
            others = running & ~chosen
            stop = int(self.next[others].min()) if others.any() else _NEVER
            everyone = not others.any() and not (self.state == _WAITING).any()
            self.w.alive = (self.state != _ENDED)[:, None]
            self.w.select(None if everyone and self.w.alive.all() else chosen[:, None])
            self.group(place, stop, chosen)

    def group(self, place: int, stop: int, chosen: Array) -> None:
        """Run the chosen waves until they diverge, wait, end, or reach the position `stop`."""
        blocks = self.program.blocks
        whole = bool(chosen.all())
        while True:
            block = blocks[place]
            self.step(block)
            place = block.follow
            if block.kind == "jump":
                place = block.target
            elif block.kind == "branch":
                taken = self.taken(block.condition)
                if taken.size == 1 or whole:
                    some, every = bool(taken.any()), bool(taken.all())
                else:
                    some, every = bool(taken[chosen].any()), bool(taken[chosen].all())
                if every:
                    place = block.target
                elif some:
                    self.next[chosen] = np.where(
                        np.broadcast_to(taken, len(chosen)), block.target, place
                    )[chosen]
                    return
            elif block.kind == "end":
                self.state[chosen] = _ENDED
                return
            elif block.kind == "barrier":
                self.state[chosen] = _WAITING
                self.next[chosen] = place
                if not whole:
                    return
                self.release()
                continue
            if place >= stop:
                self.next[chosen] = place
                return

    def step(self, block: BasicBlock) -> None:
        w = self.w
        self.stepped += block.count
        if self.stepped > self.limit:
            raise SimulationError(
                f"{self.program.place(block.first)}: more than {self.limit} instructions; "
                "the kernel does not seem to end"
            )
        if w.observer is not None:
            w.observer.block(w, block.first, block.count)
        try:
            block.run(w)
        except SimulationError as error:
            index = self.index_of(error, block)
            raise SimulationError(f"{self.program.place(index)}: {error}") from error
        except Exception as error:
            index = self.index_of(error, block)
            error.add_note(f"while simulating {self.program.place(index)}")
            raise

    def index_of(self, error: Exception, block: BasicBlock) -> int:
        """Return the instruction whose generated line raised an error."""
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == "<kernel>" and frame.lineno:
                return self.program.instruction_at_line(frame.lineno)
        return block.first

    def taken(self, condition: str) -> Array:
        """Return whether each wave takes a branch: bool [waves] or [1]."""
        w = self.w
        if condition.startswith("scc"):
            bit: Array = w.scc[:, 0]
        else:
            index = VCC if condition.startswith("vcc") else EXEC
            bit = ((w.s[index] | w.s[index + 1]) != 0)[:, 0]
        return ~bit if condition.endswith(("0", "execz", "vccz")) else bit

    def release(self) -> None:
        """Let all waves at barriers continue."""
        waiting = self.state == _WAITING
        if self.w.observer is not None:
            self.w.observer.barrier(self.w, waiting, self.next)
        self.state[waiting] = _RUNNING
