"""Products of any shapes and formats, drawn by hypothesis, several in each program."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.passes.kernels.conftest import Kernels

WEIGHTS = ("mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2", "mxint8", "bf16", "f32")
ACTIVATIONS = ("f32", "bf16", "bf16r", "f16", "int8", "mxfp4", "mxfp8e4m3", "mxfp8e5m2", "mxint8")


@st.composite
def cases(draw: st.DrawFn) -> str:
    weight, activation = draw(st.sampled_from(WEIGHTS)), draw(st.sampled_from(ACTIVATIONS))
    columns, depth = draw(st.integers(1, 70)), 32 * draw(st.integers(1, 9))
    rows, groups, of, share = draw(st.integers(1, 20)), 1, "", 1
    if weight in ("bf16", "f32"):
        activation = draw(st.sampled_from(ACTIVATIONS[:3]))
    elif draw(st.booleans()):
        experts = draw(st.integers(1, 5))
        groups = draw(st.integers(2, 14))
        of = draw(st.sampled_from([f" of {experts}", " each"]))
        # Groups of one row, if there are several, are sorted by expert.
        rows = 1 if draw(st.booleans()) else draw(st.integers(1, 6))
    divisors = [n for n in range(1, 6) if groups * rows % n == 0]
    share = draw(st.sampled_from(divisors))
    shared = f" share {share}" if share > 1 else ""
    return f"{weight} {activation} {groups}x{rows}x{columns}x{depth}{of}{shared}"


@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(names=st.lists(cases(), min_size=5, max_size=5, unique=True))
def test_any_shape(names: list[str], kernels: Kernels) -> None:
    program = kernels(*names)
    exact, usual = program.draw(exact=True), program.draw(exact=False)
    for name in names:
        assert all(program.layouts(name)), name
        np.testing.assert_array_equal(exact.found(name), exact.wanted(name), err_msg=name)
        usual.check(name)
