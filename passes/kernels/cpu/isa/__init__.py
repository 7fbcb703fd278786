"""The instruction sets for which kernels are written.

A kernel is written once, for registers of `lanes` columns (protocol.py). An instruction set defines
which kinds of dot product it has, and how packed codes become operands of them. All read the same
packed panels: a register takes `lanes` of the 16 columns of a panel.
"""

from __future__ import annotations

from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.isa.amx import Amx, Exponents
from mxc.passes.kernels.cpu.isa.avx2 import Avx2
from mxc.passes.kernels.cpu.isa.avx512 import Avx512
from mxc.passes.kernels.cpu.isa.neon import Neon
from mxc.passes.kernels.cpu.isa.portable import Portable
from mxc.passes.kernels.cpu.isa.protocol import Grain, Isa
from mxc.passes.kernels.cpu.isa.registers import halves, pair
from mxc.targets.target import Target

__all__ = [
    "AMX_FEATURES", "ISAS", "Amx", "Exponents", "Grain", "Isa", "Kind", "best_isa", "halves",
    "pair",
]  # fmt: skip

#: The instruction sets by name.
ISAS: dict[str, Isa] = {
    "amx-bf16": Amx(),
    "avx512-bf16": Avx512(bf16=True, vnni=True, vbmi=True),
    "avx512-bf16-bw": Avx512(bf16=True, vnni=True, vbmi=False),
    "avx512-vnni": Avx512(bf16=False, vnni=True, vbmi=True),
    "avx512-vnni-bw": Avx512(bf16=False, vnni=True, vbmi=False),
    "avx512": Avx512(bf16=False, vnni=False, vbmi=False),
    "avx2-vnni": Avx2(vnni=True),
    "avx2": Avx2(vnni=False),
    "neon-bf16": Neon(dotprod=True, bf16=True),
    "neon-dotprod": Neon(dotprod=True, bf16=False),
    "neon": Neon(dotprod=False, bf16=False),
    "portable": Portable(),
}

_V3 = {"avx2", "fma"}
_AVX512_BF16 = {"avx512bw", "avx512bf16", "avx512vnni", "avx512vbmi"}

#: The features that "amx-bf16" needs. When the runtime loads such a program, it asks the operating
#: system for permission to use tiles.
AMX_FEATURES = _AVX512_BF16 | {"amx-tile", "amx-bf16"}

#: Architecture -> the names of its instruction sets, best first, and the LLVM features of each.
_FEATURES: dict[str, dict[str, set[str]]] = {
    "x86_64": {
        "amx-bf16": AMX_FEATURES,
        "avx512-bf16": _AVX512_BF16,
        "avx512-bf16-bw": {"avx512bw", "avx512bf16", "avx512vnni"},
        "avx512-vnni": {"avx512bw", "avx512vnni", "avx512vbmi"},
        "avx512-vnni-bw": {"avx512bw", "avx512vnni"},
        "avx512": {"avx512bw"},
        "avx2-vnni": {*_V3, "avxvnni"},
        "avx2": _V3,
        "portable": set(),
    },
    # Armv8-A has NEON; LLVM does not list it for "generic".
    "aarch64": {"neon-bf16": {"dotprod", "bf16"}, "neon-dotprod": {"dotprod"}, "neon": set()},
}


def best_isa(target: Target) -> str | None:
    """The name of the best instruction set of a target; None for GPUs.

    An instruction set with bf16 dot products is skipped where these are no faster than
    multiply-add.
    """
    sets = _FEATURES.get(target.architecture, {})
    return next(
        (
            name
            for name, needed in sets.items()
            if needed <= set(target.features)
            and not (target.slow_bf16 and "pairs" in ISAS[name].kinds)
        ),
        None,
    )
