"""Every code of every format, and all that is derived, against ml_dtypes, gfloat and OCP MX 1.0."""

from typing import Any

import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest
from gfloat import decode_float
from numpy.typing import NDArray

from mxc.errors import FormatError
from mxc.formats.formats import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    FORMATS,
    INT8,
    BlockFormat,
    ElementFormat,
    Specials,
    block_format,
)

FLOATS = {
    E2M1: (ml_dtypes.float4_e2m1fn, gf.format_info_ocp_e2m1),
    E2M3: (ml_dtypes.float6_e2m3fn, gf.format_info_ocp_e2m3),
    E3M2: (ml_dtypes.float6_e3m2fn, gf.format_info_ocp_e3m2),
    E4M3: (ml_dtypes.float8_e4m3fn, gf.format_info_ocp_e4m3),
    E5M2: (ml_dtypes.float8_e5m2, gf.format_info_ocp_e5m2),
    E8M0: (ml_dtypes.float8_e8m0fnu, gf.format_info_ocp_e8m0),
}
# Types that no block format uses, and some that somebody may add: the derivation must hold.
OTHERS = {
    E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    ElementFormat("e3m4", 3, 4, Specials.IEEE): ml_dtypes.float8_e3m4,
    ElementFormat("e4m3 with Inf", 4, 3, Specials.IEEE): ml_dtypes.float8_e4m3,
}
DTYPES = {element: dtype for element, (dtype, _) in FLOATS.items()} | OTHERS


def ml_dtypes_values(element: ElementFormat) -> NDArray[Any]:
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    return codes.view(DTYPES[element]).astype(np.float32)


def gfloat_values(info: Any) -> NDArray[Any]:
    return np.array([decode_float(info, code).fval for code in range(1 << info.k)], np.float32)


def assert_same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Equal to the bit, where any NaN equals any other."""
    assert found.dtype == wanted.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(found[numbers].view(np.uint32), wanted[numbers].view(np.uint32))


@pytest.mark.parametrize("element", DTYPES, ids=str)
def test_every_code_means_what_ml_dtypes_says(element: ElementFormat) -> None:
    assert_same(element.values, ml_dtypes_values(element))


@pytest.mark.parametrize("element", FLOATS, ids=str)
def test_every_code_means_what_gfloat_says(element: ElementFormat) -> None:
    assert_same(element.values, gfloat_values(FLOATS[element][1]))


def test_int8_counts_sixty_fourths() -> None:
    assert_same(INT8.values, gfloat_values(gf.format_info_ocp_int8))
    np.testing.assert_array_equal(INT8.values, np.arange(256).astype(np.int8) / 64)


@pytest.mark.parametrize("element", DTYPES, ids=str)
def test_limits_are_those_of_ml_dtypes(element: ElementFormat) -> None:
    info = ml_dtypes.finfo(DTYPES[element])
    assert element.max == float(info.max)
    assert element.min_normal == float(info.smallest_normal)
    assert element.bits == info.bits
    if element is not E8M0:
        assert element.min_positive == float(info.smallest_subnormal)
    values = ml_dtypes_values(element)
    assert element.nan_codes == tuple(np.flatnonzero(np.isnan(values)))
    assert element.inf_codes == tuple(np.flatnonzero(np.isinf(values)))


# OCP MX 1.0: section 5.3, and the emax of section 6.3.
SPEC = [
    (E2M1, 6.0, 2, 1.0, 0.5),
    (E2M3, 7.5, 2, 1.0, 0.125),
    (E3M2, 28.0, 4, 0.25, 0.0625),
    (E4M3, 448.0, 8, 2.0**-6, 2.0**-9),
    (E5M2, 57344.0, 15, 2.0**-14, 2.0**-16),
    (INT8, 1 + 63 / 64, 0, 1.0, 1 / 64),
    (E8M0, 2.0**127, 127, 2.0**-127, 2.0**-127),
]


@pytest.mark.parametrize(("element", "largest", "emax", "normal", "least"), SPEC, ids=str)
def test_limits_are_those_of_the_specification(
    element: ElementFormat, largest: float, emax: int, normal: float, least: float
) -> None:
    assert element.max == largest
    assert element.emax == emax
    assert element.min_normal == normal
    assert element.min_positive == least
    assert element.values[element.max_code] == largest


@pytest.mark.parametrize("element", FLOATS, ids=str)
def test_mlir_name_is_that_of_the_same_ml_dtype(element: ElementFormat) -> None:
    name = np.dtype(DTYPES[element]).name
    assert element.mlir == "f" + name.removeprefix("float").replace("_", "").upper()


def test_int8_is_i8_in_mlir() -> None:
    assert INT8.mlir == "i8"


def test_values_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        E2M1.values[0] = 1


# OCP MX 1.0 table 1, through gfloat.
GFLOAT_BLOCKS = {
    "mxfp4": gf.format_info_mxfp4_e2m1,
    "mxfp6e2m3": gf.format_info_mxfp6_e2m3,
    "mxfp6e3m2": gf.format_info_mxfp6_e3m2,
    "mxfp8e4m3": gf.format_info_mxfp8_e4m3,
    "mxfp8e5m2": gf.format_info_mxfp8_e5m2,
    "mxint8": gf.format_info_mxint8,
}


@pytest.mark.parametrize("name", GFLOAT_BLOCKS)
def test_mx_blocks_are_those_of_gfloat(name: str) -> None:
    ours, theirs = FORMATS[name], GFLOAT_BLOCKS[name]
    assert ours.block == theirs.k
    assert ours.scale is E8M0
    assert ours.block_bytes + 1 == theirs.block_size_bytes
    assert ours.element.max == theirs.etype.max
    assert not ours.tensor_scale


def test_formats_are_the_mx_ones_and_nvfp4() -> None:
    assert set(FORMATS) == {*GFLOAT_BLOCKS, "nvfp4"}
    nvfp4 = FORMATS["nvfp4"]
    assert (nvfp4.block, nvfp4.element, nvfp4.scale) == (16, E2M1, E4M3)
    assert nvfp4.tensor_scale


def test_a_format_is_found_by_name_and_stays_itself() -> None:
    for name, format in FORMATS.items():
        assert block_format(name) is format
        assert block_format(format) is format
        assert str(format) == name


def test_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(FormatError, match=r"'mxfp5'.*mxfp4, mxfp6e2m3, .*nvfp4"):
        block_format("mxfp5")


def test_partial_block_is_refused_with_the_cure() -> None:
    with pytest.raises(FormatError, match=r"multiple of 32 elements, found 100; pad to 128"):
        FORMATS["mxfp4"].blocks(100)


def test_packed_size() -> None:
    assert FORMATS["mxfp4"].packed_bytes(2880) == 1440
    assert FORMATS["mxfp6e3m2"].packed_bytes(2880) == 2160
    assert FORMATS["mxint8"].packed_bytes(2880) == 2880
    assert BlockFormat("one line", E2M3, 64).block_bytes == 48
