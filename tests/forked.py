"""Processes that begin with the compiler imported: forks of one server, which imports it once.

A compilation of a test takes a second, of which importing IREE into a new process was the half.
A fork has what the server has imported, and is a process of its own all the same: it may crash,
hang or be killed. Workers of the compiler are forks (forked_child.py), and so are the commands of
the lit tests (lit_tests/lit.cfg.py), with this file as their program:

    python -I -S tests/forked.py SOCKET mxc.compiler.opt:main ARGUMENT ...

A server lives as long as its standard input is open. Nothing here imports mxc before it serves.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
import sys
import time
from importlib import import_module
from typing import Any

#: What a process finds imported.
_READY = ("filecheck.main", "mxc.compiler.driver", "mxc.compiler.opt", "mxc.compiler.run_passes")

_LENGTH = struct.Struct("<q")


def connect(place: str, request: dict[str, Any], files: list[int]) -> socket.socket:
    """Ask the server for a process with these files as 0, 1 and 2; its pid and status come back."""
    import json

    line = socket.socket(socket.AF_UNIX)
    line.connect("\0" + place)  # a name that is in no folder
    here = {"directory": os.getcwd(), "environment": dict(os.environ)}
    message = json.dumps(request | here).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    line.sendmsg([_LENGTH.pack(len(message))], [rights])
    line.sendall(message)
    return line


def number(line: socket.socket) -> int:
    """The next number that the server sends."""
    found = line.recv(_LENGTH.size, socket.MSG_WAITALL)
    if len(found) < _LENGTH.size:
        raise RuntimeError("the server of forked processes has died")
    return int(_LENGTH.unpack(found)[0])


def serve(place: str) -> None:
    """Import the compiler, and fork for each connection until standard input is closed."""
    for name in _READY:
        import_module(name)
    import_module("tests.forked_child").use(lambda: place)
    import_module("tests.kept_code").use()
    _listen(place)


def serve_with() -> None:
    """Be a server that is a fork of one, and has imported more modules: place, modules."""
    place, *names = sys.argv[1:]
    for name in names:
        import_module(name)
    _listen(place)


def _listen(place: str) -> None:
    import gc
    import select

    gc.freeze()  # a fork that collects garbage would copy the pages of what is imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("\0" + place)
    listener.listen(64)
    if os.fork():
        os._exit(0)  # so that the server is nobody's child
    waited: list[Any] = [0, listener]
    while 0 not in select.select(waited, [], [])[0]:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _supervise(line)
        line.close()


def _supervise(line: socket.socket) -> None:
    """The process between: it starts the one that was asked for, and tells how it ended."""
    import json

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    space = socket.CMSG_SPACE(3 * array.array("i").itemsize)
    head, rights, _, _ = line.recvmsg(_LENGTH.size, space)
    files = array.array("i", rights[0][2])
    message = line.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL)
    process = os.fork()
    if process == 0:
        line.close()
        _run(json.loads(message), list(files))
    for each in (0, 1, 2, *files):
        os.close(each)
    while os.getpgid(process) != process:
        time.sleep(0.0005)  # from then on its group can be ended
    line.sendall(_LENGTH.pack(process))
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    line.sendall(_LENGTH.pack(status))
    os._exit(0)


def _run(request: dict[str, Any], files: list[int]) -> None:
    """Be the process: files, folder, environment, and the function, which may call for its end."""
    import runpy
    import tempfile
    import traceback

    os.setsid()
    for place, each in enumerate(files):
        os.dup2(each, place)
        os.close(each)
    # What these were in the server may have been another kind of file; what a fork of this process
    # puts in their place closes nothing.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None
    sys.path[:] = [*dict.fromkeys([*request["path"], *sys.path])]
    sys.argv = ["forked", *request["arguments"]]
    status: Any = 0
    try:
        module, _, name = request["function"].partition(":")
        if name:
            status = getattr(import_module(module), name)()
        else:
            sys.argv = [module, *request["arguments"]]
            sys.path.insert(0, os.path.dirname(module))
            runpy.run_path(module, run_name="__main__")
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            print(status, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(int(status or 0) if not isinstance(status, str) else 1)


def _new_place() -> str:
    import secrets

    return f"mxc-forks-{secrets.token_hex(8)}"


class Server:
    """A running server, which ends with this process."""

    def __init__(self) -> None:
        """Start it, and wait until it serves."""
        import subprocess

        self.place = _new_place()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", "--serve", self.place],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        if process.wait() != 0:
            raise RuntimeError("the server of forked processes did not start")
        self._open = process.stdin


class ServerWith:
    """A fork of the server at a place that has imported `names` too; it ends with this process."""

    def __init__(self, place: str, names: tuple[str, ...]) -> None:
        """Start it, and wait until it serves."""
        self.place = _new_place()
        request = {
            "function": "tests.forked:serve_with",
            "arguments": [self.place, *names],
            "path": sys.path,
        }
        reads, self._open = os.pipe()
        line = connect(place, request, [reads, 1, 2])
        os.close(reads)
        number(line)
        if number(line) != 0:
            raise RuntimeError(f"the server with {', '.join(names)} did not start")


#: Servers that are to live as long as this process.
SERVERS: dict[str, Server] = {}


def main(arguments: list[str]) -> int:
    """Serve, or have the server run a function, or a file, with our own standard files."""
    if arguments[0] == "--serve":
        serve(arguments[1])
        os._exit(0)
    place, function, *rest = arguments
    line = connect(place, {"function": function, "arguments": rest, "path": []}, [0, 1, 2])
    number(line)
    return number(line) % 256


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
