"""An end that is asked for: the stack unwinds, what is half-written goes, one line says so."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

#: Requests to end: by a program, and by a terminal that closes.
_REQUESTS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit with 128 + the signal's number, as shells have it.

    For an interrupt (SIGINT), which Python turns into KeyboardInterrupt, the command line does the
    same. While the stack unwinds, a second request changes nothing.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        for each in _REQUESTS:
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(128 + number)

    before = {each: signal.signal(each, leave) for each in _REQUESTS}
    try:
        yield
    except _Ended as ended:
        typer.echo("terminated", err=True)
        raise typer.Exit(ended.status) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Ended(BaseException):
    """No Exception: nothing on the way may take it for an error."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
