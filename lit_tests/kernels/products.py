# RUN: %python %s | filecheck %s
"""The inner loop of a product with weights in assembly, for each format and each kind of product.

A loop goes over the blocks of a tile: of many rows, and of the one row of a decode step. It multiplies
whole registers, decodes in registers, and keeps its sums there.
"""

import re
import tempfile
from collections.abc import Callable
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

# Of one row everything stays in registers. A tile of many has more sums than that leaves room for in
# some formats: a few wait on the stack, once a block of hundreds of products. Codes of 8 bits are
# decoded to memory first, once for all rows.
# CHECK: mxfp4 bf16, 1 rows: 16 vdpbf16ps, 0 not on zmm, 0 spilled, 0 scalar, by vpermw
# CHECK: mxfp4 bf16, 24 rows: 256 vdpbf16ps, 0 not on zmm, {{[0-9]}} spilled, 0 scalar, by vpermw
# CHECK: mxfp4 int8, 1 rows: 8 vpdpbusd, 0 not on zmm, 0 spilled, 0 scalar, by vpermb
# CHECK: mxfp4 int8, 24 rows: 96 vpdpbusd, 0 not on zmm, 0 spilled, 0 scalar, by vpermb
# CHECK: mxfp4 f32, 1 rows: 33 vfmadd{{[0-9]+}}ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{d|ps}}
# CHECK: mxfp4 f32, 24 rows: 396 vfmadd{{[0-9]+}}ps, 0 not on zmm, {{[0-9]}} spilled, 0 scalar, by vperm{{d|ps}}
# CHECK: mxfp6e2m3 bf16, 1 rows: 16 vdpbf16ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2w
# CHECK: mxfp6e2m3 bf16, 24 rows: 256 vdpbf16ps, 0 not on zmm, {{[12]?[0-9]}} spilled, 0 scalar, by vperm{{[it]}}2w
# CHECK: mxfp6e2m3 int8, 1 rows: 8 vpdpbusd, 0 not on zmm, 0 spilled, 0 scalar, by vpermb
# CHECK: mxfp6e2m3 int8, 24 rows: 96 vpdpbusd, 0 not on zmm, {{[0-9]}} spilled, 0 scalar, by vpermb
# CHECK: mxfp6e2m3 f32, 1 rows: 33 vfmadd{{[0-9]+}}ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2w
# CHECK: mxfp6e2m3 f32, 24 rows: 396 vfmadd{{[0-9]+}}ps, 0 not on zmm, {{[12]?[0-9]}} spilled, 0 scalar, by vperm{{[it]}}2w
# CHECK: mxfp6e3m2 bf16, 1 rows: 16 vdpbf16ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2w
# CHECK: mxfp6e3m2 bf16, 24 rows: 256 vdpbf16ps, 0 not on zmm, {{[12]?[0-9]}} spilled, 0 scalar, by vperm{{[it]}}2w
# CHECK: mxfp6e3m2 f32, 1 rows: 33 vfmadd{{[0-9]+}}ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2w
# CHECK: mxfp6e3m2 f32, 24 rows: 396 vfmadd{{[0-9]+}}ps, 0 not on zmm, {{[12]?[0-9]}} spilled, 0 scalar, by vperm{{[it]}}2w
# CHECK: mxfp8e4m3 bf16, 1 rows: 16 vdpbf16ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2b
# CHECK: mxfp8e4m3 bf16, 24 rows: 256 vdpbf16ps, 0 not on zmm, {{[0-9]}} spilled, 0 scalar, by no lookup
# CHECK: mxfp8e4m3 f32, 1 rows: 33 vfmadd{{[0-9]+}}ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2b
# CHECK: mxfp8e4m3 f32, 24 rows: 396 vfmadd{{[0-9]+}}ps, 0 not on zmm, {{[123]?[0-9]}} spilled, 0 scalar, by no lookup
# CHECK: mxfp8e5m2 bf16, 1 rows: 16 vdpbf16ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2b
# CHECK: mxfp8e5m2 bf16, 24 rows: 256 vdpbf16ps, 0 not on zmm, {{[0-9]}} spilled, 0 scalar, by no lookup
# CHECK: mxfp8e5m2 f32, 1 rows: 33 vfmadd{{[0-9]+}}ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2b
# CHECK: mxfp8e5m2 f32, 24 rows: 396 vfmadd{{[0-9]+}}ps, 0 not on zmm, {{[123]?[0-9]}} spilled, 0 scalar, by no lookup
# CHECK: mxint8 bf16, 1 rows: 16 vdpbf16ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{[it]}}2b
# CHECK: mxint8 bf16, 24 rows: 256 vdpbf16ps, 0 not on zmm, {{[0-9]}} spilled, 0 scalar, by no lookup
# CHECK: mxint8 int8, 1 rows: 8 vpdpbusd, 0 not on zmm, 0 spilled, 0 scalar, by no lookup
# CHECK: mxint8 int8, 24 rows: 96 vpdpbusd, 0 not on zmm, 0 spilled, 0 scalar, by no lookup
# CHECK: mxint8 f32, 1 rows: 33 vfmadd{{[0-9]+}}ps, 0 not on zmm, 0 spilled, 0 scalar, by no lookup
# CHECK: mxint8 f32, 24 rows: 396 vfmadd{{[0-9]+}}ps, 0 not on zmm, {{[123]?[0-9]}} spilled, 0 scalar, by no lookup
# CHECK: nvfp4 bf16, 1 rows: 8 vdpbf16ps, 0 not on zmm, 0 spilled, 0 scalar, by vpermw
# CHECK: nvfp4 bf16, 24 rows: 128 vdpbf16ps, 0 not on zmm, {{[12]?[0-9]}} spilled, 0 scalar, by vpermw
# CHECK: nvfp4 int8, 24 rows: 48 vpdpbusd, 0 not on zmm, {{[0-9]}} spilled, 0 scalar, by vpermb
# CHECK: nvfp4 f32, 1 rows: 17 vfmadd{{[0-9]+}}ps, 0 not on zmm, 0 spilled, 0 scalar, by vperm{{d|ps}}
# CHECK: nvfp4 f32, 24 rows: 204 vfmadd{{[0-9]+}}ps, 0 not on zmm, {{[0-9]}} spilled, 0 scalar, by vperm{{d|ps}}

