"""Formats are known by the values that a program computes for every code."""

import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.decoded_formats import Decoding, decoding_of
from mxc.dialects.scalar_trees import tree_of
from mxc.formats.formats import FORMATS

PROGRAM = """
func.func @f(%codes: tensor<4x8xELEMENT>, %scales: tensor<4x8xSCALE>) -> tensor<4x8xKIND> {
  %e = tensor.empty() : tensor<4x8xKIND>
  %w = linalg.generic {
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k)>,
                       affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}
      ins(%codes, %scales : tensor<4x8xELEMENT>, tensor<4x8xSCALE>) outs(%e : tensor<4x8xKIND>) {
  ^bb0(%code: ELEMENT, %scale: SCALE, %o: KIND):
    BODY
    linalg.yield %y : KIND
  } -> tensor<4x8xKIND>
  return %w : tensor<4x8xKIND>
}"""

EXTENDED = """%a = arith.extf %code : ELEMENT to KIND
    %b = arith.extf %scale : SCALE to KIND
    %y = arith.mulf %a, %b : KIND"""
#: i8 times 2^-6, as mxint8 has it, times two to a byte less 127.
INTEGER = """%a = arith.sitofp %code : i8 to f32
    %w = arith.extui %scale : i8 to i32
    %bias = arith.constant 133 : i32
    %n = arith.subi %w, %bias : i32
    %two = arith.constant 2.0 : f32
    %b = math.fpowi %two, %n : f32, i32
    %y = arith.mulf %a, %b : f32"""


#: The scale of a whole tensor of nvfp4 times those of its blocks.
OF_THE_TENSOR = """%a = arith.extf %code : ELEMENT to f32
    %b = arith.extf %scale : SCALE to f32
    %whole = arith.constant 0.3 : f32
    %by = arith.mulf %b, %whole : f32
    %y = arith.mulf %a, %by : f32"""


def find(body: str, element: str, scale: str, kind: str = "f32") -> Decoding | str | None:
    text = PROGRAM.replace("BODY", body)
    for name, given in {"ELEMENT": element, "SCALE": scale, "KIND": kind}.items():
        text = text.replace(name, given)
    module = ir.Module.parse(text)
    *_, end = module.body.operations[0].regions[0].blocks[0].operations
    loops = [ir.AffineDimExpr.get(i) for i in range(2)]
    found = decoding_of(tree_of(end.operands[0], loops, [4, 8], lambda value: True), [4, 8])
    return found


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "mxint8"])
@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_extended_and_multiplied(name: str, kind: str) -> None:
    format = FORMATS[name]
    with new_context():
        found = find(EXTENDED, format.element.mlir, format.scale.mlir, kind)
        assert isinstance(found, Decoding)
        assert (found.format.name, str(found.kind)) == (name, kind)
        assert found.signed_zeros
        assert found.differs == ()


def test_a_scale_of_the_whole_tensor_is_a_factor() -> None:
    with new_context():
        found = find(OF_THE_TENSOR, "f4E2M1FN", "f8E4M3FN")
        assert isinstance(found, Decoding)
        assert found.format.name == "nvfp4"
        assert found.factor == pytest.approx(0.3)
        other = find(OF_THE_TENSOR.replace("mulf %b", "addf %b"), "f4E2M1FN", "f8E4M3FN")
        assert not isinstance(other, Decoding)


def test_f16_lacks_most_scales() -> None:
    with new_context():
        found = find(EXTENDED, "f4E2M1FN", "f8E8M0FNU", "f16")
        assert isinstance(found, str)
        assert "mxfp4" in found or "no block format" in found
        narrow = find(EXTENDED, "f4E2M1FN", "f8E4M3FN", "f16")
        assert isinstance(narrow, Decoding)
        assert narrow.format.name == "nvfp4"


def test_integers() -> None:
    with new_context():
        found = find(INTEGER, "i8", "i8")
        assert isinstance(found, Decoding)
        assert found.format.name == "mxint8"
        assert found.elements.value != found.scale.value
        # Under byte 0 this multiplies by 2^-133 first, which is not 2^-6 times 2^-127 rounded.
        assert all("scale byte" in each for each in found.differs)


def test_an_almost_right_table_names_the_code() -> None:
    body = (
        EXTENDED.replace("%y = arith.mulf %a, %b", "%z = arith.mulf %a, %b")
        + """
    %most = arith.constant 448.0 : f32
    %is = arith.cmpf oeq, %a, %most : f32
    %y = arith.select %is, %a, %z : f32"""
    )
    with new_context():
        found = find(body, "f8E4M3FN", "f8E8M0FNU")
    assert isinstance(found, str)
    assert found.startswith("it is decoded almost as mxfp8e4m3: code 126 under scale byte 1 is 448")


def test_a_zero_without_sign() -> None:
    minus = (
        EXTENDED.replace("%y = arith.mulf %a, %b", "%z = arith.mulf %a, %b")
        + """
    %zero = arith.constant 0.0 : f32
    %is = arith.cmpf oeq, %z, %zero : f32
    %y = arith.select %is, %zero, %z : f32"""
    )
    with new_context():
        found = find(minus, "f4E2M1FN", "f8E8M0FNU")
        assert isinstance(found, Decoding)
        assert not found.signed_zeros
