"""Dequantization of MX blocks to tensors of floats, on the simulator; bits are the reference's."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func

from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.dequantize import extend
from mxc.dialects.generic import generic
from mxc.formats.formats import FORMATS
from mxc.formats.packing import pack_elements
from mxc.formats.reference import Quantized, dequantize

#: Formats of 6 bits have kernels of mxc; IREE compiles those of 4 and 8 bits, correctly.
NAMES = ("mxfp6e2m3", "mxfp6e3m2", "mxfp4", "mxfp8e4m3", "mxfp8e5m2")
KINDS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
#: Rows, and blocks in a row; the last workgroup is not full.
SHAPE = (13, 20)


def build(name: str, kind: str, rows: int) -> None:
    format = FORMATS[name]
    shape = [rows, SHAPE[1]]
    byte = ir.IntegerType.get_signless(8)
    kinds = [ir.RankedTensorType.get(s, byte) for s in ([*shape, format.block_bytes], shape)]
    to, f32 = ir.Type.parse(kind), ir.F32Type.get()

    def value(element: ir.Value, scale: ir.Value) -> ir.Value:
        wide = extend(element, scale)
        return wide if to == f32 else arith.truncf(to, wide)

    def body(elements: ir.Value, scales: ir.Value) -> ir.Value:
        blocks = unpack(elements, ir.Type.parse(format.element.mlir))
        factors = unpack(scales, ir.Type.parse(format.scale.mlir))
        return generic([(blocks, "m o b"), (factors, "m o")], "m o b", to, value)

    suffix = "_dynamic" if rows < 0 else ""
    func.FuncOp.from_py_func(*kinds, name=f"{name}_{kind}{suffix}")(body)


@pytest.fixture(scope="module")
def compiled(watched: Callable[[str], Any]) -> Any:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for name in NAMES:
                for kind in KINDS:
                    build(name, kind, SHAPE[0])
            build(NAMES[0], "bf16", ir.ShapedType.get_dynamic_size())
        return watched(str(module))


def check(compiled: Any, name: str, kind: str, rows: int, function: str) -> None:
    """Dequantize random elements under every scale byte, and compare the bits."""
    format = FORMATS[name]
    rng = np.random.default_rng(rows)
    codes = rng.integers(0, 1 << format.element.bits, (rows, SHAPE[1], 32)).astype(np.uint8)
    scales = np.resize(rng.permutation(256).astype(np.uint8), (rows, SHAPE[1]))
    elements = pack_elements(codes.reshape(rows, -1), format)
    wanted = dequantize(Quantized(elements, scales, format, None, 1, (rows, SHAPE[1] * 32)))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = wanted.astype(KINDS[kind])
    given = elements.reshape(rows, SHAPE[1], -1).view(np.int8), scales.view(np.int8)
    (found,) = compiled.call(function, *given)
    found = found.reshape(-1).view(KINDS[kind]).reshape(wanted.shape)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    same = np.isnan(wanted) | (found.view(np.uint8) == wanted.view(np.uint8)).reshape(
        *wanted.shape, -1
    ).all(-1)
    assert same.all()
    assert compiled.kernel.name.startswith("mxc_dequantize_") == (format.element.bits == 6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_floats_are_those_of_the_reference(name: str, kind: str, compiled: Any) -> None:
    check(compiled, name, kind, SHAPE[0], f"{name}_{kind}")


@pytest.mark.parametrize("rows", [1, 13, 16])
def test_rows_may_come_with_the_call(rows: int, compiled: Any) -> None:
    check(compiled, NAMES[0], "bf16", rows, f"{NAMES[0]}_bf16_dynamic")
