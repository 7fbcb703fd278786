"""Forks of this process: they run tests, and nothing that they start outlives them."""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

#: The most memory that a process may ask for: an error may be a size.
_BYTES = 8 << 30
#: PR_SET_CHILD_SUBREAPER of prctl(2).
_SUBREAPER = 36


def in_fork(work: Callable[[], int], seconds: float) -> tuple[int, float]:
    """The status of `work` in a process of its own, and the seconds it took.

    Its time is counted in short waits, so that a machine which stands still ends nothing. A process
    that takes longer is killed; its status is 124.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)  # whatever it leaves becomes a child of this process
    process = os.fork()
    if process == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (_BYTES, _BYTES))
            status = work()
        finally:
            os._exit(status)
    wait, spent = 0.02, 0.0
    try:
        while spent < seconds:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status), spent
            time.sleep(wait)
            spent += wait
        return 124, spent
    finally:
        _kill_children()


def _kill_children() -> None:
    def children() -> list[int]:
        lines = [file.read_text() for file in Path("/proc").glob("[0-9]*/stat")]
        parents = [(line.split()[0], line.rpartition(")")[2].split()[1]) for line in lines]
        return [int(each) for each, parent in parents if int(parent) == os.getpid()]

    while found := children():
        for each in found:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)


def fork_the_server() -> None:
    """Have the server of tests/forked.py be a fork of this process, and not a new Python.

    It is forked here and waits until a test wants it.
    """
    forked = import_module("forked")
    place = f"mxc-forks-{secrets.token_hex(8)}"
    reads, writes = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(writes)
        os.dup2(reads, 0)
        if os.read(0, 1):
            forked.serve(place)
        os._exit(0)
    os.close(reads)
    serves: list[str] = []

    def start(server: Any) -> None:
        if not serves:
            os.write(writes, b"!")
            os.waitpid(process, 0)
            serves.append(place)
        server.place = place

    forked.Server.__init__ = start
