"""Element rounding against ml_dtypes and gfloat, over every upper half of a float32."""

import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest
from gfloat import RoundMode, round_float

from mxc.dialects.errors import FormatError
from mxc.dialects.formats import E2M1, E2M3, E3M2, E4M3, E5M2, E8M0, INT8, ElementFormat
from mxc.dialects.rounding import encode, round_to_odd

DTYPES = {
    E2M1: ml_dtypes.float4_e2m1fn,
    E2M3: ml_dtypes.float6_e2m3fn,
    E3M2: ml_dtypes.float6_e3m2fn,
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
}
INFOS = {
    E2M1: gf.format_info_ocp_e2m1,
    E4M3: gf.format_info_ocp_e4m3,
    E5M2: gf.format_info_ocp_e5m2,
}


def every_upper_half():
    """All finite float32 and Inf by their upper halves, each with five lower halves."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0xFFFF], np.uint32)
    bits = (np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] | lower
    values = bits.view(np.float32).reshape(-1)
    return values[~np.isnan(values)]


@pytest.mark.parametrize("element", DTYPES, ids=str)
def test_to_nearest_even_and_saturating_as_ml_dtypes(element):
    values = every_upper_half()
    # ml_dtypes does not saturate the 8-bit types: clamp first, as the specification asks.
    clamped = np.clip(values, -element.max, element.max)
    wanted = clamped.astype(DTYPES[element]).view(np.uint8)
    np.testing.assert_array_equal(encode(values, element), wanted)


def test_int8_is_symmetric_and_to_nearest_even():
    values = np.concatenate([every_upper_half(), np.arange(-300, 301, dtype=np.float32) / 128])
    with np.errstate(over="ignore"):
        steps = np.clip(np.round(values.astype(np.float64) * 64), -127, 127)
    np.testing.assert_array_equal(encode(values, INT8).view(np.int8), steps)
    assert not (encode(values, INT8) == 0x80).any()


def test_nan_is_code_zero():
    nans = np.array([np.nan, -np.nan], np.float32)
    for element in (*DTYPES, INT8):
        # A NaN that reached a cast to an integer would mean what the machine likes.
        with np.errstate(invalid="raise"):
            codes = encode(nans, element)
        assert (codes & element.magnitude_mask).tolist() == [0, 0]


def test_a_type_too_wide_for_the_table_is_refused():
    for element in (ElementFormat("e2m6", 2, 6), E8M0):
        with pytest.raises(FormatError, match="does not round exactly through 8 bits"):
            encode(np.ones(1, np.float32), element)


def near_ties(element):
    """float64 at the midpoints of an element type, and closer to them than float32 can say."""
    values = element.values[: element.max_code + 1].astype(np.float64)
    midpoints = (values[:-1] + values[1:]) / 2
    return np.concatenate([midpoints, midpoints * (1 + 2.0**-40), midpoints * (1 - 2.0**-40)])


@pytest.mark.parametrize("element", INFOS, ids=str)
def test_float64_is_not_rounded_twice(element):
    values = near_ties(element)
    wanted = [round_float(INFOS[element], v, RoundMode.TiesToEven, sat=True) for v in values]
    found = element.values[encode(round_to_odd(values), element)]
    np.testing.assert_array_equal(found, wanted)
    # The plain conversion is wrong on these values, so that the test can fail.
    assert (element.values[encode(values.astype(np.float32), element)] != wanted).any()


def test_round_to_odd():
    one = 1 + 2.0**-23
    values = np.array([1.0, 1 + 2.0**-40, one, one + 2.0**-40, one - 2.0**-40, -1 - 2.0**-50, 0.0])
    wanted = [1.0, one, one, one, one, -one, 0.0]
    assert round_to_odd(values).tolist() == wanted
    # Between one and the float after next: the odd one, which is not the nearest.
    assert round_to_odd(np.array([1 + 2.0**-22 - 2.0**-50])).tolist() == [one]
    special = round_to_odd(np.array([np.inf, -np.inf, np.nan, -0.0, 5e-324, 2.0**-149]))
    assert special[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(special[2])
    assert np.signbit(special[3])
    assert special[4:].tolist() == [2.0**-149, 2.0**-149]


def test_beyond_float32_is_refused():
    with pytest.raises(FormatError, match=r"within float32, found -1e\+300"):
        round_to_odd(np.array([1.0, -1e300]))
