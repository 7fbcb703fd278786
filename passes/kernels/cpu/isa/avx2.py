"""AVX2 with FMA, and AVX-VNNI on it: 8 lanes, 16 registers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import math
from numpy.typing import NDArray

from mxc.dialects import x86
from mxc.formats.formats import ElementFormat
from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.codes import floats_of_codes
from mxc.passes.kernels.cpu.isa import x86_bytes
from mxc.passes.kernels.cpu.isa.protocol import Grain, Isa
from mxc.passes.kernels.cpu.isa.registers import bfloat16_bits, pairs_of_halves


@dataclass(frozen=True)
class Avx2(Isa):
    """AVX2 and FMA. `vnni`: it has vpdpbusd too."""

    vnni: bool
    lanes: int = 8
    registers: int = 16
    kinds: tuple[Kind, ...] = ("quads", "floats")
    signed: bool = False

    def decodes(self, bits: int, kind: Kind) -> bool:
        """Products of int8 by int8 do not fit vpmaddubsw; as floats they are exact too."""
        return kind != "quads" or self.vnni or bits < 8

    def chains(self, kind: Kind) -> int:
        """Latency by throughput, and some more; what vpdpbusd is made of ends in an addition."""
        return 4 if kind == "quads" and not self.vnni else 12

    def costly(self, bits: int, kind: Kind) -> bool:
        """All but quads of 8 bits, and of 4 with vpdpbusd: what stands for it takes registers too,
        and decoding in between sends activations to the stack."""
        return kind != "quads" or bits == 6 or (bits == 4 and not self.vnni)

    def grain(self, kind: Kind, element: ElementFormat) -> Grain:
        """4 and 6 bits are looked up as bytes; more are computed."""
        return "dwords" if element.bits == 8 else "bytes"

    def multiply_add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """vfmadd."""
        return math.fma(a, b, total)

    def dot_quads(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """vpdpbusd, or what it is made of."""
        dot = x86.dot_u8i8 if self.vnni else x86_bytes.dot
        return dot(total, weight, one)

    def quads(self, values: NDArray[np.int8], codes: ir.Value) -> ir.Value:
        """vpshufb."""
        return x86_bytes.look_up(values, codes)

    def pairs_of_bytes(self, element: ElementFormat, codes: ir.Value) -> tuple[ir.Value, ir.Value]:
        """vpshufb gives the low and the high bytes."""
        bits = bfloat16_bits(element.values).view(np.uint16)
        lows, highs = (
            x86_bytes.look_up(half.astype(np.uint8).view(np.int8), codes)
            for half in (bits & 0xFF, bits >> 8)
        )
        return pairs_of_halves(lows, highs, self.lanes)

    def floats_of_dwords(self, element: ElementFormat, codes: ir.Value) -> ir.Value:
        """Arithmetic."""
        return floats_of_codes(codes, element, self.lanes)
