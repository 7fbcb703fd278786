"""Pieces of models by the stock compiler on the simulator: some of those of the script."""

import random
from dataclasses import replace

import numpy as np
import pytest
import stock_kernels
from stock_cases import Case, cases

SEED, COUNT = 16, 8
EVERY = [(target, case) for target in stock_kernels.TARGETS for case in cases()]
CHOSEN = random.Random(SEED).sample(EVERY, COUNT)


@pytest.mark.parametrize(
    ("target", "case"), CHOSEN, ids=[f"{target} {case.name}" for target, case in CHOSEN]
)
def test_results_and_no_accusation(target: str, case: Case) -> None:
    assert stock_kernels.run(case, target) == ("right", "")


def test_a_wrong_result_would_be_seen() -> None:
    case = next(case for case in cases() if case.name == "add f32")
    wrong = replace(case, wanted=lambda a, b: np.add(a, b) + 0.1)
    assert stock_kernels.run(wrong, "gfx950")[0] == "wrong"
