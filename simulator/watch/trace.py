"""Traces one wave: every instruction that it executes, and the registers that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

import numpy as np

from mxc.simulator.code.instruction import EXEC, Instruction
from mxc.simulator.code.text import text
from mxc.simulator.compute.operations import Array
from mxc.simulator.run.state import Waves
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.observe import Observer


class Trace(Observer):
    """Writes one line for each instruction that a wave executes.

    A line is the address, the line of the source if it is known, the instruction, and after ";"
    its results in hexadecimal: one word for a scalar register, 64 for a vector register, and EXEC
    where lanes are inactive.
    """

    every_instruction = True

    def __init__(self, file: TextIO, wave: int = 0) -> None:
        """file: receives the lines. wave: number of the wave in the whole grid, by workgroup."""
        self._file = file
        self._wanted = wave
        self._before = 0
        self._count = 0
        self._lines: Mapping[int, str] = {}

    def start(self, w: Waves, program: TranslatedKernel) -> None:
        """Begin a batch of workgroups; write a heading if the wave is in it."""
        self._before, self._count = self._before + self._count, w.count
        self._lines = program.kernel.lines
        if self._here():
            size = program.kernel.workgroup
            self._file.write(
                f"# {program.kernel.name}, workgroup size {size}, wave {self._wanted}\n"
            )

    def after(self, w: Waves, i: Instruction) -> None:
        """Write the line of an instruction if the wave has executed it."""
        row = self._wanted - self._before
        if not self._here() or (w.active is not None and not w.active[row, 0]):
            return
        line = self._lines.get(i.address)
        words = [f"{i.address:#x}{f' ({line})' if line else ''}: {text(i)}"]
        for operand in i.results:
            for bank, index in operand.registers():
                values = _row(w.bank(bank)[index], row)
                words.append(f"{bank}{index}={' '.join(f'{int(v):08x}' for v in values)}")
        lanes = w.lanes[row]
        if not lanes.all():
            mask = int(_row(w.s[EXEC], row)[0]) | int(_row(w.s[EXEC + 1], row)[0]) << 32
            words.append(f"exec={mask:016x}")
        self._file.write(" ; ".join(words) + "\n")

    @property
    def waves(self) -> int:
        """Number of waves that have begun; a wave with a higher number does not exist."""
        return self._before + self._count

    def _here(self) -> bool:
        return self._before <= self._wanted < self._before + self._count


def _row(value: Array, row: int) -> Array:
    return np.asarray(value[min(row, len(value) - 1)])
