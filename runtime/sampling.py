"""Sampling of the next token from logits.

Temperature, top-k, top-p and min-p are applied in this order, each to the tokens that the previous
one kept, as transformers does (generation/utils.py, `_get_logits_processor`). A test compares the
resulting probabilities.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError
from mxc.runtime.option_checks import number, whole_number

#: Bits of a float64 below the exponent and the six highest bits of the mantissa.
_LOW_BITS = 46


class Sampler:
    """Draws tokens; greedy where temperature is 0. Samplers with equal seeds draw equal tokens."""

    def __init__(
        self,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
    ) -> None:
        """Set the distribution.

        temperature: 0 or above. top_k: keep the k most likely tokens, and ties with the last of
        them; at least 1. top_p: keep the most likely tokens that together reach this probability;
        0 to 1. min_p: keep tokens whose probability is at least this fraction of the highest; 0
        to 1. None keeps all. seed: 0 or above; None takes a random seed. Raises RequestError for
        values of other types or outside of these ranges.
        """
        self.temperature = number("temperature", temperature, 0.0)
        self.top_k = None if top_k is None else whole_number("top-k", top_k, 1)
        self.top_p = None if top_p is None else number("top-p", top_p, 0.0, 1.0)
        self.min_p = None if min_p is None else number("min-p", min_p, 0.0, 1.0)
        start = None if seed is None else whole_number("seed", seed, 0)
        self._random = np.random.default_rng(start)

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Draw the next token from `logits`, [vocab_size] or [1, vocab_size]."""
        row = np.asarray(logits).reshape(-1)
        if self.temperature == 0:
            return _likeliest(row)
        tokens, weights = self._kept(row)
        # Inverse of the cumulative distribution; the largest value is exactly the total.
        total = np.cumsum(weights)
        return int(tokens[np.searchsorted(total, self._random.random() * total[-1], side="right")])

    def probabilities(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the distribution to draw from: float64 [vocab_size], 0 for tokens not kept."""
        row = np.asarray(logits).reshape(-1)
        result = np.zeros(row.shape, np.float64)
        if self.temperature == 0:
            result[_likeliest(row)] = 1.0
        else:
            tokens, weights = self._kept(row)
            result[tokens] = weights / weights.sum()
        return result

    def _kept(self, row: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the kept token ids in ascending order, and their unnormalized probabilities."""
        greatest = row[_likeliest(row)]
        tokens = np.arange(len(row))
        if self.top_k is not None and self.top_k < len(row):
            tokens = np.flatnonzero(row >= np.partition(row, -self.top_k)[-self.top_k])
            row = row[tokens]
        weights = self._weights(row, greatest)
        if self.top_p is not None and self.top_p < 1:
            keep = _likeliest_together(weights, self.top_p)
            tokens, weights = tokens[keep], weights[keep]
        if self.min_p is not None:
            keep = np.flatnonzero(weights >= self.min_p * weights.max())
            tokens, weights = tokens[keep], weights[keep]
        return tokens, weights

    def _weights(self, row: NDArray[np.float32], greatest: np.float32) -> NDArray[np.float64]:
        """Unnormalized probabilities; 1 for a logit of `greatest`."""
        # In place: a vocabulary of float64 is more than a megabyte, and new memory costs more time
        # than the arithmetic.
        wide = row.astype(np.float64)
        # The maximum is subtracted before the division, which can overflow for tiny temperatures.
        wide -= greatest
        with np.errstate(over="ignore"):
            wide /= self.temperature
        return np.exp(wide, out=wide)


def _likeliest_together(weights: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """Indices, ascending, of the greatest weights that together reach a share of the total."""
    # The bits of floats from zero on have their order. Weights with equal exponents and equal high
    # bits of the mantissa are summed, and only those where the sum passes the rest are sorted.
    groups = weights.view(np.int64) >> _LOW_BITS
    sums = np.cumsum(np.bincount(groups, weights))
    rest, greatest = (1 - share) * sums[-1], len(sums) - 1
    border = min(int(np.searchsorted(sums, rest, side="right")), greatest)
    found = np.flatnonzero(groups == border)
    found = found[np.argsort(weights[found], kind="stable")]
    below = (sums[border - 1] if border else 0.0) + np.cumsum(weights[found]) <= rest
    if border == greatest:
        below[-1] = False  # the greatest always stays
    return np.sort(np.concatenate([found[~below], np.flatnonzero(groups > border)]))


def _likeliest(row: NDArray[np.float32]) -> int:
    """Return the token with the greatest logit, the first among equals.

    Raises RequestError where the greatest logit is NaN or +inf. Any NaN raises, because argmax
    returns the place of a NaN.
    """
    token = int(np.argmax(row))
    if not np.isfinite(row[token]):
        raise RequestError(
            "the model's logits hold NaN or infinity, so no token can be chosen; "
            "`mxc report` shows how it was compiled"
        )
    return token
