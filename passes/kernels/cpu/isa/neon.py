"""AArch64 with NEON, and its dot products: 4 lanes, 32 registers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import math, vector
from numpy.typing import NDArray

from mxc.dialects import aarch64
from mxc.formats.formats import ElementFormat
from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.isa.protocol import Grain, Isa
from mxc.passes.kernels.cpu.isa.registers import bfloat16_bits
from mxc.passes.kernels.vectors import bitcast, i8, splat, table

#: Bytes of a register; TBL looks up in one to four of them.
_BYTES = 16


@dataclass(frozen=True)
class Neon(Isa):
    """NEON, which every AArch64 CPU has. `dotprod`: SDOT. `bf16`: BFDOT."""

    dotprod: bool
    bf16: bool
    lanes: int = 4
    registers: int = 32
    signed: bool = True

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of dot product that the features provide."""
        found: list[Kind] = []
        found += ["quads"] if self.dotprod else []
        found += ["pairs"] if self.bf16 else []
        return (*found, "floats")

    def decodes(self, bits: int, kind: Kind) -> bool:
        """True for all elements and kinds."""
        return True

    def chains(self, kind: Kind) -> int:
        """The latency of a dot product times its throughput, and some more."""
        return 12

    def costly(self, bits: int, kind: Kind) -> bool:
        """True for all kinds but quads."""
        return kind != "quads"

    def grain(self, kind: Kind, element: ElementFormat) -> Grain:
        """Bytes, which TBL looks up; dwords for codes of 8 bits, as TBL has no table of 256."""
        return "dwords" if element.bits == 8 else "bytes"

    def multiply_add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """FMLA."""
        return math.fma(a, b, total)

    def dot_pairs(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """BFDOT."""
        return aarch64.dot_bf16(total, weight, one)

    def dot_quads(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """SDOT."""
        return aarch64.dot_i8(total, weight, one)

    def quads(self, values: NDArray[np.int8], codes: ir.Value) -> ir.Value:
        """Look up bytes: TBL of one register, or of four."""
        return self._look_up(values, codes)

    def pairs_of_bytes(self, element: ElementFormat, codes: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Look up the low and the high bytes with TBL, and interleave them with TRN1 and TRN2."""
        bits = bfloat16_bits(element.values)
        low, high = (
            self._look_up(half.astype(np.uint8).view(np.int8), codes)
            for half in (bits & 0xFF, bits >> 8 & 0xFF)
        )
        first, second = (
            vector.shuffle(low, high, [at for i in range(p, _BYTES, 2) for at in (i, _BYTES + i)])
            for p in range(2)
        )
        kind = ir.BF16Type.get()
        return bitcast(first, kind, 2 * self.lanes), bitcast(second, kind, 2 * self.lanes)

    def _look_up(self, values: NDArray[np.int8], codes: ir.Value) -> ir.Value:
        """values[codes]; bits above those of the codes are cleared first."""
        tables = [table(part, i8()) for part in values.reshape(-1, _BYTES)]
        mask = splat(values.size - 1, i8(), _BYTES)
        return aarch64.look_up_bytes(tables, codes & mask)
