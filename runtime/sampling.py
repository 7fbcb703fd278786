"""The choice of the next token from logits.

Temperature, top-k, top-p and min-p are applied in this order, each to what the one before kept,
as transformers does (generation/utils.py, `_get_logits_processor`); a test compares the
probabilities that remain.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError


class Sampler:
    """Draws tokens; greedy where temperature is 0. Two samplers of one seed draw the same."""

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
    ) -> None:
        """Set the distribution.

        temperature: 0 or above. top_k: keep the k most likely tokens, and those as likely as the
        last of them; at least 1. top_p: keep the most likely tokens that together reach this
        probability; 0 to 1. min_p: keep tokens at least this many times as likely as the most
        likely one; 0 to 1. None keeps all. seed: 0 or above; None is a different one each time.
        Raises RequestError for values outside of these ranges.
        """
        _within("temperature", temperature, 0.0, None)
        _within("top-p", top_p, 0.0, 1.0)
        _within("min-p", min_p, 0.0, 1.0)
        _within("top-k", top_k, 1, None)
        _within("seed", seed, 0, None)
        self.temperature = float(temperature)
        self.top_k = top_k
        self.top_p = top_p
        self.min_p = min_p
        self._random = np.random.default_rng(seed)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """The next token after `logits`, [vocab_size] or [1, vocab_size]."""
        row = np.asarray(logits).reshape(-1)
        if self.temperature == 0:
            return _likeliest(row)
        tokens, weights = self._kept(row)
        # Inverse of the cumulative distribution; the largest value is exactly the total.
        total = np.cumsum(weights)
        return int(tokens[np.searchsorted(total, self._random.random() * total[-1], side="right")])

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """What is drawn from: float64 [vocab_size], sums to 1, 0 for what is not kept."""
        row = np.asarray(logits).reshape(-1)
        result = np.zeros(row.shape, np.float64)
        if self.temperature == 0:
            result[_likeliest(row)] = 1.0
        else:
            tokens, weights = self._kept(row)
            result[tokens] = weights / weights.sum()
        return result

    def _kept(self, row: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Token ids that may be drawn, in ascending order, and their unnormalised probabilities."""
        wide = row.astype(np.float64)
        # Less the largest before the division: a tiny temperature makes infinities of the others.
        with np.errstate(over="ignore"):
            scores = (wide - wide[_likeliest(row)]) / self.temperature
        tokens = np.arange(len(scores))
        if self.top_k is not None and self.top_k < len(scores):
            least = np.partition(scores, -self.top_k)[-self.top_k]
            tokens = np.flatnonzero(scores >= least)
        weights = np.exp(scores[tokens])
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(weights, kind="stable")
            below = np.cumsum(weights[order]) / weights.sum() <= 1 - self.top_p
            below[-1] = False  # the most likely token always stays
            keep = np.sort(order[~below])
            tokens, weights = tokens[keep], weights[keep]
        if self.min_p is not None:
            keep = np.flatnonzero(weights >= self.min_p * weights.max())
            tokens, weights = tokens[keep], weights[keep]
        return tokens, weights


def _within(name: str, value: float | None, low: float, high: float | None) -> None:
    if value is None:
        return
    if not value >= low or (high is not None and value > high) or value == float("inf"):
        wanted = f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
        wanted += " and finite" if value == float("inf") and high is None else ""
        raise RequestError(f"{name} must be {wanted}, got {value}")


def _likeliest(row: NDArray[np.float32]) -> int:
    """The token of the greatest logit, the first of equal ones.

    Raises RequestError where that is no number: a model that computes NaN, which numpy takes for
    the greatest, has no next token, and +inf would make every other one impossible.
    """
    token = int(np.argmax(row))
    if not np.isfinite(row[token]):
        raise RequestError(
            "the model's logits hold NaN or infinity, so no token can be chosen; "
            "`mxc report` shows how it was compiled"
        )
    return token
