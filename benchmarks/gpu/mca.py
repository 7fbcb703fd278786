"""Runs llvm-mca on a hot loop: an optional tool, which supports gfx950 since LLVM 20.

Debian 12 has it: `apt install llvm-22`. Without root: `apt-get download llvm-22 libllvm22`, then
`dpkg -x` of both to a folder, and LD_LIBRARY_PATH at its usr/lib/x86_64-linux-gnu and
usr/lib/llvm-22/lib. Versions before LLVM 20 refuse gfx950.

llvm-mca models the issue of one wave with the latencies of LLVM's scheduling model, in which a
barrier takes 500 and a load 80 of its cycles (4 clocks each), and a matrix instruction on 8-bit
operands takes as long as on 4-bit operands. It does not model LDS and memory bandwidth, or other
waves.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxc.compiler.report.loops import LoopInstruction
from mxc.targets.mfma_clocks import matrix_clocks

#: The first version that has a model of gfx950.
FIRST = 20
#: Clocks of the compute unit in one of llvm-mca's cycles.
_CLOCKS = 4
_NAMES = ("llvm-mca", *(f"llvm-mca-{version}" for version in range(30, FIRST - 1, -1)))


@dataclass(frozen=True)
class Share:
    """The share of the cycles in which the matrix core works, at the start of a loop and later.

    cold: over the first 20 iterations, with the latencies of their start and of barriers. steady:
    over the next 20 iterations.
    """

    cold: float
    steady: float


def find(given: str | None) -> str | None:
    """Return the command `given`, or the first on the path that is new enough; None if none is.

    Raises SystemExit if `given` is too old or cannot be run.
    """
    for name in (given,) if given else _NAMES:
        found = shutil.which(name)
        version = _version(found) if found else 0
        if version >= FIRST:
            return found
        if given:
            raise SystemExit(
                f"{given}: wanted llvm-mca {FIRST} or later, found {version or 'none'}"
            )
    return None


def _version(command: str) -> int:
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"LLVM version (\d+)", done.stdout)
    return int(found[1]) if found else 0


def share(command: str, loop: Sequence[LoopInstruction], chip: str) -> Share | None:
    """Run llvm-mca on a loop, and return how busy the matrix core is.

    The work of the matrix core is that of AMD's tables: operands of 8 bits count twice. None if
    llvm-mca does not know an instruction of the loop, or the loop has no matrix instruction.
    """
    work = sum(matrix_clocks(line.mnemonic, line.operands) or 0 for line in loop) / _CLOCKS
    cycles = [_cycles(command, loop, chip, iterations) for iterations in (20, 40)]
    if None in cycles or not work:
        return None
    first, both = (each or 0 for each in cycles)
    return Share(min(1.0, work / (first / 20)), min(1.0, work / ((both - first) / 20)))


def _cycles(
    command: str, loop: Sequence[LoopInstruction], chip: str, iterations: int
) -> int | None:
    text = "\n".join(f"{line.mnemonic} {line.operands}" for line in loop) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "loop.s"
        file.write_text(text)
        words = [
            "-mtriple=amdgcn-amd-amdhsa",
            f"-mcpu={chip}",
            f"-iterations={iterations}",
            str(file),
        ]
        done = subprocess.run([command, *words], capture_output=True, text=True, check=False)
    found = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    return int(found[1]) if found and not done.returncode else None
