"""Instructions that read or write other state of a wave than its registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.state import Waves

Step = Callable[[Waves], None]
Reader = Callable[[Operand], Callable[[Waves], Array]]
_HWREG_MODE = 1


def special_step(i: Instruction, read: Reader) -> Step | None:
    """Return the step of s_getpc_b64, and of s_setreg and s_getreg of MODE; None for others."""
    if i.name == "s_getpc_b64":
        return _program_counter(i)
    if i.name in ("s_setreg_b32", "s_setreg_imm32_b32"):
        return _set_mode(i, read)
    if i.name == "s_getreg_b32":
        return _get_mode(i)
    return None


def _program_counter(i: Instruction) -> Step:
    target, address = i.results[0].index, i.address + i.size
    low = np.array([[address & 0xFFFFFFFF]], np.uint32)
    high = np.array([[address >> 32]], np.uint32)

    def step(w: Waves) -> None:
        w.s[target] = w.put_scalar(w.s[target], low)
        w.s[target + 1] = w.put_scalar(w.s[target + 1], high)

    return step


def _get_mode(i: Instruction) -> Step | None:
    word = i.has("hwreg")
    register, first, size = word & 63, word >> 6 & 31, (word >> 11 & 31) + 1
    if register != _HWREG_MODE:
        return None
    target = i.results[0].index

    def step(w: Waves) -> None:
        value = np.array([[w.mode >> first & (1 << size) - 1]], np.uint32)
        w.s[target] = w.put_scalar(w.s[target], value)

    return step


def _set_mode(i: Instruction, read: Reader) -> Step | None:
    """Return the step of s_setreg of MODE, which must change MODE alike for all executing waves."""
    word = i.has("hwreg")
    register, first, size = word & 63, word >> 6 & 31, (word >> 11 & 31) + 1
    if register != _HWREG_MODE:
        return None
    value = read(i.operands[0])
    mask = ((1 << size) - 1) << first

    def step(w: Waves) -> None:
        wanted = value(w)
        if wanted.size != 1:
            raise SimulationError("waves that set MODE differently are not modelled")
        w.set_mode(w.mode & ~mask | int(wanted.flat[0]) << first & mask)

    return step
