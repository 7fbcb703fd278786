"""The IREE device that an artifact runs on.

Worker threads belong to the driver that makes them, and IREE reads their number from process-wide
flags at the moment when a driver is created. A driver of our own for each number therefore gives
each model the number it asked for; models that ask for the same share one pool.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from iree import runtime as rt
from iree.runtime import _binding

from mxc.errors import ArtifactError, RequestError
from mxc.runtime.machine import is_confined, usable_cores

#: What IREE takes where nobody says anything: a driver that another makes shall not be ours.
_UNCHANGED = (
    "--task_topology_nodes=current",
    "--task_topology_group_count=0",
    "--task_topology_max_group_count=64",
)

_LOCK = threading.Lock()
_OPEN: dict[tuple[str, int], Any] = {}


def driver_of(uri: str) -> str:
    """The IREE driver of a device URI: "hip" of "hip://1"."""
    return uri.partition("://")[0]


def open_device(uri: str, threads: int, place: str) -> Any:
    """The iree.runtime.HalDevice at `uri` ("local-task", "hip://0"), made at the first request.

    threads: worker threads of a "local-task" device; it has no meaning for others. Raises
    RequestError for an unknown driver and ArtifactError, naming `place`, where this machine has
    no such device.
    """
    known = rt.query_available_drivers()
    if driver_of(uri) not in known:
        raise RequestError(f"unknown device {uri!r}; known drivers: {', '.join(sorted(known))}")
    key = (uri, threads if driver_of(uri) == "local-task" else 0)
    with _LOCK:
        if key not in _OPEN:
            _OPEN[key] = _create(uri, threads, place)
        return _OPEN[key]


def topology(threads: int) -> list[str]:
    """Flags of IREE that make `threads` workers.

    One for each usable core: each is bound to a core of its own. Linux wakes a thread on the core
    of the one that wakes it and takes milliseconds to move it from there: in half of the decode
    steps one worker of two slept all the time. Fewer are left to Linux, which finds idle cores:
    bound, the workers of two processes would share the first ones. They are bound nevertheless
    where the process may not run everywhere, because IREE lets workers that are not bound do so.
    """
    cores = usable_cores()
    bound = threads == cores or (threads < cores and is_confined())
    return [
        "--task_topology_nodes=all",
        f"--task_topology_group_count={0 if bound else threads}",
        f"--task_topology_max_group_count={threads}",
    ]


def _create(uri: str, threads: int, place: str) -> Any:
    driver = driver_of(uri)
    try:
        if driver == "local-task":
            rt.flags.parse_flags(*topology(threads))
        # iree.runtime.get_driver would give the driver of the first request to all.
        owner = _binding.create_hal_driver(driver)
        device = owner.create_device_by_uri(uri)
    except (RuntimeError, ValueError) as error:
        raise ArtifactError(
            f"{place}: this machine has no device {uri!r} that IREE can open "
            f"({' '.join(str(error).split())}); run the artifact where there is one, "
            "or compile the model with --target cpu"
        ) from error
    finally:
        if driver == "local-task":
            rt.flags.parse_flags(*_UNCHANGED)
    # IREE 3.13 crashes when a buffer that a call returned outlives its device, and Python frees
    # in no stated order when it exits: a device, once open, stays for the life of the process.
    _binding.disable_leak_checker()
    for immortal in (owner, device):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(immortal))
    return device
