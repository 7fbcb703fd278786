"""Groups of rows of one expert each: its bias, chosen by the id of the group, and the gate are
computed in the kernel of the product."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor

from mxc.compiler.models.blocks.gates import gated
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic, loop_index
from mxc.dialects.linalg_ext import gather
from mxc.dialects.scaled import scaled_contraction
from tests.forms.form_artifacts import compile_forms
from tests.forms.form_weights import TARGETS

G, E, N, KO = 3, 5, 64, 2
#: Function -> rows of a group, whether the result is gated.
CASES = {"bias": (5, False), "gate": (16, True), "ragged": (18, True), "one_row": (1, True)}


def build(is_gated: bool) -> Callable[..., ir.Value]:
    def body(
        x: ir.Value, elements: ir.Value, scales: ir.Value, bias: ir.Value, ids: ir.Value
    ) -> ir.Value:
        f32 = ir.F32Type.get()
        elements = unpack(elements, ir.Float4E2M1FNType.get())
        scales = unpack(scales, ir.Float8E8M0FNUType.get())
        chosen, factors = gather(elements, ids), gather(scales, ids)
        y = scaled_contraction(x, chosen, rhs_scale=factors, batch=1)

        def add(value: ir.Value, expert: ir.Value) -> ir.Value:
            row = arith.index_cast(ir.IndexType.get(), expert)
            return arith.addf(value, tensor.extract(bias, [row, loop_index("g m n", "n")]))

        y = generic([(y, "g m n"), (ids, "g")], "g m n", f32, add)
        return gated(y, lambda gate, up: arith.mulf(gate, up)) if is_gated else y

    return body


def program() -> str:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        f32 = ir.F32Type.get()
        i8, i32 = (ir.IntegerType.get_signless(width) for width in (8, 32))
        with ir.InsertionPoint(module.body):
            for name, (rows, is_gated) in CASES.items():
                shapes = (
                    ([G, rows, KO, 32], f32),
                    ([E, N, KO, 16], i8),
                    ([E, N, KO], i8),
                    ([E, N], f32),
                    ([G], i32),
                )
                kinds = [ir.RankedTensorType.get(shape, kind) for shape, kind in shapes]
                func.FuncOp.from_py_func(*kinds, name=name)(build(is_gated))
        return str(module)


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return request.param, *compile_forms(
        tmp_path_factory.mktemp(request.param), request.param, program()
    )


@pytest.mark.parametrize("name", CASES)
def test_groups(compiled: Any, name: str) -> None:
    target, model, report = compiled
    (row,) = [row for row in report["matmuls"] if row["function"] == name]
    assert row["fallback"] is None
    assert "_then_" in row["kernel"]
    if target == "gfx950":
        assert row["kernels"] == 1
    rows, is_gated = CASES[name]
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (E, N, KO, 32), dtype=np.uint8)
    scales = rng.integers(125, 129, (E, N, KO), dtype=np.uint8)
    factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * factors[..., None]
    packed = (codes[..., 0::2] | codes[..., 1::2] << 4).view(np.int8)
    # Small numbers of few digits: every sum and product is exact.
    x = rng.integers(-2, 3, (G, rows, KO, 32)).astype(np.float32)
    bias = rng.integers(-8, 9, (E, N)).astype(np.float32)
    ids = np.array([4, 0, 3], np.int32)
    (found,) = model.call(name, x, packed, scales.view(np.int8), bias, ids)
    y = np.einsum("gmok,gnok->gmn", x, values[ids]) + bias[ids][:, None]
    wanted = y[..., : N // 2] * y[..., N // 2 :] if is_gated else y
    np.testing.assert_array_equal(found, wanted)
