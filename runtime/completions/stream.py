"""The stream of an answer: a queue of pieces from the engine's thread to one reader."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from mxc.runtime.completions.deltas import ARGUMENTS, CALL, CONTENT, REASONING, Delta
from mxc.runtime.engine.engine import Handle
from mxc.runtime.engine.request import ERROR, Outcome, SampledToken


@dataclass(frozen=True)
class AnswerPiece:
    """The deltas that one token completes: none, one or several.

    `drawn`: the token; None at the end of the answer, where text that was held back is released.
    `kind`: the kind of the token's text; None for a special token, which is not text.
    """

    deltas: tuple[Delta, ...]
    drawn: SampledToken | None = None
    kind: str | None = None

    @property
    def text(self) -> str:
        """The text of its CONTENT deltas."""
        return "".join(delta.text for delta in self.deltas if delta.kind == CONTENT)


@dataclass
class ToolCall:
    """A function that the model calls, with the text of its arguments, which should be JSON."""

    name: str
    arguments: str = ""


@dataclass
class Completion:
    """An answer, as far as it is generated.

    `drawn`: each token, with log-probabilities where they were requested. `kinds`: the
    `AnswerPiece.kind` of each token.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    drawn: list[SampledToken] = field(default_factory=list)
    kinds: list[str | None] = field(default_factory=list)
    outcome: Outcome | None = None

    @property
    def tokens(self) -> list[int]:
        """All tokens that were generated."""
        return [drawn.token for drawn in self.drawn]

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length" or "cancelled"; None before the end."""
        return None if self.outcome is None else self.outcome.reason

    def add(self, piece: AnswerPiece) -> None:
        """Append a piece."""
        if piece.drawn is not None:
            self.drawn.append(piece.drawn)
            self.kinds.append(piece.kind)
        for delta in piece.deltas:
            if delta.kind == CONTENT:
                self.text += delta.text
            elif delta.kind == REASONING:
                self.reasoning += delta.text
            elif delta.kind == CALL:
                self.tool_calls.append(ToolCall(delta.text))
            elif delta.kind == ARGUMENTS:
                self.tool_calls[-1].arguments += delta.text


class AnswerStream:
    """The pieces of one answer, to be read once: by `for`, by `async for`, or whole.

    Reading raises the error that ended the answer, if any. An unread stream does not block the
    engine. `cancel` ends the answer, and so does leaving the stream as a context manager.
    """

    def __init__(self) -> None:
        """Create an empty stream; call `submitted` before the first read."""
        self.completion = Completion()
        self._pieces: deque[AnswerPiece | None] = deque()
        self._changed = threading.Condition()
        #: Whether the reader waits for the end only, and is not woken for each piece.
        self._whole = False
        self._waker: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._handle: Handle | None = None

    def submitted(self, handle: Handle) -> None:
        """Keep the handle that cancels the request."""
        self._handle = handle

    def put(self, piece: AnswerPiece | None) -> None:
        """Append a piece, or None for the end. Called on the engine's thread."""
        with self._changed:
            self._pieces.append(piece)
            if piece is None or not self._whole:
                self._changed.notify_all()
            waker = self._waker
        if waker is not None:
            loop, event = waker
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def cancel(self) -> None:
        """End the answer; `completion` keeps what was generated so far."""
        if self._handle is not None:
            self._handle.cancel()

    def result(self) -> Completion:
        """Wait for the end and return the whole answer."""
        with self._changed:
            self._whole = True
            while not self._pieces or self._pieces[-1] is not None:
                self._changed.wait()
        for _ in self:
            pass
        return self.completion

    async def complete(self) -> Completion:
        """Wait for the end and return the whole answer."""
        async for _ in self:
            pass
        return self.completion

    def __enter__(self) -> AnswerStream:
        """Return the stream itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel the answer if it has not ended."""
        self.cancel()

    def __iter__(self) -> Iterator[AnswerPiece]:
        """Yield pieces as they are generated."""
        while True:
            with self._changed:
                while not self._pieces:
                    self._changed.wait()
                piece = self._pieces.popleft()
            if piece is None:
                self._raise()
                return
            self.completion.add(piece)
            yield piece

    async def __aiter__(self) -> AsyncIterator[AnswerPiece]:
        """Yield pieces as they are generated, without blocking the event loop."""
        event = asyncio.Event()
        self._waker = (asyncio.get_running_loop(), event)
        while True:
            event.clear()
            while self._pieces:
                piece = self._pieces.popleft()
                if piece is None:
                    self._raise()
                    return
                self.completion.add(piece)
                yield piece
            if not self._pieces:
                await event.wait()

    def _raise(self) -> None:
        outcome = self.completion.outcome
        if outcome is not None and outcome.reason == ERROR and outcome.error is not None:
            raise outcome.error
