"""Compile a scaled matmul, mxfp4 by mxfp4, for gfx950, and print its hot loop in assembly.

No GPU is needed.
"""

import tempfile
from pathlib import Path

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.compiler.emit import emit_assembly
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.scaled import scaled_contraction

M, N, K, BLOCK = 4096, 4096, 4096, 32

with new_context(), ir.Location.unknown():
    module = ir.Module.create()
    i8 = ir.IntegerType.get_signless(8)
    elements, scales = (ir.Type.parse(name) for name in ("f4E2M1FN", "f8E8M0FNU"))
    # A byte holds two elements; the last dimension is a block.
    sides = [ir.RankedTensorType.get([rows, K // BLOCK, BLOCK // 2], i8) for rows in (M, N)]
    by = [ir.RankedTensorType.get([rows, K // BLOCK], i8) for rows in (M, N)]
    with ir.InsertionPoint(module.body):

        @func.FuncOp.from_py_func(sides[0], by[0], sides[1], by[1], name="main")
        def main(x: ir.Value, x_scales: ir.Value, w: ir.Value, w_scales: ir.Value) -> ir.Value:
            """The program: bytes in, f32 [M, N] out."""
            return scaled_contraction(
                unpack(x, elements),
                unpack(w, elements),
                lhs_scale=unpack(x_scales, scales),
                rhs_scale=unpack(w_scales, scales),
                name="proj",
            )

    program = str(module)

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "matmul.mlir"
    file.write_text(program)
    (listing,) = emit_assembly(file, "gfx950")

lines = listing.text.splitlines()
head = [line for line in lines if line.startswith(";")]
begin, end = (number for number, line in enumerate(lines) if "---- hot loop" in line)
loop = lines[begin : end + 1]
print("\n".join([*head[:8], "...", *loop]))
products = [line for line in loop if "v_mfma_scale_f32" in line]
print(f"{len(products)} of {len(loop) - 2} lines of the loop are scaled matrix instructions")
assert products
