"""Any CPU: vector operations that LLVM can lower everywhere, and no intrinsics."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.formats.formats import ElementFormat
from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.isa.protocol import Grain, Isa


@dataclass(frozen=True)
class Portable(Isa):
    """f32 vectors of 128 bits. Products are rounded before they are added: a CPU may lack fma,
    which would become a call of a function that a kernel cannot reach. Four of 16 registers, the
    fewest that any CPU has, are reserved for such products."""

    lanes: int = 4
    registers: int = 12
    kinds: tuple[Kind, ...] = ("floats",)
    signed: bool = False

    def decodes(self, bits: int, kind: Kind) -> bool:
        """All elements, as floats."""
        return kind == "floats"

    def chains(self, kind: Kind) -> int:
        """Few: decoding takes longer than a product, and its operands are in registers."""
        return 4

    def costly(self, bits: int, kind: Kind) -> bool:
        """Always, since codes are decoded by arithmetic."""
        return True

    def grain(self, kind: Kind, element: ElementFormat) -> Grain:
        """f32 are decoded one per lane."""
        return "dwords"

    def multiply_add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """Multiply, then add, rounded twice."""
        return a * b + total
