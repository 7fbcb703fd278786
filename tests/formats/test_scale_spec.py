"""The strings of scalings: what TensorCast says they mean, and that each meaning has one string."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxc.errors import FormatError, MxcError
from mxc.formats.formats import FORMATS
from mxc.formats.scale_spec import (
    NUMBERS,
    NumberKind,
    ScaleSpec,
    parse,
    parse_number,
    parse_scaling,
)

# docs/scale.md of TensorCast (branch triton), both of its tables: scale, zero, tenscale, tiles of
# the last two axes (None: one scale for each index, "channel": 0).
TENSORCAST = {
    "float32": ("float32", None, None, ()),
    "float32_t0": ("float32", None, None, ((0, -1),)),
    "e8m0_t32": ("e8m0", None, None, ((32, -1),)),
    "float16_int8_t16n2m4": ("float16", "int8", None, ((16, -1),)),
    "e8m0_t16s4_t16s4": ("e8m0", None, None, ((16, -2), (16, -1))),
    "bfloat16_bfloat16_t0_t32": ("bfloat16", "bfloat16", None, ((0, -2), (32, -1))),
    "e4m3_float32_t16_t16": ("e4m3", None, "float32", ((16, -2), (16, -1))),
}


def name(number: Any) -> str | None:
    return None if number is None else number.name


@pytest.mark.parametrize("text", TENSORCAST)
def test_strings_of_tensorcast_mean_what_its_documentation_says(text: str) -> None:
    scale, zero, tensor, tiles = TENSORCAST[text]
    found = parse_scaling(text)
    assert (name(found.scale), name(found.zero), name(found.tensor)) == (scale, zero, tensor)
    assert tuple((tile.size, tile.axis) for tile in found.tiles) == tiles
    assert str(found) == text


def test_subtiles_and_sparsity_are_parsed_and_refused_by_name() -> None:
    sparse, subtiled = parse_scaling("float16_int8_t16n2m4"), parse_scaling("e8m0_t16s4_t16s4")
    assert sparse.tiles[0].sparsity == (2, 4)
    assert [tile.subtile for tile in subtiled.tiles] == [4, 4]
    with pytest.raises(FormatError, match=r"float16_int8_t16n2m4': 2:4 sparsity is not computed"):
        sparse.require_compiled()
    with pytest.raises(FormatError, match=r"subtiles \(s4\).*codebooks"):
        subtiled.require_compiled()
    for codebook in ("cb41fi_e2m1fnuz", "icb42p1f6431", "l42f6431_e4m3fn"):
        with pytest.raises(FormatError, match=rf"codebooks \({codebook}\) are not computed"):
            parse(f"{codebook}:e8m0_t32")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("float32_t", "float32_t0"),
        ("multi_float32_e4m3_t16", "e4m3_float32_t16"),
        ("multi_float32_float16_t16", "multi_float32_float16_t16"),
        ("float32_bfloat16_int8_t4", "float32_bfloat16_int8_t4"),
        ("E8M0_T32D-1", "e8m0_t32"),
        ("e8m0_t32d0", "e8m0_t32d0"),
        ("e8m0_t8d0_t4", "e8m0_t8d0_t4"),
        ("multi_float32_bfloat16_int8_t4", "float32_bfloat16_int8_t4"),
        ("e4m3_int8_t16", "e4m3_int8_t16"),
        ("float32_e4m3_e5m2_t16", "float32_e4m3_e5m2_t16"),
    ],
)
def test_other_spellings(text: str, canonical: str) -> None:
    assert str(parse_scaling(text)) == canonical


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("torch.float8_e4m3fn", "e4m3"),
        ("float8_e5m2fnuz", "e5m2fnuz"),
        ("e4m3b8fnuz", "e4m3fnuz"),
        ("e2m1fnuz", "e2m1"),
        ("torch.bfloat16", "bfloat16"),
    ],
)
def test_names_of_torch_and_of_tensorcast(text: str, known: str) -> None:
    assert parse_number(text).name == known


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("bfloat16", "bfloat16"),
        ("e4m3fn", "e4m3"),
        ("e2m1fnuz_e8m0_t32", "e2m1:e8m0_t32"),
        ("uint4_float32_float16_int8_t0_t32", "uint4:float32_float16_int8_t0_t32"),
    ],
)
def test_names_of_datatypes_of_tensorcast(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


def test_formats_are_specs() -> None:
    wanted = {
        "mxfp4": "e2m1:e8m0_t32",
        "mxfp6e2m3": "e2m3:e8m0_t32",
        "mxfp6e3m2": "e3m2:e8m0_t32",
        "mxfp8e4m3": "e4m3:e8m0_t32",
        "mxfp8e5m2": "e5m2:e8m0_t32",
        "mxint8": "int8:e8m0_t32",
        "nvfp4": "e2m1:e4m3_float32_t16",
    }
    assert {text: str(parse(text)) for text in FORMATS} == wanted


numbers = st.sampled_from([*NUMBERS, "int2", "int4", "int8", "int16", "uint2", "uint4", "uint8"])
tiles = st.builds(
    lambda size, rest, axis: f"t{size}{rest}{axis}",
    st.sampled_from(["", "0", "4", "32", "128", "7"]),
    st.sampled_from(["", "", "", "s4", "n2m4", "s2n1m2"]),
    st.sampled_from(["", "", "d0", "d1", "d-3"]),
)
strings = st.builds(
    lambda multi, values, shapes: "_".join([*multi, *values, *shapes]),
    st.sampled_from([[], [], [], ["multi"]]),
    st.lists(numbers, min_size=1, max_size=3),
    st.lists(tiles, max_size=2),
)
specs = st.builds(lambda data, scaling: f"{data}:{scaling}", numbers, strings)


@given(specs)
def test_what_is_parsed_is_printed_and_parsed_again(text: str) -> None:
    try:
        spec = parse(text)
    except FormatError:
        return
    assert parse(str(spec)) == spec
    assert str(parse(str(spec))) == str(spec)
    assert (spec.data.kind is NumberKind.UNSIGNED) == (spec.scaling.zero is not None)


@given(strings)
def test_scalings_too(text: str) -> None:
    try:
        scaling = parse_scaling(text)
    except FormatError:
        return
    assert parse_scaling(str(scaling)) == scaling


@given(st.text(alphabet="ebfloatuint0123456789msnd_:-. ", max_size=40) | st.text(max_size=20))
def test_any_text_is_a_spec_or_a_refusal(text: str) -> None:
    with suppress(MxcError):
        assert isinstance(parse(text), ScaleSpec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("e2m1:e8m0_t32x", "unknown number 't32x'"),
        ("e2m1:t32", "one to three numbers, found 0"),
        ("e2m1:e8m0_t32_e8m0", "after the first tile there are tiles, found 'e8m0'"),
        ("e2m1:e8m0_t4_t4_t4", "at most two axes"),
        ("e2m1:e8m0_t0_t0", "of two tiles one has a size"),
        ("e2m1:e8m0_t4d1_t8d1", "two tiles are for one axis"),
        ("e2m1:int8_t32", "a scale is a float or e8m0, found int8"),
        ("uint4:e8m0_t32", "uint4 data wants a zero point"),
        ("uint4:float16_uint4_t32", "a zero point is a float or intK, found uint4"),
        ("int4:float16_int8_t32", "int4 data wants no zero point"),
        ("e2m1:e4m3_float16_t16", "a tensor scale is a float32, found float16"),
        ("e2m1:e4m3_float32", "beside the scales of tiles; add a tile"),
        ("float32:float32", "float32 is not scaled"),
        ("e8m0:float32", "data is a float or an integer"),
        ("int4", "int4 data wants a scaling"),
        ("e2m1:e8m0_t32s5", "a subtile divides its tile"),
        ("e2m1:e8m0_t32n4m2", "0 < N < M"),
        ("e9m9:e8m0_t32", r"unknown number 'e9m9'; mxc knows float32, .*uint16"),
        ("multi_float32", "unknown number"),
        ("e2m1:" + "_" * 300, "at most 200 characters"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse(text)
