"""What a compute unit holds and how fast its pipes are: one frozen record an architecture.

Imports no MLIR and no IREE: a schedule may be chosen by it, and a report judged by it. Sizes are in
bytes, times in clocks of the unit, registers are counted a lane. Where the sources disagree the
record has the slower figure, and says so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

Limit = Literal["registers", "LDS", "waves"]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How fast the pipes of one compute unit are.

    issue: clocks between two instructions of one wave, and of one kind on one SIMD;
    transcendental: clocks that a SIMD needs for a wave of v_exp, v_rcp, ..;
    lds_bytes, memory_bytes: a clock, between LDS or the L1 path and the registers of all SIMDs;
    lds_latency, memory_latency: clocks from the end of the transfer to the data being there;
    lds_queue, memory_queue: clocks by which a pipe may lag before issuing to it stalls;
    barrier: clocks from the last wave's arrival to the first wave's going on;
    """

    issue: int = 4
    transcendental: int = 16
    lds_bytes: int = 128
    lds_latency: int = 64
    lds_queue: int = 64
    memory_bytes: int = 64
    memory_latency: int = 1000
    memory_queue: int = 128
    barrier: int = 16


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """How many waves of a kernel one SIMD holds, how many workgroups the unit, and what limits."""

    waves_per_simd: int
    workgroups: int
    limited_by: Limit


