"""Workers of the compiler that are forks of a server, which has imported the compiler."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from mxc.artifact import child
from mxc.compiler import worker
from mxc.compiler.programs import onnx, torch
from mxc.compiler.steps import ImportRequest
from tests import forked

_START = child._START

#: What the import of a file needs, which takes most of the time of a small program.
_IMPORTERS = {
    torch.SUFFIX: (
        "iree.compiler.extras.fx_importer",
        "torch._functorch.aot_autograd",
        "torch.export.pt2_archive._package",
    ),
    onnx.SUFFIX: ("iree.compiler.extras.onnx_importer",),
}
#: What the worker that is started next finds imported, beyond the compiler.
_more: ContextVar[tuple[str, ...]] = ContextVar("more", default=())


class _Process:
    """What `Child` uses of a subprocess.Popen."""

    def __init__(self, line: socket.socket, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._line, self.pid, self.stdin, self.stdout = line, pid, stdin, stdout
        self.returncode: int | None = None

    def wait(self) -> int:
        """How it ended, as subprocess has it."""
        if self.returncode is None:
            self.returncode = forked.number(self._line)
            self._line.close()
        return self.returncode


class ForkedChild(child.Child):
    """A `Child` that the server forks; a plain one where a test has it start something else."""

    place: Callable[[], str]

    def __init__(
        self,
        function: str,
        *arguments: str,
        memory: int | None = None,
        log: IO[bytes] | None = None,
    ) -> None:
        """As `Child`."""
        if child._START != _START:
            super().__init__(function, *arguments, memory=memory, log=log)
            return
        request = {
            "function": "mxc.artifact.child:serve",
            "arguments": [function, str(memory or 0), *arguments],
            "path": sys.path,
        }
        reads, stdin = os.pipe()
        stdout, writes = os.pipe()
        with open(os.devnull, "wb") as nothing:
            files = [reads, writes, (log or nothing).fileno()]
            line = _begun(_place_with(type(self).place(), _more.get()), request, files)
        os.close(reads)
        os.close(writes)
        begun: Any = _Process(*line, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))
        self.process = begun
        self.end = weakref.finalize(self, child._end, self.process)

    def _ended(self) -> child.ChildExited:
        self.end()
        return child.ChildExited(self.process.wait())


@functools.cache
def _server_with(place: str, names: tuple[str, ...]) -> forked.ServerWith:
    return forked.ServerWith(place, names)


def _place_with(place: str, names: tuple[str, ...]) -> str:
    """A server's place: that at `place`, or a fork of it that has imported `names`."""
    return _server_with(place, names).place if names else place


def _modules(request: object) -> tuple[str, ...]:
    """What a request for an import needs."""
    if not isinstance(request, ImportRequest):
        return ()
    files = [each for each in request.functions.values() if isinstance(each, Path)]
    return tuple(sorted({name for each in files for name in _IMPORTERS.get(each.suffix, ())}))


def _begun(place: str, request: dict[str, Any], files: list[int]) -> tuple[socket.socket, int]:
    """The connection to a process that has begun, and its number."""
    for _ in range(2):
        # Seen once, under load: nothing has begun.
        with contextlib.suppress(ConnectionResetError):
            return _connected(place, request, files)
    return _connected(place, request, files)


def _connected(place: str, request: dict[str, Any], files: list[int]) -> tuple[socket.socket, int]:
    line = forked.connect(place, request, files)
    return line, forked.number(line)


def use(place: Callable[[], str]) -> None:
    """Make workers of the compiler forks of the server at `place`."""
    answer = worker._answer

    def answer_with(request: Any, *rest: Any) -> Any:
        before = _more.set(_modules(request))
        try:
            return answer(request, *rest)
        finally:
            _more.reset(before)

    ForkedChild.place = staticmethod(place)
    its: Any = worker
    its.Child, its._answer = ForkedChild, answer_with
