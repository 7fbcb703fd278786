"""Any CPU: vector operations that LLVM has an answer to everywhere, and no intrinsic."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.formats.formats import ElementFormat
from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.codes import floats_of_codes
from mxc.passes.kernels.cpu.isa.protocol import Grain, Isa


@dataclass(frozen=True)
class Portable(Isa):
    """f32 vectors of 128 bits. Products are rounded before they are added: a CPU may lack fma,
    which would then be a call of a function that no kernel can reach. Of 16 registers, which is the
    fewest that any CPU has, four are for such products."""

    lanes: int = 4
    registers: int = 12
    kinds: tuple[Kind, ...] = ("floats",)
    signed: bool = False

    def decodes(self, bits: int, kind: Kind) -> bool:
        """Everything, as floats."""
        return kind == "floats"

    def chains(self, kind: Kind) -> int:
        """Few: decoding takes longer than a product, and what it needs is in registers."""
        return 4

    def costly(self, bits: int, kind: Kind) -> bool:
        """Always: arithmetic."""
        return True

    def grain(self, kind: Kind, element: ElementFormat) -> Grain:
        """f32 are made one a lane."""
        return "dwords"

    def multiply_add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """Rounded twice."""
        return arith.addf(arith.mulf(a, b), total)

    def floats_of_dwords(self, element: ElementFormat, codes: ir.Value) -> ir.Value:
        """Arithmetic."""
        return floats_of_codes(codes, element, self.lanes)
