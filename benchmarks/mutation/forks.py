"""Forks of this process that run tests; no process that they start outlives them."""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import signal
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path


def in_fork(work: Callable[[], bool], seconds: float) -> bool:
    """Run `work` in a fork of this process, and return whether it returned true.

    The fork is killed after `seconds`, and the processes that it leaves are killed at the end.
    """
    # PR_SET_CHILD_SUBREAPER: processes that the fork leaves become children of this process.
    ctypes.CDLL(None).prctl(36, 1)
    process = os.fork()
    if process == 0:
        done = False
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))  # a size may be mutated
            signal.alarm(int(seconds))
            done = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0 if done else 1)
    status = os.waitpid(process, 0)[1]
    tasks = Path("/proc/self/task")
    while left := [n for task in tasks.iterdir() for n in (task / "children").read_text().split()]:
        for each in map(int, left):
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
    return status == 0


def fork_the_server() -> None:
    """Make the server of tests/forked.py a fork of this process, not a new process of Python, so
    that its forks have the functions as this process has changed them."""
    forked = import_module("tests.forked")
    place = f"mxc-forks-{secrets.token_hex(8)}"
    process = os.fork()
    if process == 0:
        os.dup2(os.pipe()[0], 0)  # it serves until it is killed
        forked.serve(place)
    os.waitpid(process, 0)
    forked.Server.__init__ = lambda server: setattr(server, "place", place)
