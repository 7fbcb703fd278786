"""Run a custom pass between passes of mxc and of IREE on a program in memory.

IREE then compiles and runs the result in this process.
"""

from dataclasses import dataclass
from math import frexp, isfinite

import numpy as np
from iree import runtime
from iree.compiler import ir
from iree.compiler.api import Output, Session
from iree.compiler.dialects import arith

from mxc import passes

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
PROGRAM = """
func.func @scaled(%x: tensor<8xf32>) -> tensor<8xf32> {
  %four = arith.constant dense<4.0> : tensor<8xf32>
  %y = arith.divf %x, %four : tensor<8xf32>
  return %y : tensor<8xf32>
}
"""


@passes.register
@dataclass(frozen=True)
class MultiplyByReciprocals(passes.Pass):
    """Replaces divisions by a power of two by products, which are exact and faster.

    `largest`: the largest divisor that is replaced.
    """

    name = "example-multiply-by-reciprocals"
    largest: int = 1024

    def run(self, module: ir.Operation) -> None:
        """Rewrite every division by a constant of one repeated element."""
        found = []

        def look(op: ir.Operation) -> ir.WalkResult:
            if op.name == "arith.divf":
                found.append(op)
            return ir.WalkResult.ADVANCE

        module.walk(look)
        for op in found:
            divisor = self._divisor(op.operands[1])
            if divisor is None:
                continue
            with ir.InsertionPoint(op), op.location:
                one = ir.FloatAttr.get(ir.F32Type.get(), 1 / divisor)
                splat = ir.DenseElementsAttr.get_splat(op.results[0].type, one)
                product = arith.mulf(op.operands[0], arith.constant(splat.type, splat))
            op.results[0].replace_all_uses_with(product)
            op.erase()

    def _divisor(self, value: ir.Value) -> float | None:
        """Return the power of two that all elements of a constant are, or None."""
        op = value.owner
        if isinstance(op, ir.Block) or op.name != "arith.constant":
            return None
        attribute = op.attributes["value"]
        if not isinstance(attribute, ir.DenseFPElementsAttr) or not attribute.is_splat:
            return None
        number = ir.FloatAttr(attribute.get_splat_value()).value
        exact = isfinite(number) and frexp(number)[0] == 0.5
        return number if exact and number <= self.largest else None


session = Session()
session.set_flags(*FLAGS)
with session.context:
    module = ir.Module.parse(PROGRAM)
text = "mxc-check-operations, example-multiply-by-reciprocals{largest=64}, canonicalize, cse"
for timing in passes.run(passes.parse(text), module):
    print(f"{timing.seconds * 1e3:6.1f} ms  {timing.spec}")
print(module)
assert "arith.mulf" in str(module)
assert "arith.divf" not in str(module)

invocation = session.invocation()
invocation.enable_console_diagnostics()
invocation.import_module(module.operation)
assert invocation.execute()
output = Output.open_membuffer()
invocation.output_vm_bytecode(output)
compiled = runtime.load_vm_flatbuffer(bytes(output.map_memory()), driver="local-sync")
x = np.arange(8, dtype=np.float32)
y = compiled.scaled(x).to_host()
print(y)
assert (y == x / 4).all()