WEIGHTS = ("mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2", "mxint8", "nvfp4")
#: Activations by the kind of product that they ask for.
ACTIVATIONS = {"pairs": "bf16", "quads": "int8", "floats": "f32"}
PRODUCTS = {"pairs": "vdpbf16ps", "quads": "vpdpbusd", "floats": "vfmadd"}
ROWS = (1, 24)


def function(
    weight: str, activation: str, rows: int, parameters: Parameters
) -> tuple[list[ir.Type], Callable[..., ir.Value]]:
    """The inputs and the body of one product, [rows, 128] times 64 columns."""
    i8, f32, bf16 = ir.IntegerType.get_signless(8), ir.F32Type.get(), ir.BF16Type.get()
    name, format = f"{weight} {activation} {rows}", block_format(weight)
    of = ir.RankedTensorType.get
    blocks = format.blocks(128)
    kind = {"bf16": bf16, "f32": f32, "int8": i8}[activation]
    inputs = [of([rows, blocks, format.block], kind)]
    inputs += [of([rows, blocks], f32)] if activation == "int8" else []

    def main(x: ir.Value, *scale: ir.Value) -> ir.Value:
        kind = ir.Type.parse(format.element.mlir)
        w = parameters.load(f"{name}.w", [64, blocks, format.block_bytes], i8)
        scales = parameters.load(f"{name}.s", [64, blocks], i8)
        return scaled_contraction(
            x,
            w if kind == i8 else unpack(w, kind),
            lhs_scale=scale[0] if scale else None,
            rhs_scale=unpack(scales, ir.Type.parse(format.scale.mlir)),
        )

    return inputs, main


def program(cases: list[tuple[str, str, int]]) -> bytes:
    """All of them in one module."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        for case in cases:
            inputs, main = function(*case, parameters)
            with ir.InsertionPoint(module.body):
                func.FuncOp.from_py_func(*inputs, name=" ".join(map(str, case)))(main)
        return str(module).encode()


def functions(text: str) -> dict[str, list[str]]:
    """The instructions and labels of each kernel."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"(?=^mxc_\w.*:)", text, flags=re.MULTILINE)[1:]:
        bare = (line.split("#")[0].strip() for line in part.splitlines())
        lines = [line for line in bare if line]
        end = next(number for number, line in enumerate(lines) if ".Lfunc_end" in line)
        found[lines[0].rstrip(":")] = lines[:end]
    return found


def innermost(lines: list[str]) -> list[list[str]]:
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


def described(loop: list[str], products: list[str]) -> str:
    """How many products, what decodes, and what should not be there."""
    names = {line.split()[0] for line in loop}
    lookups = ", ".join(sorted(name for name in names if name.startswith("vperm")))
    narrow = sum("zmm" not in line for line in products)
    # Decoded weights may wait on the stack too; they are written by another loop.
    spills = sum(re.match(r"vmov\w+\s+%zmm\d+, .*\(%r[sb]p", line) is not None for line in loop)
    scalar = sum(
        re.match(r"movz|movs[bwl]|vpinsr|vpextr|vpbroadcastb", line) is not None for line in loop
    )
    return (
        f"{len(products)} {products[0].split()[0]}, {narrow} not on zmm, {spills} spilled, "
        f"{scalar} scalar, by {lookups or 'no lookup'}"
    )


def show(cases: list[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        compiler = iree.Compiler(target("cpu:znver5"), program(cases), Path(folder))
        run((LowerToCpuKernels(),), compiler.module)
        for phase in iree.PHASES[: iree.PHASES.index("hal") + 1]:
            compiler.run_to(phase)
        kernels: dict[str, list[str]] = {}
        for text in iree.assembly(Path(folder)):
            kernels |= functions(text)
    kind = {activation: kind for kind, activation in ACTIVATIONS.items()}
    for weight, activation, rows in cases:
        by_16 = weight == "nvfp4" and activation == "int8"
        name = f"mxc_{weight}_{activation}{'x16' if by_16 else ''}_1x{rows}x64x128"
        for loop in innermost(kernels[name]):
            products = [line for line in loop if line.startswith(PRODUCTS[kind[activation]])]
            if len(products) >= 8:
                print(f"{weight} {activation}, {rows} rows:", described(loop, products))


show(
    [
        (weight, activation, rows)
        for weight in WEIGHTS
        for kind, activation in ACTIVATIONS.items()
        for rows in ROWS
        if kind != "quads" or weight in ("mxfp4", "mxfp6e2m3", "mxint8", "nvfp4")
    ]
)
