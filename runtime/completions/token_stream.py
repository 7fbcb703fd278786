"""Streams of tokens without text, for artifacts without a tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mxc.runtime.completions.stream import AnswerPiece, AnswerStream
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.request import Outcome, Request, SampledToken, Sampling


def start_tokens(
    engine: Engine,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    sampling: Sampling | None = None,
    ends: Collection[int] = (),
) -> AnswerStream:
    """Queue a prompt and return its stream, whose pieces have tokens and no text.

    ends: tokens that end the answer and are part of it. Raises the errors of Engine.submit.
    """
    stream = AnswerStream()
    request = Request(
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        listener=_Listener(stream),
        ends=frozenset(ends),
        sampling=sampling or Sampling(),
    )
    stream.submitted(engine.submit(request))
    return stream


class _Listener:
    """The engine's listener: puts each token into the stream as a piece."""

    def __init__(self, stream: AnswerStream) -> None:
        self._stream = stream

    def drawn(self, drawn: SampledToken) -> str | None:
        """Put the token into the stream."""
        self._stream.put(AnswerPiece((), drawn))
        return None

    def ended(self, outcome: Outcome) -> None:
        """Keep the outcome and end the stream."""
        self._stream.completion.outcome = outcome
        self._stream.put(None)
