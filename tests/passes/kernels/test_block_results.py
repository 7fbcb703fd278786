"""Products whose kernels quantize the result to MX blocks, bit for bit as the reference in numpy.

All sums are exact, so that the numbers that are quantized are known.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor

from mxc.artifact.manifest import SCOPE
from mxc.compiler import iree
from mxc.compiler.driver import compile_here
from mxc.compiler.packing.panels import to_panels
from mxc.compiler.steps import Compiled, CompileRequest
from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of, generic
from mxc.dialects.linalg_ext import gather
from mxc.dialects.parameters import Parameters
from mxc.dialects.quantize import quantize_mx
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import block_format
from mxc.formats.packing import pack_elements
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import quantize
from mxc.passes.kernels.cpu.isa import ISAS, best_isa
from mxc.runtime.device import open_device
from mxc.targets.target import target

HOST = iree.resolve(target("cpu"))
DEPTH, EXPERTS = 64, 3
DYNAMIC = ir.ShapedType.get_dynamic_size()
F32 = np.float32


@dataclass(frozen=True)
class Case:
    """A product of [rows, 64] by mxfp4 weights [columns, 64], quantized to `format`.

    `gated`: whether the halves of the columns are joined by a gate. `bf16`: whether activations are
    bf16, whose products are on AMX tiles if the CPU has them, and on vectors for one row.
    """

    format: str
    recipe: ScaleRecipe
    rows: int
    columns: int
    gated: bool = False
    experts: int = 0
    dynamic: bool = False
    bf16: bool = False

    def __str__(self) -> str:
        kind = "gated" if self.gated else "experts" if self.experts else "plain"
        rows = "any" if self.dynamic else self.rows
        kind += "_bf16" * self.bf16
        return f"{kind}_{rows}x{self.columns}_{self.format}_{self.recipe}"

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        lead = (self.experts,) if self.experts else ()
        blocks = DEPTH // 32
        return {
            f"{self}.w": (*lead, self.columns, blocks, 16),
            f"{self}.s": (*lead, self.columns, blocks),
        }

    @property
    def lead(self) -> list[int]:
        return [DYNAMIC if self.dynamic else self.rows, *([1] if self.experts else [])]

    def build(self, parameters: Parameters, x: ir.Value, *ids: ir.Value) -> tuple[ir.Value, ...]:
        i8 = ir.IntegerType.get_signless(8)
        weight, factor = (parameters.load(*item, i8) for item in self.parameters.items())
        weight, factor = (
            unpack(weight, ir.Float4E2M1FNType.get()),
            unpack(factor, ir.Float8E8M0FNUType.get()),
        )
        if ids:
            weight, factor = gather(weight, ids[0]), gather(factor, ids[0])
        batch = len(ids)
        y = scaled_contraction(x, weight, rhs_scale=factor, batch=batch, name=str(self))
        loops = " ".join("abc"[: batch + 2])
        f32 = ir.F32Type.get()
        if self.gated:
            half = self.columns // 2
            sizes = [*self.lead, half]
            parts = [
                tensor.extract_slice(
                    ir.RankedTensorType.get(sizes, f32),
                    y, [], [], [],
                    static_offsets=[*[0] * len(self.lead), at],
                    static_sizes=sizes,
                    static_strides=[1] * len(sizes),
                )
                for at in (0, half)
            ]  # fmt: skip
            y = generic([(part, loops) for part in parts], loops, f32, arith.mulf)
        found = quantize_mx(y, self.format, self.recipe)
        return tuple(v if str(element_of(v)) == "i8" else pack(v) for v in found)


EVEN, FLOOR, RCEIL = ScaleRecipe.EVEN, ScaleRecipe.FLOOR, ScaleRecipe.RCEIL
PLAIN = Case("mxfp4", EVEN, 3, 96)
GATED = Case("mxint8", RCEIL, 3, 128, gated=True)
CASES = {
    "cpu": [
        Case("mxfp8e4m3", FLOOR, 1, 64),
        Case("mxfp4", EVEN, 13, 96),
        GATED,
        Case("mxfp6e2m3", FLOOR, 20, 64, experts=EXPERTS),
        Case("mxfp8e5m2", EVEN, 5, 32, dynamic=True),
        Case("mxfp4", EVEN, 5, 64, dynamic=True, bf16=True),
        Case("mxint8", RCEIL, 1, 96, dynamic=True, bf16=True),
    ],
    "cpu:x86-64-v3": [PLAIN, GATED],
    "cpu:x86-64": [PLAIN],
}
RUNS = [
    (name, case)
    for name, cases in CASES.items()
    for case in cases
    if iree.resolve(target(name)).architecture == HOST.architecture
    and set(iree.resolve(target(name)).features) <= set(HOST.features)
]


def makes_blocks(name: str, case: Case) -> bool:
    """Return whether the kernel of the product also quantizes its result.

    With 16 registers, a product with more rows than a tile decodes its weights to memory, and
    another kernel quantizes.
    """
    isa = best_isa(iree.resolve(target(name)))
    assert isa is not None
    one_tile = case.rows <= 3 and not case.dynamic
    return ISAS[isa].registers > 16 or one_tile


@dataclass(frozen=True)
class Built:
    compiled: Compiled
    file: Path


@cache
def built(name: str, folder: Path) -> Built:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        with ir.InsertionPoint(module.body):
            for case in CASES[name]:
                shape = [*case.lead, DEPTH // 32, 32]
                element = ir.BF16Type.get() if case.bf16 else ir.F32Type.get()
                kinds = [ir.RankedTensorType.get(shape, element)]
                i32 = ir.IntegerType.get_signless(32)
                kinds += [ir.RankedTensorType.get(case.lead[:1], i32)] if case.experts else []
                func.FuncOp.from_py_func(*kinds, name=str(case))(
                    lambda *x, case=case: case.build(parameters, *x)
                )
        text = str(module).encode()
    file = folder / "m.vmfb"
    request = CompileRequest(program=text, place="p", target=name, module=file, parameters=True)
    made = compile_here(request, folder / "assembly", folder / "program", lambda step: None)
    return Built(made, file)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(name.replace(":", "_")) for name in CASES}


@pytest.mark.parametrize(("name", "case"), RUNS, ids=str)
def test_blocks_are_those_of_the_exact_product(
    name: str, case: Case, folders: dict[str, Path]
) -> None:
    program = built(name, folders[name])
    (row,) = [each for each in program.compiled.report["matmuls"] if each["function"] == str(case)]
    out = case.format if makes_blocks(name, case) else "f32"
    assert (row["out"], row["kernels"], row["fallback"]) == (out, 1, None)
    rng = np.random.default_rng(5)
    weights = case.experts or 1
    codes = rng.integers(0, 16, (weights, case.columns, DEPTH), dtype=np.uint8)
    scales = rng.integers(125, 130, (weights, case.columns, DEPTH // 32), dtype=np.uint8)
    # Some columns are so small that they become zero, and rows differ in magnitude.
    scales[:, 32:64:5] -= 60
    x = rng.integers(-8, 9, (case.rows, DEPTH)).astype(F32)
    x *= np.ldexp(F32(1), rng.integers(-9, 9, (case.rows, 1)))
    x[-1] *= case.rows == 1
    ids = rng.integers(0, weights, case.rows).astype(np.int32)
    values = block_format("mxfp4").element.values[codes].astype(np.float64)
    values *= np.ldexp(1.0, scales.astype(np.int64).repeat(32, -1) - 127)
    y = np.einsum("mk,mnk->mn", x.astype(np.float64), values[ids])
    assert (y.astype(F32) == y).all()
    y = y.astype(F32)
    if case.gated:
        y = y[:, : case.columns // 2] * y[:, case.columns // 2 :]
    wanted = quantize(y, case.format, recipe=case.recipe)
    arrays = [pack_elements(codes, "mxfp4"), scales]
    lead = [case.rows, *([1] if case.experts else [])]
    x = x.astype(ml_dtypes.bfloat16 if case.bf16 else F32).reshape(*lead, DEPTH // 32, 32)
    elements, found = call(program, case, arrays, x, ids)
    np.testing.assert_array_equal(found.reshape(wanted.scales.shape), wanted.scales)
    np.testing.assert_array_equal(elements.reshape(wanted.elements.shape), wanted.elements)


def call(program: Built, case: Case, arrays: list[Any], x: Any, ids: Any) -> list[Any]:
    index = rt.ParameterIndex()
    for (name, shape), array in zip(case.parameters.items(), arrays, strict=True):
        flat = array.reshape(-1)
        row = flat.size // int(np.prod(shape[: -1 if name.endswith(".s") else -2]))
        layout = program.compiled.panels[name]
        index.add_buffer(name, to_panels(flat, case.columns, row, layout))
    for other in [each for cases in CASES.values() for each in cases if each != case]:
        for name, shape in other.parameters.items():
            index.add_buffer(name, np.zeros(int(np.prod(shape)), np.uint8))
    device, instance = open_device("local-task", 2, "test"), rt.VmInstance()
    module = rt.VmModule.mmap(instance, str(program.file))
    provider = rt.create_io_parameters_module(instance, index.create_provider(scope=SCOPE))
    context = rt.VmContext(instance, [rt.create_hal_module(instance, device), provider, module])
    entry = rt.FunctionInvoker(context, device, module.lookup_function(str(case)))
    given = [x, *([ids] if case.experts else [])]
    return [each.to_host().view(np.uint8) for each in entry(*given)]