@dataclass(frozen=True, kw_only=True)
class ComputeUnit:
    """What the workgroups that share an LDS share: a compute unit, on RDNA a work-group processor.

    registers: vector registers a lane that the waves of one SIMD share, accumulation registers
    among them; a wave gets whole groups of `register_granule`. lds_bytes: what its workgroups
    share, given out in pieces of `lds_granule`. `rates` is None where nothing is known well enough.
    """

    targets: tuple[str, ...]
    wave: int
    registers: int
    register_granule: int
    waves: int
    lds_bytes: int
    lds_granule: int
    source: str
    simds: int = 4
    rates: Rates | None = None

    def occupancy(self, *, registers: int, lds_bytes: int, workgroup_size: int) -> Occupancy:
        """Of a kernel with so many registers a lane, LDS bytes a workgroup, and work-items.

        A part of a workgroup does not run. A kernel that fits once always runs once.
        """
        waves = max(1, math.ceil(workgroup_size / self.wave))
        granted = _up(max(1, registers), self.register_granule)
        by_registers = min(self.waves, self.registers // granted) * self.simds // waves
        by_lds = self.lds_bytes // _up(lds_bytes, self.lds_granule) if lds_bytes else None
        groups = max(1, by_registers if by_lds is None else min(by_registers, by_lds))
        limit: Limit = "waves" if by_registers * waves >= self.waves * self.simds else "registers"
        if by_lds is not None and by_lds < by_registers:
            limit = "LDS"
        return Occupancy(
            waves_per_simd=min(self.waves, math.ceil(groups * waves / self.simds)),
            workgroups=groups,
            limited_by=limit,
        )


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


# What AMD's CDNA documents and the compiler's tables say, and what others measured:
# - issue, transcendental: CDNA4 ISA guide, 2 and 4 (a wave of 64 on a SIMD of 16 lanes is 4 clocks;
#   each SIMD is looked at every 4th clock and then issues one instruction a kind, of different
#   waves: AMD's GCN white paper). Transcendental functions at a quarter of that: LLVM
#   SISchedule.td, WriteTrans32.
# - lds_bytes: CDNA4 ISA guide, 11.1: 32 reads of 32 bits at once. The same chapter has 64 banks,
#   and microbenchmarks of gfx950 get 180 to 210 bytes a clock, so this errs on the safe side.
# - lds_latency: LLVM SISchedule.td, WriteLDS ("can be between 2 and 64").
# - memory_bytes: ROCm Compute Profiler, vector L1 cache: 64 bytes a clock and unit.
# - memory_latency: what threads see of a load under load on gfx950 and gfx942 is about 1000 clocks
#   (public thread traces); LLVM has 80 for an unloaded hit. Models are run from 500 to 3000.
# - lds_queue, memory_queue, barrier: assumptions; a share changes by less than 0.03 between half
#   and twice of them for the kernels in docs/gpu-quality.md.
#: Every unit. Registers, granules, LDS: LLVM AMDGPUBaseInfo.cpp; CDNA4 ISA guide, 2.2.1 and 3.6.4
#: (512 registers a lane with the accumulation ones, in groups of 8; 160 KiB of LDS).
UNITS = (
    ComputeUnit(
        targets=("gfx950",), wave=64, registers=512, register_granule=8, waves=8,
        lds_bytes=160 * 1024, lds_granule=1280, rates=Rates(),
        source="AMD CDNA4 ISA guide; LLVM AMDGPUBaseInfo.cpp",
    ),
    ComputeUnit(
        targets=("gfx942",), wave=64, registers=512, register_granule=8, waves=8,
        lds_bytes=64 * 1024, lds_granule=512, rates=Rates(),
        source="AMD CDNA3 ISA guide; LLVM AMDGPUBaseInfo.cpp",
    ),
    ComputeUnit(
        targets=("gfx1201",), wave=32, registers=1536, register_granule=24, waves=16,
        lds_bytes=128 * 1024, lds_granule=512,
        source="AMD RDNA4 ISA guide; LLVM AMDGPUBaseInfo.cpp",
    ),
    ComputeUnit(
        targets=("gfx1250",), wave=32, registers=1024, register_granule=16, waves=16,
        lds_bytes=320 * 1024, lds_granule=1024,
        source="LLVM AMDGPUBaseInfo.cpp",
    ),
)  # fmt: skip


def compute_unit(target: str) -> ComputeUnit | None:
    """The unit of the GPU called `target`; None for a CPU."""
    return next((unit for unit in UNITS if target in unit.targets), None)


_FORM = re.compile(r"^v_s?mfma[c_]\w*?_(\d+x\d+x\d+(?:_\d+b)?)_(\w+)$")
#: Clocks of a matrix instruction by its form: CDNA4 ISA guide, table 28, and the sparse one in
#: 7.1.9; CDNA3 ISA guide, table 28, which agrees where it has the form. All elements of a form take
#: the same time, but for those of 8 bits in the forms for f8f6f4: twice.
_CLOCKS = {
    "32x32x1_2b": 64, "16x16x1_4b": 32, "4x4x1_16b": 8, "32x32x2": 64, "16x16x4": 32,
    "32x32x4_2b": 64, "16x16x4_4b": 32, "4x4x4_16b": 8, "32x32x8": 32, "16x16x16": 16,
    "32x32x4": 32, "16x16x8": 16, "4x4x4_4b": 32, "16x16x32": 16, "32x32x16": 32,
    "16x16x64": 16, "32x32x32": 32, "16x16x128": 16, "32x32x64": 32,
}  # fmt: skip
#: Codes of cbsz (A) and blgp (B) that stand for 8 bits in an f8f6f4 instruction: CDNA4 ISA, 7.1.5.
_EIGHT_BITS = (0, 1)


def matrix_clocks(mnemonic: str, operands: str) -> int | None:
    """Clocks for which an MFMA instruction occupies its matrix core; None if it is none.

    "v_mfma_scale_f32_16x16x128_f8f6f4" with "cbsz:4 blgp:4" among its operands is 16, with one
    operand of 8 bits 32. Raises KeyError for a form that no table has.
    """
    found = _FORM.match(mnemonic)
    if found is None:
        return None
    form, element = found.groups()
    if element == "f8f6f4":
        wide = any(_field(operands, name) in _EIGHT_BITS for name in ("cbsz", "blgp"))
        return _CLOCKS[form] * (2 if wide else 1)
    return 64 if (form, element) == ("16x16x4", "f64") else _CLOCKS[form]


def _field(operands: str, name: str) -> int:
    found = re.search(rf"\b{name}:(\d+)", operands)
    return int(found[1]) if found else 0
