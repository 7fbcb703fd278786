"""The CPU names that the pinned LLVM knows, the features of each that a kernel looks at, and rates.

Data for target.py. The list is the gate: given an unknown name LLVM ends the process (x86-64) or
silently compiles for the oldest CPU (aarch64). A test asks the pinned compiler for every name.

A feature says that an instruction exists, not that it is fast: `RATES` has what was measured.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

# The features that a kernel of ours looks at, in the order that records list them.
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
        # LLVM lists no feature for "generic"; Armv8-A without any option has NEON all the same.
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
class Rates:
    """Products per clock of one core: f32 by multiply-add, and bf16 by dot product (`vdpbf16ps`).

    `cpus`: LLVM names of the CPUs. `features`: those that together tell such a CPU where LLVM
    takes it for another one; empty where nothing does.
    """

    cpus: tuple[str, ...]
    features: tuple[str, ...] = ()
    fma: int
    bf16: int
    source: str

    def __post_init__(self) -> None:
        """Refuse a record that could not be meant."""
        if min(self.fma, self.bf16) < 1 or not self.source or not self.cpus:
            raise ValueError(f"malformed {self}")


#: What was measured, 512-bit registers, twelve independent chains of one instruction.
RATES = (
    Rates(
        cpus=("sapphirerapids", "emeraldrapids", "graniterapids"),
        # Only Intel has AMX; virtual machines hide the model, which LLVM goes by.
        features=("avx512bf16", "amx-bf16"),
        fma=32,
        bf16=16,
        source="a Xeon with AMX-BF16: 213 GFLOP/s of fma, 107 of vdpbf16ps, the same in C",
    ),
    Rates(
        cpus=("znver5",),
        fma=32,
        bf16=64,
        source="a Zen 5: 257 GFLOP/s of fma, 509 of vdpbf16ps",
    ),
)


def rates_of(chip: str, features: Collection[str]) -> Rates | None:
    """What was measured on the x86-64 CPU that LLVM calls `chip`; None where nothing was.

    features: what it really has. Where the CPU of that name has no dot product of bf16 and this
    one has, the name is wrong, and the features decide.
    """
    named = next((each for each in RATES if chip in each.cpus), None)
    if named is not None or "avx512bf16" in CPUS["x86_64"].get(chip, ()):
        return named
    return next((e for e in RATES if e.features and set(e.features) <= set(features)), None)
