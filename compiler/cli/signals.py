"""Clean exit on signals: the stack unwinds, and unfinished output is removed.

An exception must not be raised in the middle of an import: C++ that initializes a module, such as
that of IREE, ends the process with a trace of its own. Signals wait until the import is over.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

#: Signals that request the end: sent by programs, and by a closing terminal.
_REQUESTS = (signal.SIGTERM, signal.SIGHUP)
#: Seconds after which a signal that came during an import is looked at again.
_AGAIN = 0.02
#: Where the frames of an import are.
_IMPORT = "<frozen importlib._bootstrap>"

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def interrupts_outside_imports() -> Iterator[None]:
    """Turn SIGINT into KeyboardInterrupt as Python does, but not in the middle of an import.

    Where SIGINT is ignored, as in a background job of a script, it stays so.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _outside_imports(interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _outside_imports(handler: Handler) -> Handler:
    """`handler`, called when no import is running."""

    def handle(number: int, frame: FrameType | None) -> None:
        outer = frame
        while outer is not None:
            if outer.f_code.co_filename == _IMPORT:
                signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
                signal.setitimer(signal.ITIMER_REAL, _AGAIN)
                return
            outer = outer.f_back
        handler(number, frame)

    return handle


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

    before = {each: signal.signal(each, _outside_imports(leave)) for each in _REQUESTS}
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
