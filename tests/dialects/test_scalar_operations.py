"""Scalar operations on arrays: those of the types, as numpy and ml_dtypes compute them."""

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.scalar_operations import decoded, evaluate

FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def operation(line: str, *kinds: str) -> ir.Operation:
    """The operation `line` over %a, %b, .. of the given types, and the module that keeps it."""
    arguments = ", ".join(f"%{name}: {kind}" for name, kind in zip("abc", kinds, strict=False))
    module = ir.Module.parse(f"func.func @f({arguments}) {{ %r = {line}\n return }}")
    return module, module.body.operations[0].regions[0].blocks[0].operations[0].operation


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    ("name", "reference"),
    [("addf", np.add), ("subf", np.subtract), ("mulf", np.multiply), ("divf", np.divide)],
)
def test_floats_are_rounded_once(kind: str, name: str, reference: np.ufunc) -> None:
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 16, (2, 4000)).astype(np.uint16)
    if kind == "f32":
        bits = rng.integers(0, 1 << 32, (2, 4000)).astype(np.uint32)
    with np.errstate(all="ignore"):
        a, b = bits.view(FLOATS[kind])
        wanted = reference(a, b).astype(np.float64)
        inputs = [a.astype(np.float64), b.astype(np.float64)]
    with new_context():
        _, op = operation(f"arith.{name} %a, %b : {kind}", kind, kind)
        found = evaluate(op, inputs)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        ("arith.addi %a, %b : i8", lambda a, b: a + b),
        ("arith.muli %a, %b : i8", lambda a, b: a * b),
        ("arith.shli %a, %b : i8", lambda a, b: (a.view(np.uint8) << b.view(np.uint8)) * (b < 8)),
        ("arith.shrsi %a, %b : i8", lambda a, b: a >> b),
        ("arith.maxsi %a, %b : i8", np.maximum),
        ("arith.minui %a, %b : i8", lambda a, b: np.minimum(a.view(np.uint8), b.view(np.uint8))),
        ("arith.cmpi slt, %a, %b : i8", np.less),
        ("arith.cmpi ugt, %a, %b : i8", lambda a, b: a.view(np.uint8) > b.view(np.uint8)),
    ],
)
def test_integers_are_bits(line: str, reference: np.ufunc) -> None:
    rng = np.random.default_rng(4)
    a = rng.integers(-128, 128, 5000).astype(np.int8)
    b = rng.integers(0, 8, 5000).astype(np.int8)
    wanted = reference(a, b)
    with new_context():
        _, op = operation(line, "i8", "i8")
        found = evaluate(op, [a.view(np.uint8).astype(np.uint64), b.astype(np.uint64)])
    width = 1 if wanted.dtype == bool else 255
    np.testing.assert_array_equal(found, wanted.astype(np.int64) & width)


@pytest.mark.parametrize(
    ("line", "kinds", "given", "wanted"),
    [
        ("arith.extsi %a : i8 to i32", ["i8"], [0x80], 0xFFFFFF80),
        ("arith.sitofp %a : i8 to f32", ["i8"], [0x80], -128.0),
        ("arith.uitofp %a : i8 to f32", ["i8"], [0x80], 128.0),
        ("arith.bitcast %a : i32 to f32", ["i32"], [0x3FC00000], 1.5),
        ("arith.bitcast %a : f32 to i32", ["f32"], [1.5], 0x3FC00000),
        ("arith.bitcast %a : i16 to bf16", ["i16"], [0x3FC0], 1.5),
        ("arith.truncf %a : f32 to bf16", ["f32"], [3.4e38], np.inf),
        ("arith.truncf %a : f32 to f16", ["f32"], [65520.0], np.inf),
        ("math.exp2 %a : f32", ["f32"], [-127.0], 2.0**-127),
        ("math.powf %a, %b : f32", ["f32", "f32"], [2.0, 128.0], np.inf),
        ("math.fpowi %a, %b : f32, i32", ["f32", "i32"], [2.0, 0xFFFFFF81], 2.0**-127),
        ("arith.select %a, %b, %b : i8", ["i1", "i8"], [1, 7], 7),
        ("arith.cmpf une, %a, %b : f32", ["f32", "f32"], [np.nan, 1.0], 1),
        ("arith.cmpf ord, %a, %b : f32", ["f32", "f32"], [np.nan, 1.0], 0),
    ],
)
def test_one_value(line: str, kinds: list[str], given: list[float], wanted: float) -> None:
    inputs = [
        np.array([value], np.float64 if "f" in kind else np.uint64)
        for kind, value in zip(kinds, given, strict=True)
    ]
    with new_context():
        _, op = operation(line, *kinds)
        found = evaluate(op, [inputs[0], inputs[1], inputs[1]] if "select" in line else inputs)
    np.testing.assert_array_equal(found, [wanted])


@pytest.mark.parametrize("line", ["math.exp %a : f32", "arith.truncf %a : f32 to f8E4M3FN"])
def test_what_has_no_one_value_is_not_known(line: str) -> None:
    with new_context():
        _, op = operation(line, "f32")
        assert evaluate(op, [np.ones(1)]) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [("f4E2M1FN", ml_dtypes.float4_e2m1fn), ("f8E8M0FNU", ml_dtypes.float8_e8m0fnu)],
)
def test_codes(name: str, kind: type) -> None:
    codes = np.arange(16, dtype=np.uint8)
    with new_context():
        found = decoded(codes.astype(np.uint64), ir.Type.parse(name))
    np.testing.assert_array_equal(found, codes.view(kind).astype(np.float64))
