"""A separate Python process, with limits on memory and time, that runs one function of this
package.

It runs code that may crash, hang or take all memory: the compiler, a chat template, a tokenizer.
Parent and child exchange messages of bytes. The child ends when its parent does: at the next
message that it waits for, or, while it computes, when its processor time is used up. Imports no
MLIR and no IREE.
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

#: Code that the child starts with; it looks for modules where its parent does. `-I -S` skips site
#: packages, which take longer to read than the rest of the start.
_START = "import sys; sys.path[:] = {path!r}; from mxc.artifact.child import serve; serve()"

#: Precedes each message: the number of its bytes.
_LENGTH = struct.Struct("<Q")


class ChildTimedOut(Exception):
    """The child did not answer in time, and was killed."""


class ChildExited(Exception):
    """The child ended without an answer: `status` is a return code as in subprocess."""

    def __init__(self, status: int) -> None:
        """Describe the status in the message."""
        how = f"exit status {status}" if status >= 0 else f"killed by {_signal_name(-status)}"
        super().__init__(how)
        self.status = status


class Child:
    """A running child process. `end` kills it, at the latest when this object is collected."""

    def __init__(
        self,
        function: str,
        *arguments: str,
        memory: int | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        """Start `function`, "package.module:name", which is called with a Channel and `arguments`.

        memory: the most bytes of address space. log: receives the output of the child and its
        libraries, which is dropped by default.
        """
        # An editable install is found by an import hook, which a child without site packages lacks.
        path = [*sys.path, str(Path(__file__).parents[2])]
        command = [sys.executable, "-I", "-S", "-c", _START.format(path=path)]
        self.process = subprocess.Popen(
            [*command, function, str(memory or 0), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if log is None else log,
            # A new session and process group: its descendants are killed with it, and an interrupt
            # from the terminal reaches the parent only.
            start_new_session=True,
        )
        self.end = weakref.finalize(self, _end, self.process)

    def send(self, message: bytes) -> None:
        """Send the child a message. Raises Ended where the child has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(_LENGTH.pack(len(message)) + message)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self, seconds: float | None = None) -> bytes:
        """The child's next message. Raises Overdue after `seconds`, Ended if the child ended."""
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
                raise ChildTimedOut
            piece = os.read(handle, min(count - len(found), 1 << 20))
            if not piece:
                raise self._ended()
            found += piece
        return bytes(found)

    def _ended(self) -> ChildExited:
        if self.process.returncode is None:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        self.end()
        return ChildExited(self.process.wait())


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and the processes that it started."""
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
    """The child's side of the connection: messages from and to the parent."""

    def __init__(self) -> None:
        """Take standard input and output; output of libraries is redirected to standard error."""
        self._messages = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def receive(self) -> bytes:
        """The parent's next message; ends the process if the parent has ended."""
        return self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0])

    def send(self, message: bytes) -> None:
        """Send a message to the parent. Raises BrokenPipeError where the parent has ended."""
        data = memoryview(_LENGTH.pack(len(message)) + message)
        while data.nbytes:
            data = data[self._messages.write(data) :]

    @staticmethod
    def _read(count: int) -> bytes:
        found = bytearray(count)
        # In place: a program may be gigabytes, which come in pieces of 64 KiB.
        left = memoryview(found)
        while left.nbytes:
            size = os.readv(0, [left])
            if not size:
                os._exit(0)
            left = left[size:]
        return bytes(found)


def serve() -> None:
    """Main function of a child: set its memory limit, and run the function the parent names."""
    name, memory, *arguments = sys.argv[1:]
    channel = Channel()
    limit_memory(int(memory))
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), attribute)
    function(channel, *arguments)


def limit_memory(count: int) -> None:
    """Limit the address space of this process to `count` bytes; 0 changes nothing."""
    import resource

    if count:
        resource.setrlimit(resource.RLIMIT_AS, (count, count))


def limit_processor(seconds: float) -> None:
    """End this process once it has used `seconds` more of processor time, over all its threads.

    This ends a child whose parent was killed.
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
