"""What may watch an execution: the sanitizer, counters and traces implement this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.operations import Array

if TYPE_CHECKING:
    from mxc.simulator.run.state import Waves
    from mxc.simulator.run.translate import Program


class Observer:
    """Does nothing. `w.at` is the index of the instruction that executes."""

    #: Whether `before` and `after` are wanted for every instruction, or only the other calls.
    every_instruction = False

    def start(self, w: Waves, program: Program) -> None:
        """Waves begin, with the registers that hardware gives them."""

    def before(self, w: Waves, i: Instruction) -> None:
        """An instruction is about to execute."""

    def after(self, w: Waves, i: Instruction) -> None:
        """An instruction has executed."""

    def block(self, w: Waves, first: int, count: int) -> None:
        """`count` instructions from index `first` on are about to execute."""

    def scalar(self, w: Waves, i: Instruction, address: Array, size: int) -> None:
        """A scalar load of `size` bytes at int64 addresses [waves or 1, 1]."""

    def vector(
        self, w: Waves, i: Instruction, address: Array, lanes: Array | None, size: int, store: bool
    ) -> None:
        """A vector memory access; lanes: those that access, None for all."""

    def load(self, w: Waves, address: Array, lanes: Array | None, size: int) -> None:
        """Bytes of global memory are about to be read, by lanes as above. A vector access may do
        so in parts, and leave out what a buffer's bounds exclude."""

    def store(
        self, w: Waves, address: Array, lanes: Array | None, values: Array, size: int
    ) -> None:
        """They are about to be written; values: uint32 [waves, 64, registers]."""

    def change(self, w: Waves, address: Array, lanes: Array, size: int) -> None:
        """An atomic operation is about to change them."""

    def scratch(self, w: Waves, i: Instruction, place: Array, size: int, store: bool) -> None:
        """An access to scratch at byte offsets of each work item."""

    def local(
        self, w: Waves, i: Instruction, place: Array, size: int, stored: Array | None
    ) -> None:
        """An access to LDS at byte addresses [waves, 64] within the workgroup's allocation.

        stored: the uint32 [waves, 64, registers] that it is about to store (dimensions may be 1);
        None where it loads.
        """

    def local_atomic(self, w: Waves, i: Instruction, place: Array, size: int) -> None:
        """An atomic operation on LDS at byte addresses [waves, 64]."""

    def barrier(self, w: Waves, waiting: Array, places: Array) -> None:
        """Waves (bool [waves]) leave a barrier; places: the index where each one waited."""

    def finish(self, w: Waves) -> None:
        """All waves have ended."""


class Several(Observer):
    """Tells several observers of one execution, in their order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """observers: those that are told."""
        self._observers = tuple(observers)
        self.every_instruction = any(o.every_instruction for o in observers)
        self._close = tuple(o for o in observers if o.every_instruction)

    def start(self, w: Waves, program: Program) -> None:
        """Tell all."""
        for each in self._observers:
            each.start(w, program)

    def before(self, w: Waves, i: Instruction) -> None:
        """Tell those that want every instruction."""
        for each in self._close:
            each.before(w, i)

    def after(self, w: Waves, i: Instruction) -> None:
        """Tell those that want every instruction."""
        for each in self._close:
            each.after(w, i)

    def block(self, w: Waves, first: int, count: int) -> None:
        """Tell all."""
        for each in self._observers:
            each.block(w, first, count)

    def scalar(self, w: Waves, i: Instruction, address: Array, size: int) -> None:
        """Tell all."""
        for each in self._observers:
            each.scalar(w, i, address, size)

    def vector(
        self, w: Waves, i: Instruction, address: Array, lanes: Array | None, size: int, store: bool
    ) -> None:
        """Tell all."""
        for each in self._observers:
            each.vector(w, i, address, lanes, size, store)

    def load(self, w: Waves, address: Array, lanes: Array | None, size: int) -> None:
        """Tell all."""
        for each in self._observers:
            each.load(w, address, lanes, size)

    def store(
        self, w: Waves, address: Array, lanes: Array | None, values: Array, size: int
    ) -> None:
        """Tell all."""
        for each in self._observers:
            each.store(w, address, lanes, values, size)

    def change(self, w: Waves, address: Array, lanes: Array, size: int) -> None:
        """Tell all."""
        for each in self._observers:
            each.change(w, address, lanes, size)

    def scratch(self, w: Waves, i: Instruction, place: Array, size: int, store: bool) -> None:
        """Tell all."""
        for each in self._observers:
            each.scratch(w, i, place, size, store)

    def local(
        self, w: Waves, i: Instruction, place: Array, size: int, stored: Array | None
    ) -> None:
        """Tell all."""
        for each in self._observers:
            each.local(w, i, place, size, stored)

    def local_atomic(self, w: Waves, i: Instruction, place: Array, size: int) -> None:
        """Tell all."""
        for each in self._observers:
            each.local_atomic(w, i, place, size)

    def barrier(self, w: Waves, waiting: Array, places: Array) -> None:
        """Tell all."""
        for each in self._observers:
            each.barrier(w, waiting, places)

    def finish(self, w: Waves) -> None:
        """Tell all."""
        for each in self._observers:
            each.finish(w)
