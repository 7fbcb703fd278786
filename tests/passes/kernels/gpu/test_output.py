"""Products whose kernels quantize the result to MX blocks, on the simulator, bit for bit as numpy.

Elements are small multiples of 1/2 or 1/8, and so is every sum: products are exact.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor
from numpy.typing import NDArray

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of, generic, shape_of
from mxc.dialects.quantize import quantize_mx
from mxc.dialects.scaled import scaled_contraction
from mxc.dialects.scaled_matmul import scaled_matmul
from mxc.formats.formats import FORMATS
from mxc.formats.packing import pack_elements
from mxc.formats.reference import Quantized, dequantize, quantize
from mxc.formats.rounding import encode
from mxc.passes.base import run
from mxc.passes.lower_to_gpu_kernels import LowerToGpuKernels
from mxc.passes.normalize import NORMALIZE
from mxc.simulator.run.translate import TranslatedKernel

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A product of [m, k] by [n, k], quantized to `out` along `axis`.

    `gated`: whether a bias is added and the halves of the columns are multiplied before.
    """

    m: int
    n: int
    k: int
    lhs: str
    rhs: str
    out: str
    recipe: str
    gated: bool = False
    axis: int = -1

    @property
    def name(self) -> str:
        return f"{self.out}_{self.recipe}"


CASES = [
    # Eight waves along K, which share the blocks of the result; one row; partial tiles.
    Case(4, 64, 2048, "mxfp8e4m3", "mxfp4", "mxfp4", "even"),
    Case(1, 32, 32, "mxfp4", "mxfp4", "mxfp8e5m2", "ceil"),
    Case(20, 96, 160, "mxfp4", "mxfp6e2m3", "mxfp6e2m3", "rceil"),
    # Four waves with four tiles each way, with columns past the end.
    Case(70, 160, 128, "mxfp8e5m2", "mxfp4", "mxfp8e4m3", "floor"),
    Case(5, 128, 64, "mxfp4", "mxfp4", "mxfp6e3m2", "even", gated=True),
    Case(96, 24, 64, "mxfp4", "mxfp8e4m3", "mxfp4", "floor", axis=-2),
    # To mxint8, by integer operations; waves that share tiles, and a wave alone.
    Case(33, 64, 512, "mxfp4", "mxfp4", "mxint8", "rceil"),
    Case(3, 32, 64, "mxfp8e4m3", "mxfp4", "mxint8", "floor"),
    # By a ring, with rows past the end.
    Case(72, 96, 512, "mxfp4", "mxfp8e4m3", "mxfp4", "ceil"),
    Case(73, 96, 544, "mxfp6e2m3", "mxfp4", "mxfp6e2m3", "even"),
    Case(74, 128, 512, "mxfp8e4m3", "mxfp4", "mxfp8e4m3", "even", gated=True),
    # By a ring that decodes once for a workgroup.
    Case(75, 96, 512, "mxint8", "mxint8", "mxfp4", "rceil"),
    Case(76, 128, 544, "mxint8", "mxfp4", "mxfp8e4m3", "rceil", gated=True),
]
#: Schedules that make the last five cases rings.
TILES = {"instruction": 32, "tiles": [1, 2]}
RING = {**TILES, "waves": [4, 1, 1], "transport": "ring", "stages": 3, "k_steps": 2}
DECODED = {**TILES, "waves": [2, 2, 1], "transport": "decoded", "stages": 2, "k_steps": 1}
SCHEDULES: list[dict[str, Any]] = [
    *({"m": m, "schedule": RING} for m in (72, 73, 74)),
    *({"m": m, "schedule": DECODED} for m in (75, 76)),
]


