"""Answers of tokens alone, for artifacts without a tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mxc.runtime.completions.stream import Piece, Stream
from mxc.runtime.engine.engine import Engine
from mxc.runtime.engine.request import Drawn, Outcome, Request, Sampling


def start_tokens(
    engine: Engine,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    sampling: Sampling | None = None,
    ends: Collection[int] = (),
) -> Stream:
    """Queue a prompt; pieces of its stream have tokens and no text.

    ends: tokens after which it ends, which are given out. Raises what Engine.submit raises.
    """
    stream = Stream()
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
    """The engine's listener: each token is a piece."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def drawn(self, drawn: Drawn) -> str | None:
        """Hand it on."""
        self._stream.put(Piece((), drawn))
        return None

    def ended(self, outcome: Outcome) -> None:
        """Hand on the outcome."""
        self._stream.completion.outcome = outcome
        self._stream.put(None)
