"""Constant tensors are read code by code, whatever MLIR prints of them, and written again."""

import numpy as np
import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.tensor_constants import codes_of, constant_tensor, is_constant

#: Bits of each type.
WIDTHS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8E4M3FN": 8, "f8E5M2": 8, "f8E8M0FNU": 8,
    "f4E2M1FN": 4, "i32": 32, "i16": 16, "i8": 8, "i4": 4,
}  # fmt: skip
#: Few elements are printed as numbers, many as bytes.
SHAPES = ((4, 6), (40, 60))


def value_of(text: str) -> tuple[ir.Value, ir.Module]:
    """The last operation's result, and the module, which has to live as long."""
    module = ir.Module.parse(f"func.func @f() {{\n{text}\nreturn\n}}")
    body = module.body.operations[0].regions[0].blocks[0]
    return list(body.operations)[-2].results[0], module


def drawn(shape: tuple[int, ...], bits: int) -> np.ndarray:
    width = max(bits, 8)
    codes = np.random.default_rng(bits).integers(0, 256, (*shape, width // 8), np.uint8)
    return codes.view(f"u{width // 8}")[..., 0] & ((1 << bits) - 1)


def text_of(codes: np.ndarray, element: str) -> str:
    kind = "x".join(map(str, codes.shape)) + f"x{element}"
    return f'%c = arith.constant dense<"0x{codes.tobytes().hex()}"> : tensor<{kind}>'


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("element", WIDTHS)
def test_codes_are_what_was_written(element: str, shape: tuple[int, ...]) -> None:
    codes = drawn(shape, WIDTHS[element])
    with new_context(), ir.Location.unknown():
        value, _parsed = value_of(text_of(codes, element))
        assert is_constant(value)
        assert (codes_of(value) == codes).all()
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = constant_tensor(codes_of(value).transpose(1, 0), ir.Type.parse(element))
        assert str(made.type) == f"tensor<{shape[1]}x{shape[0]}x{element}>"
        assert (codes_of(made) == codes.T).all()


def test_a_repeated_element_reshapes_and_bytes_of_nibbles() -> None:
    with new_context(), ir.Location.unknown():
        ones, _ones = value_of("%c = arith.constant dense<1.0> : tensor<2x6xf8E8M0FNU>")
        assert codes_of(ones).tolist() == [[127] * 6] * 2
        nibbles, _nibbles = value_of(
            "%c = arith.constant dense<[[18, -2]]> : tensor<1x2xi8>\n"
            "%n = flow.tensor.bitcast %c : tensor<1x2xi8> -> tensor<1x4xf4E2M1FN>\n"
            "%r = tensor.expand_shape %n [[0], [1, 2]] output_shape [1, 2, 2] : "
            "tensor<1x4xf4E2M1FN> into tensor<1x2x2xf4E2M1FN>"
        )
        assert is_constant(nibbles)
        assert codes_of(nibbles).tolist() == [[[2, 1], [14, 15]]]
        others, _others = value_of(
            "%c = arith.constant dense<1> : tensor<2x4xi8>\n"
            "%n = flow.tensor.bitcast %c : tensor<2x4xi8> -> tensor<2x1xi32>"
        )
        assert not is_constant(others)
