# RUN: %python %s | filecheck %s
"""The tile instructions of an attention kernel on AMX: each is one of its products, none a spill.

Scores of 64 keys of 64 elements, in two planes, are 16 products: once for the first tile of rows;
for 16 keys of the next tile 4, beside weights of the first block of keys and of each later one.
Values times a quarter of the weights are 4: of the block before, and four times of the last one.
"""

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

# CHECK: tdpbf16ps: 44
# Stores: 4 of scores, twice 1 of the next tile, 4 of sums.
# CHECK: tilestored: 10
# Loads: 4 of queries and 8 of keys, twice 4 and 2, and five times 1 of weights and 4 of values.
# CHECK: tileloadd: 49
# Weights are computed between the products.
# CHECK: multiply-adds between two products: True


def program() -> bytes:
    """Rows of eight query heads over pages of bf16."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        f32, bf16, i32 = ir.F32Type.get(), ir.BF16Type.get(), ir.IntegerType.get_signless(32)
        some = ir.ShapedType.get_dynamic_size()
        shapes = [
            ([some, 8, 8, 64], f32), ([8, 8], f32), ([some], i32), ([some, 3], i32),
            ([some, 2, 64, 8, 64], bf16), ([some, some], i32),
        ]  # fmt: skip
        kinds = [ir.RankedTensorType.get(shape, kind) for shape, kind in shapes]

        def main(q: ir.Value, sinks: ir.Value, *given: ir.Value) -> ir.Value:
            rows, pages = Runs(*given[:2]), Pages(*given[2:])
            return attention(
                q, sinks, rows, pages, (0, 1), mixed=64, reach=None, scale=0.1, bits=16
            )

        with ir.InsertionPoint(module.body):
            func.FuncOp.from_py_func(*kinds, name="main")(main)
        return str(module).encode()


with tempfile.TemporaryDirectory() as folder:
    compiler = iree.Compiler(target("cpu:sapphirerapids"), program(), Path(folder))
    run((LowerNamedOperationsToCpuKernels(lanes=16, tiles=True),), compiler.module)
    for phase in iree.PHASES[: iree.PHASES.index("hal") + 1]:
        compiler.run_to(phase)
    (text,) = iree.assembly(Path(folder))

names = [line.split()[0] for line in text.splitlines() if line.strip()]
for name in ("tdpbf16ps", "tilestored", "tileloadd"):
    print(f"{name}: {names.count(name)}")
between = [part.split() for part in re.split("tdpbf16ps", " ".join(names))]
print(
    "multiply-adds between two products:",
    any(
        len(part) < 1000 and sum(name.startswith("vfmadd") for name in part) > 64
        for part in between
    ),
)
