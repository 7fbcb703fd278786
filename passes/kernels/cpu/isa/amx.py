"""AVX-512 beside a unit that multiplies tiles of 16 rows of 64 bytes (AMX)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.formats.formats import ElementFormat
from mxc.kernels.decode import ExponentTable
from mxc.passes.kernels.cpu.isa.avx512 import Avx512


@dataclass(frozen=True)
class Amx(Avx512):
    """AVX-512 multiplies one or two rows, bf16 as f32, and tiles more (cpu/tiles.py). On every
    CPU with tiles that was measured `vdpbf16ps` is slower than multiply-add (targets/cpus.py).

    The operating system gives tiles to a process that asks for them; without permission their first
    instruction ends it.
    """

    bf16: bool = False
    vnni: bool = True
    vbmi: bool = True


@dataclass(frozen=True)
class Exponents(Amx):
    """Lookups of bf16 whose exponent is as large as that of the format can be, and of the least
    integer for both zeros: a scale is subtracted from the bits (kernels/decode.py)."""

    def pair_bits(self, element: ElementFormat) -> NDArray[np.int16]:
        """The bits of kernels/decode.py."""
        found = ExponentTable.of(element.values)
        assert found is not None, f"{element.name} has codes that are no numbers"
        return found.bits
