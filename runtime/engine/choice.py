"""Choice of the next token of one request: biases, penalties, grammar, then sampling."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError
from mxc.runtime.engine.request import Grammar, SampledToken, Sampling
from mxc.runtime.option_checks import number, whole, whole_number
from mxc.runtime.sampling import Sampler


class Choice:
    """Chooses the tokens of one request, and remembers them for the penalties."""

    def __init__(self, sampling: Sampling, grammar: Grammar | None, vocabulary: int) -> None:
        """Raises RequestError for options out of range, or a bias of a token that is none."""
        self._sampling = sampling
        self._grammar = grammar
        self._sampler = Sampler(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed
        )
        for name in ("presence_penalty", "frequency_penalty"):
            number(name, getattr(sampling, name))
        if sampling.top_logprobs is not None:
            whole_number("logprobs", sampling.top_logprobs, 0)
        biases = _biases(sampling.logit_bias, vocabulary)
        self._biased = np.array(list(biases), np.int64)
        self._bias = np.array(list(biases.values()), np.float32)
        self._counts: Counter[int] = Counter()
        #: Whether the grammar's text is complete.
        self.complete = False

    def __call__(self, logits: NDArray[np.float32]) -> SampledToken:
        """Draw a token from `logits`, f32 [vocabulary].

        Raises RequestError where the logits hold NaN or infinity, or where the grammar allows no
        token.
        """
        row = self._penalized(logits)
        if self._grammar is not None:
            allowed = self._grammar.allowed()
            if not allowed.any():
                raise RequestError("no token of the vocabulary continues the grammar")
            row = np.where(allowed, row, np.float32(-np.inf))
        token = self._sampler(row)
        self._counts[token] += 1
        if self._grammar is not None:
            self.complete = not self._grammar.advance(token)
        if self._sampling.top_logprobs is None:
            return SampledToken(token)
        return _with_logprobs(logits, token, self._sampling.top_logprobs)

    def _penalized(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        asked = self._sampling
        penalties = bool(asked.presence_penalty or asked.frequency_penalty)
        if not self._biased.size and not (penalties and self._counts):
            return logits
        row = logits.copy()
        row[self._biased] += self._bias
        if penalties and self._counts:
            tokens = np.array(list(self._counts), np.int64)
            times = np.array(list(self._counts.values()), np.float32)
            row[tokens] -= asked.presence_penalty + asked.frequency_penalty * times
        return row


def _biases(given: Any, vocabulary: int) -> dict[int, float]:
    """Check amounts by token; minus infinity excludes a token.

    Raises RequestError for another key than a token, and another value than a number.
    """
    if not isinstance(given, Mapping):
        raise RequestError(f"logit_bias must be amounts by token, got {given!r}")
    found = {}
    for key, amount in given.items():
        token = whole(key)
        if token is None:
            raise RequestError(f"logit_bias must have token numbers as keys, got {key!r}")
        if not 0 <= token < vocabulary:
            raise RequestError(
                f"logit_bias names token {token}, which is outside of the vocabulary, "
                f"0 to {vocabulary - 1}"
            )
        excluded = isinstance(amount, float | np.floating) and amount == -math.inf
        found[token] = amount if excluded else number(f"logit_bias of token {token}", amount)
    return found


def _with_logprobs(logits: NDArray[np.float32], token: int, top: int) -> SampledToken:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    likeliest: list[int] = []
    if top:
        found = np.argpartition(wide, -top)[-top:] if top < len(wide) else np.arange(len(wide))
        # Among equals the smallest token id comes first, as in argmax.
        likeliest = found[np.lexsort((found, -wide[found]))].tolist()
    return SampledToken(
        token, float(wide[token]), tuple((each, float(wide[each])) for each in likeliest)
    )
