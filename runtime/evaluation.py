"""Perplexity of a model over a text, and divergence of its predictions from another model's.

The text is cut into windows. Each token of a window except the first is predicted from the tokens
before it in the window:

    perplexity     exp(mean of -log p(token)), natural logarithms
    KL divergence  sum over the vocabulary of q (log q - log p), of each prediction: q is the other
                   model's distribution, p this model's; 0 where they are equal
    agreement      share of predictions whose most likely token is the same
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mxc.errors import RequestError

if TYPE_CHECKING:
    from mxc.runtime.session import Model

#: Called with the number of tokens done and the number of all tokens.
Progress = Callable[[int, int], None]

#: Tokens fed at a time: their logits over a vocabulary of 200,000 take 100 MiB.
_FED = 128
#: Rows of logits evaluated at a time: in float64, over a vocabulary of 200,000, they take 25 MiB.
_ROWS = 16


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """Perplexity of one model over a text; `error` is the standard error of `perplexity`."""

    perplexity: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference of a model's predictions from another's; divergences in nats per token."""

    mean_kl: float
    median_kl: float
    kl_99: float
    largest_kl: float
    agreement: float
    #: Share of predictions with NaN or infinity in the logits of either model, left out above.
    not_finite: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Result of `evaluate`: figures of a model over a text, and of the model `against`, if given.

    `tokens`: tokens of the text. `predicted`: tokens that were predicted. `window`: tokens per
    window.
    """

    tokens: int
    predicted: int
    window: int
    model: Perplexity
    against: Perplexity | None
    difference: Difference | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures for JSON, with null in place of NaN and infinity."""
        found: dict[str, Any] = _finite(asdict(self))
        return found


def evaluate(
    model: Model,
    tokens: Sequence[int],
    *,
    window: int | None = None,
    against: Model | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate `model` on `tokens`, window by window.

    window: tokens per window; by default the smaller of the models' maximum sequence lengths.
    against: the model to compare with. Raises RequestError for fewer than two tokens, a window
    longer than a model's sequences, a token outside of a vocabulary, and models of different
    vocabularies.
    """
    models = [model] if against is None else [model, against]
    sizes = [_size(each) for each in models]
    if len({vocabulary for vocabulary, _ in sizes}) > 1:
        raise RequestError(
            f"{model.path} has a vocabulary of {sizes[0][0]} tokens, {models[1].path} of "
            f"{sizes[1][0]}; only models with the same tokens can be compared"
        )
    longest = min(length for _, length in sizes)
    window = longest if window is None else window
    if not 2 <= window <= longest:
        raise RequestError(f"a window of {window} tokens: give 2 to {longest}")
    if len(tokens) < 2:
        raise RequestError(f"a text of {len(tokens)} tokens predicts nothing; give a longer one")
    surprises: list[list[NDArray[np.float64]]] = [[] for _ in models]
    divergences: list[NDArray[np.float64]] = []
    agreed: list[NDArray[np.bool_]] = []
    for start in range(0, len(tokens) - 1, window):
        piece = tokens[start : start + window]
        sequences = [each.sequence() for each in models]
        for first in range(0, len(piece) - 1, _FED):
            # The token after the last one is unknown, so the last one is not fed.
            fed = piece[first : min(first + _FED, len(piece) - 1)]
            truth = np.asarray(piece[first + 1 : first + 1 + len(fed)])
            logits = [sequence.feed(fed) for sequence in sequences]
            for row in range(0, len(fed), _ROWS):
                rows = slice(row, row + _ROWS)
                logs = [log_softmax(each[rows]) for each in logits]
                for found, log in zip(surprises, logs, strict=True):
                    found.append(-np.take_along_axis(log, truth[rows, None], 1)[:, 0])
                if against is not None:
                    divergences.append(kl_divergence(logs[1], logs[0]))
                    agreed.append(logs[0].argmax(1) == logs[1].argmax(1))
            if progress is not None:
                progress(start + first + len(fed), len(tokens))
    perplexities = [_perplexity(np.concatenate(found)) for found in surprises]
    return Evaluation(
        tokens=len(tokens),
        predicted=sum(map(len, surprises[0])),
        window=window,
        model=perplexities[0],
        against=None if against is None else perplexities[1],
        difference=None
        if against is None
        else _difference(np.concatenate(divergences), np.concatenate(agreed)),
    )


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return natural log-probabilities, float64, of logits [rows, vocabulary].

    A row with NaN or positive infinity becomes NaN.
    """
    wide = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wide -= wide.max(axis=1, keepdims=True)
        wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def kl_divergence(q: NDArray[np.float64], p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return KL(q || p) in nats of each row of log-probabilities [rows, vocabulary]."""
    with np.errstate(invalid="ignore"):
        terms = np.exp(q) * (q - p)
    # Tokens with probability 0 in q (-inf) add nothing, whatever p is.
    found: NDArray[np.float64] = np.where(np.isneginf(q), 0.0, terms).sum(axis=1)
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _perplexity(surprises: NDArray[np.float64]) -> Perplexity:
    mean = float(surprises.mean())
    deviation = float(surprises.std()) / math.sqrt(len(surprises))
    value = math.nan if math.isnan(mean) else math.exp(mean) if mean < 700 else math.inf
    return Perplexity(perplexity=value, error=value * deviation)


def _difference(divergences: NDArray[np.float64], agreed: NDArray[np.bool_]) -> Difference:
    finite = np.isfinite(divergences)
    known = np.maximum(divergences[finite], 0.0)  # rounding may give -1e-17
    if not known.size:
        return Difference(
            mean_kl=math.nan, median_kl=math.nan, kl_99=math.nan, largest_kl=math.nan,
            agreement=0.0, not_finite=1.0,
        )  # fmt: skip
    return Difference(
        mean_kl=float(known.mean()),
        median_kl=float(np.median(known)),
        kl_99=float(np.quantile(known, 0.99)),
        largest_kl=float(known.max()),
        agreement=float(agreed[finite].mean()),
        not_finite=float(1 - finite.mean()),
    )


def _size(model: Model) -> tuple[int, int]:
    """Return the vocabulary size and the maximum sequence length."""
    record = model.manifest.model
    if record is None:
        raise RequestError(f"{model.path}: not a language model; there are no tokens to predict")
    return record.vocab_size, record.max_sequence_length
