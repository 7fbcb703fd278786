"""The interface of observers of an execution, which sanitizer, counters and traces implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.operations import Array

if TYPE_CHECKING:
    from mxc.simulator.run.state import Waves
    from mxc.simulator.run.translate import TranslatedKernel


class Observer:
    """Base class of observers, which does nothing. `w.at`: index of the executing instruction."""

    #: Whether `before` and `after` are called for every instruction.
    every_instruction = False

    def start(self, w: Waves, program: TranslatedKernel) -> None:
        """Called when the waves of a batch begin, in their initial state."""

    def before(self, w: Waves, i: Instruction) -> None:
        """Called before an instruction executes."""

    def after(self, w: Waves, i: Instruction) -> None:
        """Called after an instruction has executed."""

    def block(self, w: Waves, first: int, count: int) -> None:
        """Called before `count` instructions from index `first` on execute."""

    def scalar(self, w: Waves, i: Instruction, address: Array, size: int) -> None:
        """Called for a scalar load of `size` bytes at int64 addresses [waves or 1, 1]."""

    def vector(
        self, w: Waves, i: Instruction, address: Array, lanes: Array | None, size: int, store: bool
    ) -> None:
        """Called for a vector memory access; lanes: the accessing lanes, None for all."""

    def load(self, w: Waves, address: Array, lanes: Array | None, size: int) -> None:
        """Called before lanes read bytes of global memory.

        A vector access may read in parts, and omits bytes outside of a buffer's bounds.
        """

    def store(
        self, w: Waves, address: Array, lanes: Array | None, values: Array, size: int
    ) -> None:
        """Called before lanes write global memory; values: uint32 [waves, 64, registers]."""

    def change(self, w: Waves, address: Array, lanes: Array, size: int) -> None:
        """Called before an atomic operation of lanes on global memory."""

    def scratch(self, w: Waves, i: Instruction, place: Array, size: int, store: bool) -> None:
        """Called for an access to scratch at byte offsets of each work item."""

    def local(
        self, w: Waves, i: Instruction, place: Array, size: int, stored: Array | None
    ) -> None:
        """Called for an access to LDS at byte addresses [waves, 64] in the workgroup's allocation.

        stored: the uint32 [waves, 64, registers] to be stored (dimensions may be 1); None for a
        load.
        """

    def local_atomic(self, w: Waves, i: Instruction, place: Array, size: int) -> None:
        """Called for an atomic operation on LDS at byte addresses [waves, 64]."""

    def barrier(self, w: Waves, waiting: Array, places: Array) -> None:
        """Called when waves (bool [waves]) leave a barrier; places: the index where each waited."""

    def finish(self, w: Waves) -> None:
        """Called when all waves have ended."""


class ObserverGroup(Observer):
    """Forwards every call to several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """observers: the observers to call."""
        self._observers = tuple(observers)
        self.every_instruction = any(o.every_instruction for o in observers)
        self._close = tuple(o for o in observers if o.every_instruction)

    def start(self, w: Waves, program: TranslatedKernel) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.start(w, program)

    def before(self, w: Waves, i: Instruction) -> None:
        """Forward the call to the observers with `every_instruction`."""
        for each in self._close:
            each.before(w, i)

    def after(self, w: Waves, i: Instruction) -> None:
        """Forward the call to the observers with `every_instruction`."""
        for each in self._close:
            each.after(w, i)

    def block(self, w: Waves, first: int, count: int) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.block(w, first, count)

    def scalar(self, w: Waves, i: Instruction, address: Array, size: int) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.scalar(w, i, address, size)

    def vector(
        self, w: Waves, i: Instruction, address: Array, lanes: Array | None, size: int, store: bool
    ) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.vector(w, i, address, lanes, size, store)

    def load(self, w: Waves, address: Array, lanes: Array | None, size: int) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.load(w, address, lanes, size)

    def store(
        self, w: Waves, address: Array, lanes: Array | None, values: Array, size: int
    ) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.store(w, address, lanes, values, size)

    def change(self, w: Waves, address: Array, lanes: Array, size: int) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.change(w, address, lanes, size)

    def scratch(self, w: Waves, i: Instruction, place: Array, size: int, store: bool) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.scratch(w, i, place, size, store)

    def local(
        self, w: Waves, i: Instruction, place: Array, size: int, stored: Array | None
    ) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.local(w, i, place, size, stored)

    def local_atomic(self, w: Waves, i: Instruction, place: Array, size: int) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.local_atomic(w, i, place, size)

    def barrier(self, w: Waves, waiting: Array, places: Array) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.barrier(w, waiting, places)

    def finish(self, w: Waves) -> None:
        """Forward the call to all observers."""
        for each in self._observers:
            each.finish(w)
