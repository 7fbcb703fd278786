"""CPU names that the pinned LLVM knows, the features of each that kernels use, and measured rates.

Data for target.py, which refuses other names: given an unknown name, LLVM ends the process (x86-64)
or silently compiles for the oldest CPU (aarch64). A test asks the pinned compiler for every name.

A feature states that an instruction exists, not that it is fast: `RATES` has measured rates.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

#: Bytes of the stack of a worker of IREE, where the scratch of kernels is; a power of two.
STACK_BYTES = 128 << 10

# The features that kernels of this repository use, in the order in which records list them.
_V3 = ("avx2", "fma")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512vl")
_NEON = ("neon",)
KERNEL_FEATURES: dict[str, tuple[str, ...]] = {
    "amdgcn": (),
    "x86_64": (
        *_V4, "avx512vbmi", "avx512vnni", "avx512bf16", "avxvnni", "amx-tile", "amx-int8",
        "amx-bf16",
    ),
    "aarch64": (*_NEON, "dotprod", "bf16", "i8mm", "sve", "sve2"),
}  # fmt: skip

_VNNI = (*_V4, "avx512vnni")
_ICELAKE = (*_V4, "avx512vbmi", "avx512vnni")
_ZEN4 = (*_ICELAKE, "avx512bf16")
_RAPIDS = (*_ZEN4, "avxvnni", "amx-tile", "amx-int8", "amx-bf16")
_HYBRID = (*_V3, "avxvnni")
_DOT = (*_NEON, "dotprod")
_V86 = (*_DOT, "bf16", "i8mm")
_SVE2 = (*_V86, "sve", "sve2")

#: LLVM CPU name -> features, by architecture, as LLVM 24 in IREE 3.13 states them.
CPUS: dict[Literal["x86_64", "aarch64"], dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "x86-64": (), "x86-64-v2": (), "x86-64-v3": _V3, "x86-64-v4": _V4,
        "haswell": _V3, "broadwell": _V3, "skylake": _V3, "skylake-avx512": _V4,
        "cascadelake": _VNNI, "cooperlake": (*_VNNI, "avx512bf16"), "icelake-client": _ICELAKE,
        "icelake-server": _ICELAKE, "tigerlake": _ICELAKE, "rocketlake": _ICELAKE,
        "alderlake": _HYBRID, "raptorlake": _HYBRID, "meteorlake": _HYBRID, "arrowlake": _HYBRID,
        "lunarlake": _HYBRID, "sierraforest": _HYBRID, "sapphirerapids": _RAPIDS,
        "emeraldrapids": _RAPIDS, "graniterapids": _RAPIDS, "diamondrapids": _RAPIDS,
        "znver1": _V3, "znver2": _V3, "znver3": _V3, "znver4": _ZEN4,
        "znver5": (*_ZEN4, "avxvnni"), "znver6": (*_ZEN4, "avxvnni"),
    },
    "aarch64": {
        # LLVM lists no feature for "generic", although Armv8-A without any option has NEON.
        "generic": (),
        "cortex-a72": _NEON, "cortex-a76": _DOT, "cortex-a710": _SVE2, "cortex-x925": _SVE2,
        "neoverse-n1": _DOT, "neoverse-n2": _SVE2, "neoverse-n3": _SVE2,
        "neoverse-v1": (*_V86, "sve"), "neoverse-v2": _SVE2, "neoverse-v3": _SVE2,
        "grace": _SVE2, "a64fx": (*_NEON, "sve"), "ampere1": _V86, "ampere1a": _V86,
        "ampere1b": _V86, "oryon-1": _V86, "apple-m1": _DOT, "apple-m2": _V86, "apple-m3": _V86,
        "apple-m4": _V86,
    },
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CpuRates:
    """Products per clock of one core: f32 by multiply-add, and bf16 by dot product (`vdpbf16ps`).

    `cpus`: LLVM names of the CPUs. `features`: a set that identifies such a CPU where LLVM takes it
    for another one; empty where no set does.
    """

    cpus: tuple[str, ...]
    features: tuple[str, ...] = ()
    fma: int
    bf16: int
    source: str

    def __post_init__(self) -> None:
        """Raise ValueError for rates below 1, or without CPUs or a source."""
        if min(self.fma, self.bf16) < 1 or not self.source or not self.cpus:
            raise ValueError(f"malformed {self}")


#: Measured with 512-bit registers and twelve independent chains of one instruction.
RATES = (
    CpuRates(
        cpus=("sapphirerapids", "emeraldrapids", "graniterapids"),
        # Only Intel has AMX. Virtual machines hide the model number, by which LLVM identifies the
        # CPU.
        features=("avx512bf16", "amx-bf16"),
        fma=32,
        bf16=16,
        source="a Xeon with AMX-BF16: 213 GFLOP/s of fma, 107 of vdpbf16ps, the same in C",
    ),
    CpuRates(
        cpus=("znver5",),
        fma=32,
        bf16=64,
        source="a Zen 5: 257 GFLOP/s of fma, 509 of vdpbf16ps",
    ),
)


def rates_of(chip: str, features: Collection[str]) -> CpuRates | None:
    """Measured rates of the x86-64 CPU that LLVM calls `chip`; None without a measurement.

    features: the features that the CPU really has. If they include a bf16 dot product that the CPU
    of that name lacks, the name is wrong, and the features identify the CPU.
    """
    named = next((each for each in RATES if chip in each.cpus), None)
    if named is not None or "avx512bf16" in CPUS["x86_64"].get(chip, ()):
        return named
    return next((e for e in RATES if e.features and set(e.features) <= set(features)), None)
