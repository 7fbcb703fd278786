"""AVX-512 with a unit that multiplies tiles of 16 rows of 64 bytes (AMX)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.dialects import x86
from mxc.formats.formats import ElementFormat
from mxc.kernels.decode import ExponentTable
from mxc.passes.kernels.cpu.isa.avx512 import Avx512
from mxc.passes.kernels.vectors import bitcast, i8, i16, lanes_of, table


@dataclass(frozen=True)
class Amx(Avx512):
    """AVX-512 with tiles. Products with one or two rows run on AVX-512, with bf16 as f32; products
    with more rows on tiles (cpu/tiles.py). On every measured CPU with tiles, `vdpbf16ps` is slower
    than multiply-add (targets/cpus.py).

    The operating system grants tiles to a process that asks for them. Without permission, the first
    tile instruction ends the process.
    """

    bf16: bool = False
    vnni: bool = True
    vbmi: bool = True

    def shifted_codes(self, codes: ir.Value, bits: int) -> ir.Value:
        """Shift words by vpmultishiftqb. It runs on port 5 of Intel's cores; vpsrlw, vpermw and
        vpsubsw, with which weights are decoded, wait for port 0."""
        if not bits or ir.VectorType(codes.type).element_type != i16():
            return super().shifted_codes(codes, bits)
        size = 2 * lanes_of(codes)
        places = np.add.outer(np.arange(0, 64, 16), np.arange(0, 16, 8)) + bits
        found = x86.shift_out_bytes(
            table(np.resize((places & 63).astype(np.int8), size), i8()), bitcast(codes, i8(), size)
        )
        return bitcast(found, i16(), size // 2)


@dataclass(frozen=True)
class Exponents(Amx):
    """AMX with lookups for scales that are subtracted from exponents: values are multiplied so that
    the largest has the largest exponent of bf16, and both zeros are the least integer
    (kernels/decode.py)."""

    def pair_bits(self, element: ElementFormat) -> NDArray[np.int16]:
        """The bits of the `ExponentTable` of kernels/decode.py."""
        found = ExponentTable.of(element.values)
        assert found is not None, f"{element.name} has codes that are no numbers"
        return found.bits
