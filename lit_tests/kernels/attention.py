# RUN: %python %s | filecheck %s
"""The loops of an attention kernel in assembly: multiply-adds on whole registers and no spills."""

import re
import tempfile
from pathlib import Path

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.compiler import iree
from mxc.dialects.attention import Runs, attention
from mxc.dialects.context import new_context
from mxc.dialects.pages import Pages
from mxc.passes.base import run
from mxc.passes.lower_named_operations_to_cpu_kernels import LowerNamedOperationsToCpuKernels
from mxc.targets.target import target

# Eight rows times two registers: of each step of D, the keys are loaded and the queries broadcast.
# CHECK: AVX-512: 64 multiply-adds on zmm, 0 on other registers, 0 spills
# CHECK: vbroadcastss {{.*}}, %zmm
# CHECK: vfmadd231ps %zmm{{.*}}, %zmm{{.*}}, %zmm
# bf16 values are extended in registers; a weight is broadcast and used for two of them.
# CHECK: AVX-512: 16 multiply-adds on zmm, 0 on other registers, 0 spills
# CHECK: vpmovzxwd {{.*}}, %zmm
# CHECK: vpslld $16
# CHECK: vbroadcastss {{.*}}, %zmm
# CHECK: vfmadd231ps %zmm{{.*}}, %zmm{{.*}}, %zmm
# The same where a value may be infinite.
# CHECK: AVX-512: 16 multiply-adds on zmm, 0 on other registers, 0 spills

# Four rows times two registers, which are half as wide.
# CHECK: AVX2: 32 multiply-adds on ymm, 0 on other registers, 0 spills
# CHECK: AVX2: 8 multiply-adds on ymm, 0 on other registers, 0 spills
# CHECK: vpmovzxwd {{.*}}, %ymm

# Registers of four lanes.
# CHECK: NEON: 32 multiply-adds on .4s, 0 on other registers, 0 spills
# CHECK: NEON: 8 multiply-adds on .4s, 0 on other registers, 0 spills


#: A multiply-add.
PRODUCT = "vfmadd|fmla"


def program() -> bytes:
    """Rows of eight query heads over pages of bf16."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        f32, bf16, i32 = ir.F32Type.get(), ir.BF16Type.get(), ir.IntegerType.get_signless(32)
        some = ir.ShapedType.get_dynamic_size()
        shapes = [
            ([some, 2, 8, 64], f32), ([2, 8], f32), ([some], i32), ([some, 3], i32),
            ([some, 2, 64, 2, 64], bf16), ([some, some], i32),
        ]  # fmt: skip
        kinds = [ir.RankedTensorType.get(shape, kind) for shape, kind in shapes]

        def main(q: ir.Value, sinks: ir.Value, *given: ir.Value) -> ir.Value:
            rows, pages = Runs(*given[:2]), Pages(*given[2:])
            return attention(q, sinks, rows, pages, (0, 1), mixed=64, reach=None, scale=0.1)

        with ir.InsertionPoint(module.body):
            func.FuncOp.from_py_func(*kinds, name="main")(main)
        return str(module).encode()


def loops(text: str) -> list[list[str]]:
    """The instructions of each innermost loop, in the order of the text."""
    lines = [line.strip() for line in text.splitlines()]
    at = {line[:-1]: number for number, line in enumerate(lines) if re.match(r"\.LBB\w+:$", line)}
    found: list[list[str]] = []
    begun = -1
    for number, line in enumerate(lines):
        jump = re.match(r"(?:j\w+|b\.\w+|cbn?z|tbn?z)\s.*?(\.LBB\w+)$", line)
        start = at.get(jump[1], number) if jump else number
        if begun < start < number:
            found.append(lines[start : number + 1])
            begun = start
    return found


def show(title: str, name: str, lanes: int, register: str) -> None:
    """Compile for a target and print the loops that multiply most."""
    with tempfile.TemporaryDirectory() as folder:
        compiler = iree.Compiler(target(name), program(), Path(folder))
        run((LowerNamedOperationsToCpuKernels(lanes=lanes),), compiler.module)
        for phase in iree.PHASES[: iree.PHASES.index("hal") + 1]:
            compiler.run_to(phase)
        text = next(text for text in iree.assembly(Path(folder)) if re.search(PRODUCT, text))
    for loop in loops(text):
        products = [line for line in loop if re.match(PRODUCT, line)]
        whole = sum(register in line for line in products)
        # Scratch memory is on the stack too, but is read with an index. Whether workgroups copy
        # values may be compared in memory.
        spill = r"mm\d.*\(%r[sb]p\)|\(%r[sb]p\).*mm\d|[qv]\d.*\[sp"
        spills = sum(re.search(spill, line) is not None for line in loop)
        if len(products) >= max(8, lanes // 2) and len(products) * 8 > len(loop):
            print(f"{title}: {whole} multiply-adds on {register}, {len(products) - whole} on other "
                  f"registers, {spills} spills")  # fmt: skip
            print("\n".join(re.sub(r"\s+", " ", line) for line in loop))


show("AVX-512", "cpu:znver5", 16, "zmm")
show("AVX2", "cpu:x86-64-v3", 8, "ymm")
show("NEON", "cpu:neoverse-n1", 4, ".4s")
