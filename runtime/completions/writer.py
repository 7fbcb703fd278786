"""Decodes and parses the tokens of an answer on the engine's thread, and fills its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mxc.runtime.completions.deltas import CALL, CONTENT, AnswerParser, Delta
from mxc.runtime.completions.stream import AnswerPiece, AnswerStream
from mxc.runtime.engine.request import STOP, Outcome, SampledToken
from mxc.runtime.text import StopStrings, Text


class Writer:
    """The engine's listener for one answer. Stop strings are searched in its content only."""

    def __init__(
        self,
        text: Text,
        parser: AnswerParser,
        stream: AnswerStream,
        *,
        markers: Mapping[int, str],
        ends: frozenset[int],
        stop: Sequence[str] = (),
        special: bool = False,
        one_call: bool = False,
        on_end: Callable[[Outcome], None] | None = None,
    ) -> None:
        """Create the listener; RequestError for an empty stop string.

        markers: special tokens for the parser, by id. ends: end-of-sequence tokens, which are not
        text. special: other special tokens are text. one_call: the answer ends with its first call.
        """
        self._text = text
        self._special = special
        self._one_call = one_call
        self._called = False
        self._on_end = on_end
        self._decoder = text.decoder(skip_special_tokens=not special)
        self._parser = parser
        self._stream = stream
        self._markers = markers
        self._ends = ends
        self._stop = StopStrings(stop)

    def drawn(self, drawn: SampledToken) -> str | None:
        """Decode and parse a token; return STOP where the answer contains a stop string, or has the
        only call that it may have."""
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
        self._stream.put(AnswerPiece(self._stopped(deltas), drawn, kind))
        self._called |= any(delta.kind == CALL for delta in deltas)
        done = self._one_call and self._called and self._parser.kind != CALL
        return STOP if done or self._stop.found is not None else None

    def ended(self, outcome: Outcome) -> None:
        """Release the text that was held back, keep the outcome, and end the stream."""
        held = self._stopped(self._flushed() + self._parser.finish())
        rest = self._stop.finish()
        if rest:
            held += (Delta(CONTENT, rest),)
        if held:
            self._stream.put(AnswerPiece(held))
        if self._on_end is not None:
            self._on_end(outcome)
        self._stream.completion.outcome = outcome
        self._stream.put(None)

    def _flushed(self) -> list[Delta]:
        """Parse the incomplete characters that the decoder holds, before a token without text."""
        rest = self._decoder.finish()
        self._decoder = self._text.decoder(skip_special_tokens=not self._special)
        return self._parser.text(rest)

    def _stopped(self, deltas: Sequence[Delta]) -> tuple[Delta, ...]:
        """Return the deltas before a stop string, without text that may begin one."""
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
