"""Requests to the engine and their results: records without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

#: Reasons why a request ended. A listener may end it with a reason of its own.
STOP, LENGTH, CANCELLED, ERROR = "stop", "length", "cancelled", "error"


class Grammar(Protocol):
    """Restricts the tokens of one request."""

    def allowed(self) -> NDArray[np.bool_]:
        """Return which tokens may come next, bool [vocabulary]."""

    def advance(self, token: int) -> bool:
        """Advance the grammar past `token`; return False where `token` completes the text."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of sampling: those of `Sampler`, and biases and penalties, which are applied first.

    presence_penalty is subtracted once from the logit of each token that was generated already,
    frequency_penalty once for each time that it was. logit_bias: amounts added to logits, by token.
    top_logprobs: how many of the likeliest tokens are listed with each drawn token; None for no
    log-probabilities. Log-probabilities are those of the model's own distribution, before bias,
    penalties and temperature.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int | None = None


@dataclass(frozen=True)
class SampledToken:
    """One generated token, with its log-probability and the likeliest tokens if requested.

    `top`: (token, log-probability), the likeliest first.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a request ended.

    cached_tokens: number of prompt tokens that were not computed, because the prefix cache had
    them. `submitted`, `started`, `first_token` and `ended` are times of time.monotonic(), None for
    events that did not happen.
    """

    reason: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    submitted: float
    started: float | None
    first_token: float | None
    ended: float
    error: BaseException | None = None


class Listener(Protocol):
    """Receives the tokens and the outcome of a request on the engine's thread; must not block."""

    def drawn(self, drawn: SampledToken) -> str | None:
        """Take a token. Return a reason to end the request with this token, or None."""

    def ended(self, outcome: Outcome) -> None:
        """Take the outcome; no call follows."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Tokens to continue, until a token of `ends`, which is reported too, or `max_tokens`."""

    prompt: tuple[int, ...]
    max_tokens: int
    listener: Listener
    ends: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    grammar: Grammar | None = None
