"""AVX-512 with BF16, beside a unit that multiplies tiles of 16 rows of 64 bytes (AMX)."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.passes.kernels.cpu.isa.avx512 import Avx512


@dataclass(frozen=True)
class Amx(Avx512):
    """What few rows take is AVX-512, bf16 as f32: on every CPU with tiles that was measured
    `vdpbf16ps` is slower (dialects/cpus.py). Tiles are for kernels of the kernel language.

    The operating system gives tiles to a process that asks for them; without permission their first
    instruction ends it.
    """

    bf16: bool = False
    vnni: bool = True
    vbmi: bool = True
