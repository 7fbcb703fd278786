"""Epilogues that the kernel of a contraction computes on CPUs, against float64.

Operands are small integers times powers of two, so that every product and sum is exact in f32 and
results with bias, residual and row weights are equal to the bit. A gate, which has an exp, is
within a few ulp.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir
from iree.compiler.dialects import arith, func, math, tensor
from numpy.typing import NDArray

from mxc.artifact.manifest import SCOPE
from mxc.compiler.driver import compile_here
from mxc.compiler.packing.panels import to_panels
from mxc.compiler.steps import CompileRequest
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import constant, generic, loop_index
from mxc.dialects.linalg_ext import gather
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled import scaled_contraction
from mxc.runtime.device import open_device

DEPTH = 64
#: For each function: rows and columns of the contraction, and experts (0: one weight for all rows).
SHAPES = {
    "bias": (9, 33, 0),
    "bias_and_residual": (1, 48, 0),
    "two_readers": (3, 16, 0),
    "gate": (5, 64, 0),
    "gate_of_a_ragged_half": (5, 40, 0),
    "chosen": (4, 64, 5),
    "sorted": (37, 96, 5),
    "grouped": (18, 64, 5),
}
#: Functions whose groups have more than one row: the rows of a group.
TOGETHER = {"grouped": 3}


def f32() -> ir.Type:
    return ir.F32Type.get()


def contraction(name: str, parameters: Parameters, x: ir.Value, ids: ir.Value | None) -> ir.Value:
    """Multiply x [M, DEPTH] by mxfp4 weights: the result is [M, N], or [groups, rows, N] if each
    group has an expert."""
    rows, columns, experts = SHAPES[name]
    lead = [experts] if experts else []
    i8 = ir.IntegerType.get_signless(8)
    weights = parameters.load(f"{name}.w", [*lead, columns, DEPTH // 32, 16], i8)
    scales = parameters.load(f"{name}.s", [*lead, columns, DEPTH // 32], i8)
    weights = unpack(weights, ir.Float4E2M1FNType.get())
    scales = unpack(scales, ir.Float8E8M0FNUType.get())
    if ids is not None:
        weights, scales = gather(weights, ids), gather(scales, ids)
    size = TOGETHER.get(name, 1)
    shape = [rows // size, *([size] if experts else []), DEPTH // 32, 32]
    kind = ir.RankedTensorType.get(shape, f32())
    flat = tensor.collapse_shape(ir.RankedTensorType.get([rows * DEPTH], f32()), x, [[0, 1]])
    lhs = tensor.expand_shape(kind, flat, [list(range(len(shape)))], [], shape)
    return scaled_contraction(lhs, weights, rhs_scale=scales, batch=len(lead))


def add(y: ir.Value, other: ir.Value, subscripts: str) -> ir.Value:
    def wide(value: ir.Value) -> ir.Value:
        return value if value.type == f32() else arith.extf(f32(), value)

    return generic(
        [(y, "m n"), (other, subscripts)], "m n", f32(), lambda a, b: arith.addf(a, wide(b))
    )


def swiglu(gate: ir.Value, up: ir.Value) -> ir.Value:
    """Compute up * gate * sigmoid(gate) with gate at most 7, which takes constants and an exp."""
    gate = arith.minimumf(gate, constant(7.0, f32()))
    one = constant(1.0, f32())
    sigmoid = arith.divf(one, arith.addf(one, math.exp(arith.negf(gate))))
    return arith.mulf(up, arith.mulf(gate, sigmoid))


def gated(y: ir.Value) -> ir.Value:
    *lead, width = ir.RankedTensorType(y.type).shape
    kind = ir.RankedTensorType.get([*lead, width // 2], f32())
    zeros = [0] * len(lead)
    halves = [
        tensor.extract_slice(
            kind, y, [], [], [], [*zeros, at], [*lead, width // 2], [1] * (len(lead) + 1)
        )
        for at in (0, width // 2)
    ]
    loops = "m n" if len(lead) == 1 else "m j n"
    return generic([(half, loops) for half in halves], loops, f32(), swiglu)


def expert_bias(y: ir.Value, ids: ir.Value, bias: ir.Value) -> ir.Value:
    def body(value: ir.Value, expert: ir.Value) -> ir.Value:
        row = arith.index_cast(ir.IndexType.get(), expert)
        return arith.addf(value, tensor.extract(bias, [row, loop_index("m j n", "n")]))

    return generic([(y, "m j n"), (ids, "m")], "m j n", f32(), body)


def build(name: str, parameters: Parameters) -> Callable[..., Any]:
    """Return what builds the body of a function. Its arguments are x, then bias, residual, row
    weights and ids, if it has them."""

    def body(x: ir.Value, *rest: ir.Value) -> Any:
        if SHAPES[name][2]:
            ids, bias, weights = rest
            y = gated(expert_bias(contraction(name, parameters, x, ids), ids, bias))
            return generic(
                [(y, "m j n"), (weights, "m")], "m j n", f32(), lambda a, b: arith.mulf(a, b)
            )
        y = contraction(name, parameters, x, None)
        if name.startswith("gate"):
            return gated(y)
        y = add(y, rest[0], "n")
        if name == "two_readers":
            return y, generic([(y, "m n")], "m n", f32(), lambda a: arith.negf(a))
        return add(y, rest[1], "m n") if name == "bias_and_residual" else y

    return body


def inputs(name: str) -> list[tuple[list[int], str]]:
    """Return shapes and element types of the arguments of a function."""
    rows, columns, experts = SHAPES[name]
    found = [([rows, DEPTH], "f32")]
    if experts:
        groups = rows // TOGETHER.get(name, 1)
        return [*found, ([groups], "i32"), ([experts, columns], "f32"), ([groups], "f32")]
    if not name.startswith("gate"):
        found.append(([columns], "bf16"))
    return [*found, ([rows, columns], "f32")] if name == "bias_and_residual" else found


def program() -> bytes:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        with ir.InsertionPoint(module.body):
            for name in SHAPES:
                kinds = [
                    ir.RankedTensorType.get(shape, ir.Type.parse(element))
                    for shape, element in inputs(name)
                ]
                func.FuncOp.from_py_func(*kinds, name=name)(build(name, parameters))
        return str(module).encode()


def draw(shape: list[int], element: str, experts: int) -> NDArray[Any]:
    rng = np.random.default_rng(len(shape) + shape[0])
    if element == "i32":
        return (rng.integers(0, experts, shape)).astype(np.int32)
    values = rng.integers(-8, 9, shape).astype(np.float32) / 4
    return values.astype(ml_dtypes.bfloat16) if element == "bf16" else values


def weight(name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float64]]:
    """Draw weights: packed elements, scales, and values [experts, columns, DEPTH] in float64."""
    _, columns, experts = SHAPES[name]
    rng = np.random.default_rng(columns)
    codes = rng.integers(0, 16, (max(experts, 1), columns, DEPTH // 32, 32), dtype=np.uint8)
    scales = rng.integers(124, 128, codes.shape[:3], dtype=np.uint8)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    values *= scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)[..., None]
    packed = codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)
    return packed, scales, values.reshape(*codes.shape[:2], DEPTH)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, rt.FunctionInvoker]:
    folder: Path = tmp_path_factory.mktemp("epilogues")
    request = CompileRequest(
        program=program(), place="p", target="cpu", module=folder / "m.vmfb", parameters=True
    )
    made = compile_here(request, None, folder / "program", lambda step: None)
    # Each contraction is one kernel with its epilogue; there are other dispatches only for the
    # preparation of activations and the sorting of rows.
    index = rt.ParameterIndex()
    for name, (_, columns, experts) in SHAPES.items():
        packed, scales, _ = weight(name)
        for suffix, array in (("w", packed), ("s", scales)):
            row = array.size // (max(experts, 1) * columns)
            layout = made.panels[f"{name}.{suffix}"]
            panels = to_panels(array.reshape(-1), columns, row, layout)
            index.add_buffer(f"{name}.{suffix}", panels)
    device = open_device("local-task", 2, "test")
    instance = rt.VmInstance()
    module = rt.VmModule.mmap(instance, str(folder / "m.vmfb"))
    hal = rt.create_hal_module(instance, device)
    provider = rt.create_io_parameters_module(instance, index.create_provider(scope=SCOPE))
    context = rt.VmContext(instance, [hal, provider, module])
    return {
        name: rt.FunctionInvoker(context, device, module.lookup_function(name)) for name in SHAPES
    }


def wanted(name: str, arguments: list[NDArray[Any]]) -> NDArray[np.float64]:
    x, *rest = (array.astype(np.float64) for array in arguments)
    values = weight(name)[2]
    if SHAPES[name][2]:
        ids, factors = (np.repeat(each, TOGETHER.get(name, 1)) for each in (arguments[1], rest[2]))
        y = np.einsum("mk,mnk->mn", x, values[ids]) + rest[1][ids]
        return gate_of(y) * factors[:, None]
    y = x @ values[0].T
    if name.startswith("gate"):
        return gate_of(y)
    y = y + rest[0]
    return y + rest[1] if name == "bias_and_residual" else y


def gate_of(y: NDArray[np.float64]) -> NDArray[np.float64]:
    gate, up = np.split(y, 2, axis=1)
    gate = np.minimum(gate, 7)
    with np.errstate(over="ignore"):
        return up * gate / (1 + np.exp(-gate))


@pytest.mark.parametrize("name", SHAPES)
def test_numbers(functions: dict[str, rt.FunctionInvoker], name: str) -> None:
    arguments = [draw(shape, element, SHAPES[name][2]) for shape, element in inputs(name)]
    found = functions[name](*arguments)
    found = np.array((found[0] if isinstance(found, (list, tuple)) else found).to_host())
    expected = wanted(name, arguments)
    found = found.reshape(expected.shape)
    if "gate" in name or SHAPES[name][2]:
        np.testing.assert_allclose(found, expected, rtol=8 * 2**-24, atol=1e-30)
    else:
        np.testing.assert_array_equal(found, expected)


def test_large_gates(functions: dict[str, rt.FunctionInvoker]) -> None:
    """exp of what is beyond f32: the sigmoid is zero, and nothing is NaN."""
    (shape, element), *_ = inputs("gate")
    x = draw(shape, element, 0) * np.float32(1000)
    found = np.array(functions["gate"](x).to_host())
    expected = wanted("gate", [x])
    np.testing.assert_allclose(found, expected, rtol=8 * 2**-24, atol=1e-30)
