"""Products whose results are only rounded to bf16: kernels store bf16, on the simulator.

Elements are small multiples of 1/2, and so is every sum: products are exact, and bits are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor

from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of, generic, shape_of
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import FORMATS
from mxc.formats.packing import pack_elements
from mxc.formats.reference import Quantized, dequantize
from mxc.formats.rounding import encode

BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Case:
    """A product of [m, k] of `lhs` by mxfp4 weights [n, k].

    `gated`: whether the result is the left half of the columns times the right half.
    """

    m: int
    n: int
    k: int
    lhs: str
    gated: bool = False

    @property
    def name(self) -> str:
        return f"{self.lhs}_{self.m}x{self.n}x{self.k}" + ("_gated" if self.gated else "")


#: Streams, with columns that are no multiple of four and with partial tiles of rows; a ring of two
#: scaled sides, and a ring of sides that become floats.
CASES = [
    Case(3, 64, 512, "mxfp4"),
    Case(5, 38, 64, "mxfp8e4m3"),
    Case(20, 96, 160, "bf16", gated=True),
    Case(300, 288, 512, "mxfp8e4m3"),
    Case(300, 288, 512, "bf16"),
]


def build(case: Case) -> None:
    """Build the function of a case: packed operands -> the result in bf16, as one flat row."""
    byte, f32, bf16 = ir.IntegerType.get_signless(8), ir.F32Type.get(), ir.BF16Type.get()

    def sizes(rows: int, format: str) -> list[ir.Type]:
        blocks = [rows, case.k // 32]
        whole = [*blocks, FORMATS[format].block_bytes]
        return [ir.RankedTensorType.get(each, byte) for each in (whole, blocks)]

    floats = case.lhs == "bf16"
    left = [ir.RankedTensorType.get([case.m, case.k // 32, 32], bf16)]
    kinds = [*(left if floats else sizes(case.m, case.lhs)), *sizes(case.n, "mxfp4")]

    def body(*given: ir.Value) -> ir.Value:
        scale = ir.Type.parse("f8E8M0FNU")
        *lhs, elements, scales = given
        rhs = unpack(elements, ir.Type.parse(FORMATS["mxfp4"].element.mlir))
        of_lhs = {} if floats else {"lhs_scale": unpack(lhs[1], scale)}
        x = lhs[0]
        if not floats:
            x = unpack(x, ir.Type.parse(FORMATS[case.lhs].element.mlir))
        y = scaled_contraction(x, rhs, rhs_scale=unpack(scales, scale), **of_lhs)
        if case.gated:
            half = case.n // 2
            kind = ir.RankedTensorType.get([case.m, half], f32)
            halves = [
                tensor.extract_slice(kind, y, [], [], [], [0, at], [case.m, half], [1, 1])
                for at in (0, half)
            ]
            y = generic([(each, "m n") for each in halves], "m n", f32, arith.mulf)
        size = shape_of(y)[0] * shape_of(y)[1]
        y = tensor.collapse_shape(ir.RankedTensorType.get([size], element_of(y)), y, [[0, 1]])
        return generic([(y, "n")], "n", bf16, lambda x: arith.truncf(bf16, x))

    func.FuncOp.from_py_func(*kinds, name=case.name)(body)


@pytest.fixture(scope="module")
def compiled(watched: Callable[[str], Any]) -> Any:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for case in CASES:
                build(case)
        return watched(str(module))


def operand(rng: np.random.Generator, rows: int, k: int, name: str) -> Quantized:
    """Draw an operand: numbers that every format holds exactly, under scales near one."""
    values = rng.choice([0, 0.5, 1, 1.5, 2, 3, 4, 6], (rows, k)).astype(np.float32)
    values *= rng.choice([-1, 1], (rows, k))
    elements = pack_elements(encode(values, FORMATS[name].element), FORMATS[name])
    scales = rng.integers(126, 129, (rows, k // 32), dtype=np.uint8)
    return Quantized(elements, scales, FORMATS[name], None, 1, (rows, k))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_are_rounded(case: Case, compiled: Any) -> None:
    rng = np.random.default_rng(case.k)
    rhs = operand(rng, case.n, case.k, "mxfp4")
    if case.lhs == "bf16":
        x = dequantize(operand(rng, case.m, case.k, "mxfp4")).astype(np.float32)
        given = [x.astype(BF16).reshape(case.m, -1, 32)]
    else:
        lhs = operand(rng, case.m, case.k, case.lhs)
        x = dequantize(lhs).astype(np.float32)
        given = [lhs.elements.reshape(case.m, case.k // 32, -1).view(np.int8), lhs.scales]
    given += [rhs.elements.reshape(case.n, case.k // 32, -1).view(np.int8), rhs.scales]
    exact = x.astype(np.float64) @ dequantize(rhs).astype(np.float64).T
    if case.gated:
        exact = exact[:, : case.n // 2] * exact[:, case.n // 2 :]
    arrays = [each.view(np.int8) if each.dtype == np.uint8 else each for each in given]
    (found,) = compiled.call(case.name, *arrays)
    wanted = exact.astype(np.float32).astype(BF16)
    np.testing.assert_array_equal(found.view(BF16).reshape(wanted.shape), wanted)
    assert compiled.kernel.name.endswith("_as_bf16") or "_as_bf16_from_" in compiled.kernel.name
