"""What is asked of the engine, and what it answers: records without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

#: Why a request ended. A listener may end it for a reason of its own.
STOP, LENGTH, CANCELLED, ERROR = "stop", "length", "cancelled", "error"


class Grammar(Protocol):
    """What restricts the tokens of one request."""

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, bool [vocabulary]."""

    def advance(self, token: int) -> bool:
        """Note that `token` came; False where the text is complete with it."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen: as `Sampler` has it, after biases and penalties.

    presence_penalty and frequency_penalty are taken from the logits of tokens that were generated
    already, once and for each time. logit_bias is added to logits by token. top_logprobs: how many
    of the likeliest tokens each answer lists, None without log-probabilities; they are of the
    model's own distribution, before bias, penalties and temperature.
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
class Drawn:
    """One generated token. With log-probabilities: its own, and those of the likeliest tokens."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a request ended.

    cached_tokens: tokens of the prompt that were not computed, because the prefix cache had them.
    Times are those of time.monotonic(): when it was submitted, first ran, had its first token and
    ended; None for what did not happen.
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
    """Who is told what becomes of a request. Called on the engine's thread: it must not wait."""

    def drawn(self, drawn: Drawn) -> str | None:
        """A token came. Returns the reason to end the request with it, or None."""

    def ended(self, outcome: Outcome) -> None:
        """The request has ended; nothing follows."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Tokens to continue. Ends after a token of `ends`, which is given out, or `max_tokens`."""

    prompt: tuple[int, ...]
    max_tokens: int
    listener: Listener
    ends: frozenset[int] = frozenset()
    sampling: Sampling = Sampling()
    grammar: Grammar | None = None