def build(case: Case) -> None:
    """Build the function of a case: packed operands -> elements and scales, all as bytes."""
    sizes = [(rows, case.k // 32, FORMATS[name].block_bytes) for rows, name in sides(case)]
    byte = ir.IntegerType.get_signless(8)
    kinds = [ir.RankedTensorType.get(list(s), byte) for a in sizes for s in (a, a[:2])]
    kinds += [ir.RankedTensorType.get([case.n], ir.F32Type.get())]

    def body(*given: ir.Value) -> tuple[ir.Value, ...]:
        scale = ir.Type.parse("f8E8M0FNU")
        lhs, rhs = (
            unpack(given[2 * at], ir.Type.parse(FORMATS[name].element.mlir))
            for at, (_, name) in enumerate(sides(case))
        )
        scales = {"lhs_scale": unpack(given[1], scale), "rhs_scale": unpack(given[3], scale)}
        if case.gated:
            y = gate(scaled_contraction(lhs, rhs, **scales), given[4])
            found = quantize_mx(y, case.out, case.recipe)
        else:
            found = scaled_matmul(
                lhs, rhs, out=case.out, recipe=case.recipe, axis=case.axis, **scales
            )
        return tuple(v if element_of(v) == byte else pack(v) for v in found)

    func.FuncOp.from_py_func(*kinds, name=case.name)(body)


def gate(y: ir.Value, bias: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    y = generic([(y, "m n"), (bias, "n")], "m n", f32, arith.addf)
    m, n = shape_of(y)
    kind = ir.RankedTensorType.get([m, n // 2], f32)
    halves = [
        tensor.extract_slice(kind, y, [], [], [], [0, at], [m, n // 2], [1, 1])
        for at in (0, n // 2)
    ]
    return generic([(half, "m n") for half in halves], "m n", f32, arith.mulf)


def sides(case: Case) -> list[tuple[int, str]]:
    return [(case.m, case.lhs), (case.n, case.rhs)]


def operand(rng: np.random.Generator, rows: int, k: int, name: str) -> Quantized:
    """Draw an operand: numbers that the format holds exactly, under scales near one."""
    known = [0, 0.5, 1, 1.5] if name == "mxint8" else [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = rng.choice(known, (rows, k)).astype(np.float32)
    values *= rng.choice([-1, 1], (rows, k))
    elements = pack_elements(encode(values, FORMATS[name].element), FORMATS[name])
    scales = rng.integers(126, 129, (rows, k // 32), dtype=np.uint8)
    return Quantized(elements, scales, FORMATS[name], None, 1, (rows, k))


def operands(case: Case) -> tuple[Quantized, Quantized]:
    """Draw both sides. The last row of lhs is NaN; the row before it is zero except for one element
    whose product is infinite."""
    rng = np.random.default_rng(case.n)
    lhs, rhs = (operand(rng, rows, case.k, name) for rows, name in sides(case))
    lhs.scales[-1, 0] = 255
    if case.m > 1:
        values = np.zeros((2, 32), np.float32)
        values[0, 0] = 1
        first, zero = (
            pack_elements(encode(values, FORMATS[name].element), FORMATS[name])
            for _, name in sides(case)
        )
        lhs.elements[-2] = 0
        lhs.elements[-2, : first.shape[1]] = first[0]
        rhs.elements[3, : zero.shape[1]] = zero[0]
        lhs.scales[-2], rhs.scales[3, 0] = 254, 254
    return lhs, rhs


@pytest.fixture(scope="module")
def compiled(watched: Callable[..., Any]) -> Any:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for case in CASES:
                build(case)
        return watched(str(module), SCHEDULES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_what_the_reference_says(case: Case, compiled: Any) -> None:
    lhs, rhs = operands(case)
    bias = np.arange(case.n, dtype=np.float32) / 4
    with np.errstate(over="ignore", invalid="ignore"):
        exact = dequantize(lhs).astype(np.float64) @ dequantize(rhs).astype(np.float64).T
        y: NDArray[Any] = exact.astype(np.float32)
        y = y.T if case.axis == -2 else y
        if case.gated:
            y = (y + bias)[:, : case.n // 2] * (y + bias)[:, case.n // 2 :]
    assert np.isnan(y).any()
    assert case.m == 1 or np.isinf(y).any()
    wanted = quantize(y, case.out, recipe=case.recipe)

    inputs = [part for q in (lhs, rhs) for part in (q.elements, q.scales)]
    shapes = [(rows, case.k // 32, FORMATS[name].block_bytes) for rows, name in sides(case)]
    for at, shape in enumerate(shapes):
        inputs[2 * at] = inputs[2 * at].reshape(shape)
    given = [each.view(np.int8) for each in inputs]
    elements, scales = compiled.call(case.name, *given, bias)
    np.testing.assert_array_equal(scales, wanted.scales)
    np.testing.assert_array_equal(elements.reshape(wanted.elements.shape), wanted.elements)

    # There is one store of elements for each store of a scale: the product itself is not stored.
    names = [each.name for each in TranslatedKernel(compiled.kernel).instructions]
    stores = Counter(name for name in names if "_store_" in name)
    # A lane stores 16 columns with the instruction of 32 rows, and 8 with that of 16 rows; elements
    # of 6 bits are then stored by one of two lanes for both.
    staged = case.m in [entry["m"] for entry in SCHEDULES]
    wide = {4: "dwordx2", 6: "dwordx3", 8: "dwordx4"}
    narrow = {4: "dword", 6: "dwordx3", 8: "dwordx2"}
    words = (wide if staged else narrow)[FORMATS[case.out].element.bits]
    assert set(stores) == {f"buffer_store_{words}", "buffer_store_byte"}
    assert len(set(stores.values())) == 1
    instruction = (
        "v_mfma_f32_32x32x16_bf16" if "mxint8" in (case.lhs, case.rhs) else "v_mfma_scale_"
    )
    assert any(name.startswith(instruction) for name in names)


def test_another_reader_keeps_the_product() -> None:
    """Where the result has a second use it is stored as it is, and quantized from there."""
    case = replace(CASES[0], k=64)
    with new_context(), ir.Location.unknown():
        f32 = ir.F32Type.get()
        module = ir.Module.create()
        e4, e2, s = (ir.Type.parse(t) for t in ("f8E4M3FN", "f4E2M1FN", "f8E8M0FNU"))
        kinds = [
            ir.RankedTensorType.get(shape, kind)
            for shape, kind in (
                ([case.m, 2, 32], e4),
                ([case.m, 2], s),
                ([case.n, 2, 32], e2),
                ([case.n, 2], s),
            )
        ]

        def body(a: ir.Value, p: ir.Value, b: ir.Value, q: ir.Value) -> tuple[ir.Value, ...]:
            y = scaled_contraction(a, b, lhs_scale=p, rhs_scale=q)
            total = generic([(y, "m n")], "m", f32, arith.addf)
            return (*quantize_mx(y, case.out, case.recipe), total)

        with ir.InsertionPoint(module.body):
            func.FuncOp.from_py_func(*kinds, name="f")(body)
        run((*NORMALIZE, LowerToGpuKernels()), module)
        assert "_as_mxfp4_even" not in str(module)
        assert "-> tensor<4x64xf32>" in str(module)
