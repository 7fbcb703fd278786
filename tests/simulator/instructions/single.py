"""Execution of one instruction on registers that a test fills: assembled by LLVM, then decoded and
translated."""

from collections.abc import Callable, Iterable

import numpy as np

from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.operations import Array
from mxc.simulator.memory.spaces import Bytes, Memory
from mxc.simulator.run.lines import Lines
from mxc.simulator.run.state import Waves
from mxc.simulator.run.translate import TranslatedKernel, instruction_lines

Assemble = Callable[..., CodeObjectKernel]
#: MODE: round to nearest even, keep denormals, clamp NaN to zero, IEEE.
MODE = 0x3F0


def decoded(assemble: Assemble, lines: Iterable[str]) -> dict[str, Instruction]:
    """Assemble and decode some lines; return the instruction of each line."""
    texts = list(lines)
    found = TranslatedKernel(assemble("\n".join([*texts, "s_endpgm"]), 1)).instructions
    # The compiler may put instructions before those of the lines.
    return dict(zip(texts, found[-len(texts) - 1 : -1], strict=True))


def waves(count: int = 1, *, mode: int = MODE, lds: int = 0) -> Waves:
    """Return the waves of one workgroup with undefined registers and `lds` bytes of LDS."""
    shared = Bytes(np.zeros(max(4, lds), np.uint8))
    w = Waves(count, 256, 64, Memory(), shared, Bytes(np.zeros(4, np.uint8)))
    w.mode, w.lds_size = mode, lds
    return w


def apply(i: Instruction, w: Waves, *, changes_mode: bool = False) -> None:
    """Execute one instruction."""
    lines = Lines(w.mode, changes_mode=changes_mode)
    source = "\n ".join(["def run(w):", "s, v, a = w.s, w.v, w.a", *instruction_lines(lines, i)])
    exec(source, lines.names)
    with np.errstate(all="ignore"):
        lines.names["run"](w)


def register(w: Waves, index: int, bank: str = "v") -> Array:
    """Return a vector register as uint32 [waves, 64]."""
    return np.array(np.broadcast_to(w.bank(bank)[index], w.shape))


def fill(w: Waves, index: int, columns: Array, bank: str = "v") -> None:
    """Fill n consecutive registers from uint32 [waves, 64, n]."""
    for n in range(columns.shape[-1]):
        w.bank(bank)[index + n] = np.ascontiguousarray(columns[..., n], np.uint32)
