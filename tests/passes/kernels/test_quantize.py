"""Kernels that quantize on this CPU, bit for bit as the reference in numpy.

The same body is compiled for the registers of every instruction set that this CPU runs. Blocks have
every exponent, so that groups of blocks take the fast path, the slow path, or are mixed. Numbers of
blocks fill groups or do not.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir, tools
from iree.compiler.dialects import func

from mxc.compiler import iree
from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of, generic
from mxc.dialects.quantize import quantize_mx
from mxc.dialects.recast import mx_cast, transpose_requantize
from mxc.formats.formats import block_format
from mxc.formats.packing import pack_elements
from mxc.formats.recipes import ScaleRecipe, addend
from mxc.formats.reference import Quantized, dequantize, quantize
from mxc.passes.base import run
from mxc.passes.kernels.cpu.isa import best_isa
from mxc.passes.lower_quantize_to_cpu_kernels import LowerQuantizeToCpuKernels
from mxc.targets.target import target

HOST = iree.resolve(target("cpu"))
#: A CPU for each number of lanes: 16, 8, and 4 on x86-64 and on AArch64.
CPUS = ("x86-64-v4", "x86-64-v3", "x86-64", "generic")
HERE = [
    record
    for record in (target(f"cpu:{name}") for name in CPUS)
    if record.architecture == HOST.architecture and set(record.features) <= set(HOST.features)
]
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


@dataclass(frozen=True)
class Case:
    """Quantize floats of type `kind`, or MX blocks of the format `kind`, to a format.

    `rows`: rows of the matrix that the blocks are, which is transposed first; 0: each block is a
    row, and nothing is transposed.
    """

    kind: str
    format: str
    recipe: ScaleRecipe = ScaleRecipe.EVEN
    blocks: int = 301
    dynamic: bool = False
    rows: int = 0

    def __str__(self) -> str:
        size = "any" if self.dynamic else self.blocks
        turned = f"_turned_{self.rows}" if self.rows else ""
        return f"{self.kind}_{self.format}_{self.recipe}_{size}{turned}"

    @property
    def lead(self) -> list[int]:
        """Number of rows, and of blocks in a row."""
        if self.dynamic:
            return [ir.ShapedType.get_dynamic_size(), 1]
        rows = self.rows or self.blocks
        return [rows, self.blocks // rows]

    @property
    def types(self) -> list[ir.Type]:
        rows, across = self.lead
        if self.kind in NUMPY:
            return [ir.RankedTensorType.get([rows, 32 * across], ir.Type.parse(self.kind))]
        i8, size = ir.IntegerType.get_signless(8), block_format(self.kind).block_bytes
        shapes = [[rows, across, size], [rows, across]]
        return [ir.RankedTensorType.get(shape, i8) for shape in shapes]

    def build(self, x: ir.Value, *scales: ir.Value) -> tuple[ir.Value, ...]:
        if scales:
            e8m0 = ir.Float8E8M0FNUType.get()
            element = ir.Type.parse(block_format(self.kind).element.mlir)
            cast = transpose_requantize if self.rows else mx_cast
            found = cast(unpack(x, element), unpack(scales[0], e8m0), self.format, self.recipe)
        else:
            if self.rows:
                x = generic([(x, "m k")], "k m", element_of(x), lambda value: value)
            found = quantize_mx(x, self.format, self.recipe)
        return tuple(v if str(element_of(v)) == "i8" else pack(v) for v in found)


#: Cases for every instruction set. Golden vectors (tests/vectors/) have all formats and recipes,
#: for the best instruction set only.
EACH = [
    *(Case("f32", name) for name in ("mxfp4", "mxfp6e2m3", "mxint8")),
    *(Case(kind, "mxfp8e4m3", ScaleRecipe.FLOOR, 100) for kind in ("bf16", "f16")),
    Case("bf16", "mxint8", ScaleRecipe.RCEIL, dynamic=True),
    Case("f32", "mxfp4", blocks=384, rows=192),
]
BEST = [
    *(Case("f32", "mxfp4", ScaleRecipe.CEIL, blocks) for blocks in (1, 15, 16, 1025)),
    *(Case(name, "mxfp8e4m3", ScaleRecipe.FLOOR, 512) for name in ("mxfp6e3m2", "mxint8")),
    *(Case("mxfp8e5m2", name, ScaleRecipe.RCEIL, 512) for name in ("mxfp4", "mxint8")),
    Case("bf16", "mxfp6e2m3", ScaleRecipe.FLOOR, 320, rows=160),
    Case("mxfp8e5m2", "mxfp8e4m3", ScaleRecipe.CEIL, 512, rows=256),
    Case("mxfp4", "mxint8", ScaleRecipe.RCEIL, 512, rows=256),
]
CASES = {record.name: [*EACH, *(BEST if record is HERE[0] else [])] for record in HERE}
RUNS = [(name, case) for name, listed in CASES.items() for case in listed]


@cache
def compiled(name: str) -> Any:
    """Compile all cases for a CPU, and return their functions."""
    record = target(name)
    isa = best_isa(record)
    assert isa is not None
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for case in CASES[name]:
                func.FuncOp.from_py_func(*case.types, name=str(case))(case.build)
        run([LowerQuantizeToCpuKernels(isa=isa)], module)
        text = str(module)
    assert "linalg" not in text
    flags = [
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-cpu={name.removeprefix('cpu:')}",
    ]
    context = rt.SystemContext(config=rt.Config("local-task"))
    blob = tools.compile_str(text, extra_args=flags)
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, blob))
    return context.modules.module


def check(name: str, case: Case, given: list[Any], x: Any) -> None:
    """Assert that a case has the results of the reference for x, which the arguments encode."""
    results = compiled(name)[str(case)](*given)
    elements, scales = (each.to_host().view(np.uint8) for each in results)
    shape = (case.rows, -1) if case.rows else x.shape
    axis = 0 if case.rows else -1
    wanted = quantize(x.reshape(shape), case.format, recipe=case.recipe, axis=axis)
    np.testing.assert_array_equal(scales.reshape(-1), wanted.scales.reshape(-1))
    np.testing.assert_array_equal(elements.reshape(wanted.elements.shape), wanted.elements)


def floats(case: Case) -> Any:
    """Draw blocks [n, 32] of every exponent of the type, with magnitudes at which the scale
    changes."""
    rng = np.random.default_rng(len(str(case)))
    count = case.blocks
    bits = rng.integers(0, 1 << 32, (count, 32), dtype=np.uint64).astype(np.uint32)
    bits[::2] &= np.uint32(0xFFF80000)
    lead = np.linspace(0, 255, count).astype(np.int64)[:, None]
    # Whole groups of blocks with the exponents at which the fast path ends.
    for number, power in enumerate((1, 2, 3, 4, 8, 11, 18, 231, 232, 233, 237, 238, 239, 254)):
        lead[64 + 16 * number :][:16] = power
    if case.kind == "f16":
        lead = lead // 8 + 112
    spread = rng.integers(0, 12, (count, 32)) * rng.integers(0, 4, (count, 1))
    exponent = np.maximum(lead - spread, 0).astype(np.uint32)
    bits = bits & np.uint32(0x807FFFFF) | exponent << np.uint32(23)
    element = block_format(case.format).element
    edge = (1 << 23) - addend(element, case.recipe)
    for block in range(0, count, 3):
        bits[block, block % 32] = lead[block, 0] << 23 | (edge + block % 5 - 2) & 0x7FFFFF
    bits[count // 2] &= 1 << 31
    x = bits.view(np.float32)
    x[count // 3, 5], x[2 * count // 3, 31] = np.inf, np.nan
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(NUMPY[case.kind])


@pytest.mark.parametrize(("name", "case"), [r for r in RUNS if r[1].kind in NUMPY], ids=str)
def test_floats_become_what_the_reference_says(name: str, case: Case) -> None:
    x = floats(case)
    given = x.reshape(case.rows, -1) if case.rows else x
    check(name, case, [given], x.astype(np.float32))


@pytest.mark.parametrize(("name", "case"), [r for r in RUNS if r[1].kind not in NUMPY], ids=str)
def test_blocks_become_others(name: str, case: Case) -> None:
    """Under every scale, codes of all kinds and codes of one."""
    rng = np.random.default_rng(3)
    format = block_format(case.kind)
    codes = rng.integers(0, 1 << format.element.bits, (case.blocks, 32), dtype=np.uint8)
    codes[256:] = codes[256:, :1]
    packed = pack_elements(codes, format)
    scales = np.resize(np.arange(256, dtype=np.uint8), (case.blocks, 1))
    x = dequantize(Quantized(packed, scales, format, None, 1, codes.shape, None))
    rows, across = case.lead
    given = [packed.reshape(rows, across, -1), scales.reshape(rows, across)]
    check(name, case, [each.view(np.int8) for each in given], x)
