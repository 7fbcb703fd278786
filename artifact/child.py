"""A process of Python of its own, with limits of memory and time, that runs one function of ours.

What may crash, hang or take all memory runs in one: the compiler, a chat template, a tokenizer.
Parent and child exchange messages of bytes. The child ends when its parent does: at the next
message that it wants, and while it computes when its processor time is used up.
Imports no MLIR and no IREE.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

#: The child's first words; it looks for modules where its parent does. `-I -S` leaves out what
#: Python reads at its start, which takes longer than the start itself.
_START = "import sys; sys.path[:] = {path!r}; from mxc.artifact.child import serve; serve()"

#: Before each message: the number of its bytes.
_LENGTH = struct.Struct("<Q")


class Overdue(Exception):
    """The child did not answer in time. It has been ended."""


class Ended(Exception):
    """The child ended without an answer: `status` is as subprocess has it."""

    def __init__(self, status: int) -> None:
        """`how` describes it."""
        how = f"exit status {status}" if status >= 0 else f"killed by {_signal_name(-status)}"
        super().__init__(how)
        self.status = status


class Child:
    """A running child. It is ended by `end`, at the latest when this object goes."""

    def __init__(
        self,
        function: str,
        *arguments: str,
        memory: int | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        """Start `function`, "package.module:name", which is called with a Channel and `arguments`.

        memory: the most bytes of address space. log: receives what the child and its libraries
        print; by default nothing does.
        """
        # An editable install is found by a hook, which a child without site packages does not have.
        path = [*sys.path, str(Path(__file__).parents[2])]
        command = [sys.executable, "-I", "-S", "-c", _START.format(path=path)]
        self.process = subprocess.Popen(
            [*command, function, str(memory or 0), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if log is None else log,
            # It leads a group of its own: what it starts ends with it, and an interrupt from the
            # terminal is the parent's to answer.
            start_new_session=True,
        )
        self.end = weakref.finalize(self, _end, self.process)

    def send(self, message: bytes) -> None:
        """Give the child a message. Raises Ended where nobody reads it any more."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(_LENGTH.pack(len(message)) + message)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self, seconds: float | None = None) -> bytes:
        """The child's next message. Raises Overdue after `seconds`, Ended where the child does."""
        until = None if seconds is None else time.monotonic() + seconds
        return self._read(_LENGTH.unpack(self._read(_LENGTH.size, until))[0], until)

    def _read(self, count: int, until: float | None) -> bytes:
        assert self.process.stdout is not None
        handle = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        found = bytearray()
        while len(found) < count:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not poll.poll(None if left is None else 1000 * left):
                self.end()
                raise Overdue
            piece = os.read(handle, min(count - len(found), 1 << 20))
            if not piece:
                raise self._ended()
            found += piece
        return bytes(found)

    def _ended(self) -> Ended:
        if self.process.returncode is None:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        self.end()
        return Ended(self.process.wait())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a child and what it started."""
    if process.returncode is None:  # not waited for: its number is still that of its group
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except BrokenPipeError:
            pass  # a message that was not read


class Channel:
    """The child's side: messages from the parent, and to it."""

    def __init__(self) -> None:
        """Take standard input and output; what a library prints goes where errors go."""
        self._messages = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def receive(self) -> bytes:
        """The parent's next message; the process ends here where there is no parent any more."""
        return self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0])

    def send(self, message: bytes) -> None:
        """Answer. Raises BrokenPipeError where nobody listens."""
        data = memoryview(_LENGTH.pack(len(message)) + message)
        while data.nbytes:
            data = data[self._messages.write(data) :]

    @staticmethod
    def _read(count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = os.read(0, count - len(found))
            if not piece:
                os._exit(0)
            found += piece
        return found


def serve() -> None:
    """The life of a child: set its limit, and run the function that the parent names."""
    name, memory, *arguments = sys.argv[1:]
    channel = Channel()
    limit_memory(int(memory))
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    function(channel, *arguments)


def limit_memory(count: int) -> None:
    """Let this process have no more than `count` bytes of address space; 0 changes nothing."""
    import resource

    if count:
        resource.setrlimit(resource.RLIMIT_AS, (count, count))


def limit_processor(seconds: float) -> None:
    """End this process when it has computed for `seconds` from now, on all its threads together.

    For a child whose parent was killed, and which nobody else would end.
    """
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    wanted = int(used.ru_utime + used.ru_stime + seconds) + 1
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
