"""Element rounding against ml_dtypes and gfloat, over every upper half of a float32."""

from typing import Any

import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest
from gfloat import RoundMode, round_float
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
    INT8,
    ElementFormat,
)
from mxc.formats.rounding import Ties, encode, nearest_integers, round_to_odd, tie_rule

DTYPES = {
    E2M1: ml_dtypes.float4_e2m1fn,
    E2M3: ml_dtypes.float6_e2m3fn,
    E3M2: ml_dtypes.float6_e3m2fn,
    E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2,
    E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
INFOS = {
    E2M1: gf.format_info_ocp_e2m1,
    E4M3: gf.format_info_ocp_e4m3,
    E5M2: gf.format_info_ocp_e5m2,
}


def every_upper_half() -> NDArray[Any]:
    """All finite float32 and Inf by their upper halves, each with five lower halves."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0xFFFF], np.uint32)
    bits = (np.arange(1 << 16, dtype=np.uint32) << 16)[:, None] | lower
    values = bits.view(np.float32).reshape(-1)
    return values[~np.isnan(values)]


@pytest.mark.parametrize("element", DTYPES, ids=str)
def test_to_nearest_even_and_saturating_as_ml_dtypes(element: ElementFormat) -> None:
    values = every_upper_half()
    # ml_dtypes does not saturate the 8-bit types: clamp first, as the specification asks.
    clamped = np.clip(values, -element.max, element.max)
    wanted = clamped.astype(DTYPES[element]).view(np.uint8)
    np.testing.assert_array_equal(encode(values, element), wanted)


def test_int8_is_symmetric_and_to_nearest_even() -> None:
    values = np.concatenate([every_upper_half(), np.arange(-300, 301, dtype=np.float32) / 128])
    with np.errstate(over="ignore"):
        steps = np.clip(np.round(values.astype(np.float64) * 64), -127, 127)
    np.testing.assert_array_equal(encode(values, INT8).view(np.int8), steps)
    assert not (encode(values, INT8) == 0x80).any()


def nearest_by_search(values: NDArray[Any], element: ElementFormat, last: bool) -> NDArray[Any]:
    """Codes of |values| by trying all, the first of the nearest or the last; float64."""
    finite = element.values[: element.max_code + 1].astype(np.float64)
    distance = np.abs(np.abs(values.astype(np.float64))[:, None] - finite)
    if last:
        return element.max_code - distance[:, ::-1].argmin(1)
    return distance.argmin(1)


@pytest.mark.parametrize("element", [E2M1, E2M3, E3M2, E4M3, E4M3FNUZ, INT8], ids=str)
def test_ties_to_zero_and_away_are_the_first_and_the_last_of_the_nearest(
    element: ElementFormat,
) -> None:
    grid = element.values[: element.max_code + 1].astype(np.float64)
    midpoints = (grid[1:] + grid[:-1]) / 2
    around = midpoints.astype(np.float32).view(np.uint32)[:, None] + np.arange(-1, 2)
    rng = np.random.default_rng(5)
    random = rng.uniform(0, 1.2 * element.max, 2000).astype(np.float32)
    values = np.concatenate([around.astype(np.uint32).view(np.float32).reshape(-1), random])
    for ties, last in ((Ties.ZERO, False), (Ties.AWAY, True)):
        for signed in (values, -values):
            found = element.values[encode(signed, element, ties)]
            wanted = grid[nearest_by_search(values, element, last)]
            np.testing.assert_array_equal(found, np.copysign(wanted, signed) + 0.0)
    # On each midpoint the two differ.
    zero, away = (encode(midpoints.astype(np.float32), element, t) for t in (Ties.ZERO, Ties.AWAY))
    np.testing.assert_array_equal(zero.astype(int) + 1, away)


@pytest.mark.parametrize("info", INFOS.values(), ids=lambda info: info.name)
def test_ties_away_is_gfloat(info: Any) -> None:
    element = next(e for e, i in INFOS.items() if i is info)
    values = near_ties(element)
    wanted = [round_float(info, v, RoundMode.TiesToAway, sat=True) for v in values]
    found = element.values[encode(round_to_odd(values), element, Ties.AWAY)]
    np.testing.assert_array_equal(found, wanted)


def test_integers() -> None:
    steps = np.array([0.5, 1.5, 2.5, -0.5, -2.5, 0.49999997, 2.75, -0.0, 2.0**23 + 1], np.float32)
    big = 2.0**23 + 1
    for ties, wanted in (
        (Ties.EVEN, [0, 2, 2, 0, -2, 0, 3, 0, big]),
        (Ties.ZERO, [0, 1, 2, 0, -2, 0, 3, 0, big]),
        (Ties.AWAY, [1, 2, 3, -1, -3, 0, 3, 0, big]),
    ):
        assert nearest_integers(steps, ties).tolist() == wanted


def test_unknown_ties_are_refused_with_the_known_ones() -> None:
    assert tie_rule("away") is Ties.AWAY
    with pytest.raises(FormatError, match=r"'up'.*even, zero, away"):
        tie_rule("up")


def test_nan_is_code_zero() -> None:
    nans = np.array([np.nan, -np.nan], np.float32)
    for element in (*DTYPES, INT8):
        # A NaN that reached a cast to an integer would mean what the machine likes.
        with np.errstate(invalid="raise"):
            codes = encode(nans, element)
        assert (codes & element.magnitude_mask).tolist() == [0, 0]


def test_a_type_too_wide_for_the_table_is_refused() -> None:
    for element in (ElementFormat("e2m6", 2, 6), E8M0):
        with pytest.raises(FormatError, match="does not round exactly through 8 bits"):
            encode(np.ones(1, np.float32), element)


def near_ties(element: ElementFormat) -> NDArray[Any]:
    """float64 at the midpoints of an element type, and closer to them than float32 can say."""
    values = element.values[: element.max_code + 1].astype(np.float64)
    midpoints = (values[:-1] + values[1:]) / 2
    return np.concatenate([midpoints, midpoints * (1 + 2.0**-40), midpoints * (1 - 2.0**-40)])


@pytest.mark.parametrize("element", INFOS, ids=str)
def test_float64_is_not_rounded_twice(element: ElementFormat) -> None:
    values = near_ties(element)
    wanted = [round_float(INFOS[element], v, RoundMode.TiesToEven, sat=True) for v in values]
    found = element.values[encode(round_to_odd(values), element)]
    np.testing.assert_array_equal(found, wanted)
    # The plain conversion is wrong on these values, so that the test can fail.
    assert (element.values[encode(values.astype(np.float32), element)] != wanted).any()


def test_round_to_odd() -> None:
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


def test_beyond_float32_is_refused() -> None:
    with pytest.raises(FormatError, match=r"within float32, found -1e\+300"):
        round_to_odd(np.array([1.0, -1e300]))
