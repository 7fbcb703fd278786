"""Test cases that frameworks ship, run by the product."""

import numpy as np
import pytest
from framework_cases import difference, outcomes
from frameworks.onnx_cases import cases


@pytest.mark.parametrize(
    ("name", "outcome", "said"),
    [
        ("test_gelu_tanh_2_expanded", "right", ""),
        ("test_averagepool_2d_dilations", "refused", "AveragePool with dilations has no lowering"),
        ("test_sequence_insert_at_front", "skipped", ""),
    ],
)
def test_a_case_of_onnx(name: str, outcome: str, said: str) -> None:
    (case,) = [each for each in cases() if each.name == name]
    ((found, what, text),) = outcomes(case)
    assert (found, what) == (name, outcome)
    assert said in text


def test_differences_are_found() -> None:
    wanted = np.array([1, 2, np.nan], np.float32)
    assert not difference(wanted + np.float32(1e-6), wanted, 1e-5, 0)
    assert "first at [0]" in difference(wanted[::-1], wanted, 1e-5, 0)
    assert "wants (3,)" in difference(wanted[:2], wanted, 0, 0)
    assert "wants float32" in difference(wanted.astype(np.float64), wanted, 0, 0)
    bytes_ = np.array([200], np.uint8)
    assert not difference(bytes_.view(np.int8), bytes_, 0, 0), "bytes have no sign"
    large = np.array([1 << 30])
    assert difference(large + 1, large, 1e-5, 0), "integers are exact"
