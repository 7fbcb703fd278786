# RUN: %python %s | filecheck %s
"""The inner loop of a product on tiles in assembly, for each format of weights.

Four tiles of sums stay in registers while a chunk of K is multiplied: no tile is stored in the loop,
and none waits on the stack. Weights are decoded by vectors before. Of 17 to 32 rows sums stay there
for all of K: four tiles are stored when they begin, and four when they end.
"""

import re
import tempfile
from pathlib import Path

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.compiler import iree
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import block_format
from mxc.passes.base import run
from mxc.passes.lower_to_cpu_kernels import LowerToCpuKernels
from mxc.targets.target import target

# CHECK: mxfp4 bf16: loops of 4 tdpbf16ps, 4 loads of tiles, 0 stores of tiles; scales by subtraction
# CHECK: mxfp4 f32: loops of 4 tdpbf16ps, 4 loads of tiles, 0 stores of tiles; scales by subtraction
# CHECK: mxfp6e2m3 bf16: loops of 4 tdpbf16ps, 4 loads of tiles, 0 stores of tiles; scales by subtraction
# CHECK: mxfp6e3m2 bf16: loops of 4 tdpbf16ps, 4 loads of tiles, 0 stores of tiles; scales by subtraction
# CHECK: mxfp8e4m3 bf16: loops of 4 tdpbf16ps, 4 loads of tiles, 0 stores of tiles; scales by product
# CHECK: mxint8 bf16: loops of 4 tdpbf16ps, 4 loads of tiles, 0 stores of tiles; scales by subtraction
# CHECK: nvfp4 bf16: loops of 4 tdpbf16ps, 4 loads of tiles, 0 stores of tiles; scales by product
# CHECK: mxfp4 bf16, 32 rows: loops of 4 tdpbf16ps, 4 loads of tiles, 0 stores of tiles; scales by subtraction
# CHECK: stores of tiles in all: 8

CASES = (
    ("mxfp4", "bf16"),
    ("mxfp4", "f32"),
    ("mxfp6e2m3", "bf16"),
    ("mxfp6e3m2", "bf16"),
    ("mxfp8e4m3", "bf16"),
    ("mxint8", "bf16"),
    ("nvfp4", "bf16"),
)
ROWS, FEW, COLUMNS, DEPTH = 64, 32, 64, 512
KERNELS = [*((*case, ROWS) for case in CASES), (*CASES[0], FEW)]


def program() -> bytes:
    """All of them in one module."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        i8, of = ir.IntegerType.get_signless(8), ir.RankedTensorType.get
        for weight, activation, rows in KERNELS:
            format = block_format(weight)
            blocks = format.blocks(DEPTH)

            def main(x: ir.Value, weight=weight, format=format, blocks=blocks) -> ir.Value:
                shape = [COLUMNS, blocks, format.block_bytes]
                w = parameters.load(f"{weight}.{x.type}.w", shape, i8)
                s = parameters.load(f"{weight}.{x.type}.s", [COLUMNS, blocks], i8)
                kind = ir.Type.parse(format.element.mlir)
                return scaled_contraction(
                    x,
                    w if kind == i8 else unpack(w, kind),
                    rhs_scale=unpack(s, ir.Type.parse(format.scale.mlir)),
                )

            kind = of([rows, blocks, format.block], ir.Type.parse(activation))
            with ir.InsertionPoint(module.body):
                func.FuncOp.from_py_func(kind, name=f"{weight} {activation} {rows}")(main)
        return str(module).encode()


def loops(lines: list[str]) -> list[list[str]]:
    """The innermost loops."""
    at = {line[:-1]: number for number, line in enumerate(lines) if re.match(r"\.LBB\w+:$", line)}
    found: list[list[str]] = []
    begun = -1
    for number, line in enumerate(lines):
        jump = re.match(r"j\w+\s+(\.LBB\w+)$", line)
        start = at.get(jump[1], number) if jump else number
        if begun < start < number:
            found.append(lines[start : number + 1])
            begun = start
    return found


def described(lines: list[str]) -> str:
    """What is in the loops that multiply tiles, and how weights are decoded."""
    hot = [each for each in loops(lines) if any("tdpbf16ps" in line for line in each)]
    counts = {
        tuple(
            sum(line.startswith(name) for line in each)
            for name in ("tdpbf16ps", "tileload", "tilestore")
        )
        for each in hot
    }
    assert len(counts) == 1, counts
    ((dots, loads, stores),) = counts
    subtracted = any(line.startswith("vpsubsw") for line in lines)
    text = f"loops of {dots} tdpbf16ps, {loads} loads of tiles, {stores} stores of tiles"
    return f"{text}; scales by {'subtraction' if subtracted else 'product'}"


with tempfile.TemporaryDirectory() as folder:
    record = target("cpu:sapphirerapids")
    compiler = iree.Compiler(record, program(), Path(folder))
    run([LowerToCpuKernels(isa="amx-bf16")], compiler.module)
    for phase in iree.PHASES[: iree.PHASES.index("hal") + 1]:
        compiler.run_to(phase)
    (text,) = iree.assembly(Path(folder))
    kernels = {}
    for part in re.split(r"(?=^mxc_\w.*:)", text, flags=re.MULTILINE)[1:]:
        bare = (line.split("#")[0].strip() for line in part.splitlines())
        lines = [line for line in bare if line]
        end = next(number for number, line in enumerate(lines) if ".Lfunc_end" in line)
        kernels[lines[0].rstrip(":")] = lines[:end]
    for weight, activation, rows in KERNELS:
        (name,) = (n for n in kernels if n.startswith(f"mxc_{weight}_{activation}_1x{rows}x"))
        few = f", {rows} rows" if rows == FEW else ""
        print(f"{weight} {activation}{few}: {described(kernels[name])}")
    print("stores of tiles in all:", sum("tilestore" in line for line in kernels[name]))
