"""Sending answers: whole or as server-sent events, until the client disconnects or times out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mxc.runtime.completions.stream import AnswerPiece, AnswerStream, Completion
from mxc.server.errors import as_api_error

T = TypeVar("T")

#: Seconds in which the client must take the last event of a stream.
_LAST_SECONDS = 5.0


class ClientLeft(Exception):
    """The client has disconnected."""


async def whole(
    request: Request, streams: Sequence[AnswerStream], seconds: float
) -> list[Completion]:
    """Wait for all answers and return them.

    Cancels them, and raises ClientLeft or TimeoutError, where the client disconnects or `seconds`
    have passed. Also raises the error that ended an answer.
    """
    try:
        async with asyncio.timeout(seconds):
            together = asyncio.gather(*(stream.complete() for stream in streams))
            return await unless_left(request.receive, together)
    finally:
        for stream in streams:
            stream.cancel()


async def unless_left(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`; cancel it and raise ClientLeft if the client disconnects."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
        return await task
    finally:
        for each in (task, left):
            each.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def merged(streams: Sequence[AnswerStream]) -> AsyncGenerator[tuple[int, AnswerPiece | None]]:
    """Yield (index of the stream, piece) of several answers as they come; None at each end.

    Raises the error that ended one of them.
    """
    queue: asyncio.Queue[tuple[int, AnswerPiece | BaseException | None]] = asyncio.Queue()

    async def read(number: int, stream: AnswerStream) -> None:
        try:
            async for piece in stream:
                queue.put_nowait((number, piece))
            queue.put_nowait((number, None))
        except Exception as error:
            queue.put_nowait((number, error))

    tasks = [asyncio.create_task(read(*each)) for each in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            number, piece = await queue.get()
            if isinstance(piece, BaseException):
                raise piece
            left -= piece is None
            yield number, piece
    finally:
        for task in tasks:
            task.cancel()


def event(data: Any, name: str | None = None) -> bytes:
    """Return the bytes of one server-sent event with `data` as JSON."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """A response of server-sent events.

    Its streams are cancelled when the client disconnects or `seconds` have passed.
    """

    def __init__(
        self, events: AsyncIterator[bytes], streams: Sequence[AnswerStream], seconds: float
    ) -> None:
        """events: the encoded events; an error that they raise becomes the last event."""
        super().__init__(media_type="text/event-stream")
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        del self.headers["content-length"]
        self._events, self._streams, self._seconds = events, streams, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until there are no more."""
        try:
            await unless_left(receive, self._send(send))
        except (ClientLeft, OSError):  # TimeoutError is one
            pass  # the client cannot be told
        finally:
            for stream in self._streams:
                stream.cancel()

    async def _send(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        try:
            async with asyncio.timeout(self._seconds):
                async for data in self._events:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            last = b""
        except Exception as error:
            last = event(as_api_error(error).body())
        async with asyncio.timeout(_LAST_SECONDS):  # the client may have stopped reading
            await send({"type": "http.response.body", "body": last, "more_body": False})
