"""What is kept, and with which probability, against the processors of transformers."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mxc.errors import RequestError
from mxc.runtime.sampling import Sampler


def theirs(
    logits: np.ndarray,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
) -> np.ndarray:
    """In the order of transformers' generation/utils.py."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        processors.append(TopKLogitsWarper(top_k))
    if top_p is not None and top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    if min_p is not None:
        processors.append(MinPLogitsWarper(min_p))
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    return processors(torch.zeros(1, 0, dtype=torch.long), scores).softmax(-1)[0].numpy()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    list(
        itertools.product(
            [0.3, 1.0, 2.5], [None, 1, 7, 500], [None, 0.0, 0.1, 0.9, 1.0], [None, 0.0, 0.05, 1.0]
        )
    ),
)
def test_probabilities_are_those_of_transformers(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    logits = np.random.default_rng(1).standard_normal(257).astype(np.float32) * 3
    got = Sampler(temperature, top_k, top_p, min_p, seed=0).probabilities(logits)
    want = theirs(logits, temperature, top_k, top_p, min_p)
    np.testing.assert_array_equal(got > 0, want > 0)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@settings(max_examples=150, deadline=None)
@given(
    logits=st.lists(st.integers(-6, 6), min_size=1, max_size=24),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.none() | st.integers(1, 30),
    min_p=st.none() | st.sampled_from([0.01, 0.3]),
)
def test_ties(
    logits: list[int], temperature: float, top_k: int | None, min_p: float | None
) -> None:
    """Whole numbers make many ties; top-k and min-p keep all tokens of the last value kept.

    (Which of several equal tokens top-p drops is left open by an unstable sort on their side.)
    """
    row = np.array(logits, np.float32)
    got = Sampler(temperature, top_k, None, min_p, seed=0).probabilities(row)
    np.testing.assert_allclose(got, theirs(row, temperature, top_k, None, min_p), rtol=1e-12)


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.75])
def test_top_p_on_the_edge(top_p: float) -> None:
    """Four equal tokens: exactly as many are kept as reach the probability, as they count."""
    row = np.zeros(4, np.float32)
    got = Sampler(1.0, top_p=top_p, seed=0).probabilities(row)
    want = theirs(row, 1.0, None, top_p, None)
    assert np.count_nonzero(got) == np.count_nonzero(want) == 4 * top_p


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95])
def test_top_p_of_a_large_vocabulary(spread: float, top_p: float) -> None:
    """Many tokens have nearly the probability at which tokens are left out."""
    row = (np.random.default_rng(2).standard_normal(50_000) * spread).astype(np.float32)
    row = np.unique(row)  # which of equal tokens is left out is open
    got = Sampler(1.0, top_p=top_p, seed=0).probabilities(row)
    want = theirs(row, 1.0, None, top_p, None)
    np.testing.assert_array_equal(got > 0, want > 0)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_masked_tokens_are_never_drawn() -> None:
    row = np.full(50, -np.inf, np.float32)
    row[[3, 8]] = [1.0, 2.0]
    draw = Sampler(1.0, top_p=0.99999, seed=3)
    assert {draw(row) for _ in range(100)} == {3, 8}


def test_draws_follow_the_probabilities() -> None:
    """Chi-squared of 20000 draws over 6 tokens: below the 0.9999 quantile for 5 degrees, 25.7."""
    row = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04], np.float32))
    draw = Sampler(1.0, seed=11)
    counts = np.bincount([draw(row) for _ in range(20000)], minlength=6)
    want = 20000 * draw.probabilities(row)
    assert ((counts - want) ** 2 / want).sum() < 25.7


def test_seeds() -> None:
    row = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    draws = [[sampler(row) for _ in range(20)] for sampler in map(_seeded, (5, 5, 6))]
    assert draws[0] == draws[1] != draws[2]


def _seeded(seed: int) -> Sampler:
    return Sampler(1.5, seed=seed)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.5}])
@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-30])
def test_a_tiny_temperature_takes_the_most_likely(
    temperature: float, options: dict[str, Any]
) -> None:
    row = np.array([1, -np.inf, 3e38, -3e38, 3e38], np.float32)
    sampler = Sampler(temperature, seed=0, **options)
    assert {sampler(row) for _ in range(50)} == {2, 4}
    np.testing.assert_array_equal(sampler.probabilities(row), [0, 0, 0.5, 0, 0.5])


def test_greedy_takes_the_first_of_equals() -> None:
    greedy = Sampler()
    assert greedy(np.array([[1, 5, 5, 0]], np.float32)) == 1
    np.testing.assert_array_equal(greedy.probabilities(np.array([1, 5, 5], np.float32)), [0, 1, 0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[1.0, np.nan], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_logits_that_are_no_numbers(temperature: float, row: list[float]) -> None:
    with pytest.raises(RequestError, match="logits hold NaN or infinity"):
        Sampler(temperature, seed=0)(np.array(row, np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be at least 0, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be at least 0, got nan"),
        ({"temperature": float("inf")}, "temperature must be at least 0 and finite, got inf"),
        ({"top_k": 0}, "top-k must be at least 1, got 0"),
        ({"top_p": 1.5}, "top-p must be 0 to 1, got 1.5"),
        ({"min_p": -1.0}, "min-p must be 0 to 1, got -1.0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Sampler(**options)
