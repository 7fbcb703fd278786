"""Clean exit on SIGTERM and SIGHUP: the stack unwinds, and unfinished output is removed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

#: Signals that request the end: sent by programs, and by a closing terminal.
_REQUESTS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit with status 128 + signal number, as in shells.

    The command line does the same for SIGINT, which Python turns into KeyboardInterrupt. A second
    signal while the stack unwinds is ignored.
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
    """Not an Exception, so that no handler of errors catches it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
