"""Tokens to text and deltas, on the engine's thread: what the stream of an answer is fed with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mxc.runtime.completions.deltas import CONTENT, AnswerParser, Delta
from mxc.runtime.completions.stream import Piece, Stream
from mxc.runtime.engine.request import STOP, Drawn, Outcome
from mxc.runtime.text import StopStrings, Text


class Writer:
    """The engine's listener for one answer. Stop strings are looked for in its content alone."""

    def __init__(
        self,
        text: Text,
        parser: AnswerParser,
        stream: Stream,
        *,
        markers: Mapping[int, str],
        ends: frozenset[int],
        stop: Sequence[str] = (),
        special: bool = False,
        on_end: Callable[[Outcome], None] | None = None,
    ) -> None:
        """Raises RequestError for an empty stop string. special: special tokens are text."""
        self._text = text
        self._special = special
        self._on_end = on_end
        self._decoder = text.decoder(skip_special_tokens=not special)
        self._parser = parser
        self._stream = stream
        self._markers = markers
        self._ends = ends
        self._stop = StopStrings(stop)

    def drawn(self, drawn: Drawn) -> str | None:
        """Decode, parse, look for a stop string."""
        token = drawn.token
        if token in self._markers:
            kind = None
            deltas = self._flushed()
            deltas += self._parser.marker(self._markers[token])
        elif token in self._ends:
            kind, deltas = None, self._flushed()
        else:
            deltas = self._parser.text(self._decoder.push(token))
            kind = self._parser.kind
        self._stream.put(Piece(self._stopped(deltas), drawn, kind))
        return STOP if self._stop.found is not None else None

    def ended(self, outcome: Outcome) -> None:
        """Give out what was held back, and the outcome."""
        held = self._stopped(self._flushed() + self._parser.finish())
        rest = self._stop.finish()
        if rest:
            held += (Delta(CONTENT, rest),)
        if held:
            self._stream.put(Piece(held))
        if self._on_end is not None:
            self._on_end(outcome)
        self._stream.completion.outcome = outcome
        self._stream.put(None)

    def _flushed(self) -> list[Delta]:
        """Text of incomplete characters, before something that is no text."""
        rest = self._decoder.finish()
        self._decoder = self._text.decoder(skip_special_tokens=not self._special)
        return self._parser.text(rest)

    def _stopped(self, deltas: Sequence[Delta]) -> tuple[Delta, ...]:
        """The deltas before a stop string, less what may begin one."""
        given: list[Delta] = []
        for delta in deltas:
            if self._stop.found is not None:
                break
            if delta.kind == CONTENT:
                text = self._stop.push(delta.text)
            else:
                # Content in front of a call can no longer become a stop string.
                rest = self._stop.finish()
                if rest:
                    given.append(Delta(CONTENT, rest))
                given.append(delta)
                continue
            if text:
                given.append(Delta(CONTENT, text))
        return tuple(given)
