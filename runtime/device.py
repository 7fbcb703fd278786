"""The IREE device that an artifact runs on.

Worker threads belong to an IREE driver, and IREE reads their number from process-wide flags when
the driver is created. This module therefore creates one driver for each number of threads, so that
each model gets the number it asked for. Models that ask for the same number share one driver.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from iree import runtime as rt
from iree.runtime import _binding

from mxc.artifact.manifest import Manifest
from mxc.errors import ArtifactError, RequestError
from mxc.runtime.levels import CPU_DRIVERS
from mxc.runtime.machine import core_cpus, is_confined, usable_cores

#: IREE's defaults, restored after each driver so that drivers of other code are not affected.
_UNCHANGED = (
    "--task_topology_nodes=current",
    "--task_topology_group_count=0",
    "--task_topology_max_group_count=64",
)

_LOCK = threading.Lock()
_OPEN: dict[tuple[str, int, tuple[int, int]], Any] = {}


def driver_of(uri: str) -> str:
    """The IREE driver of a device URI: "hip" of "hip://1"."""
    return uri.partition("://")[0]


def device_uris(device: str | None, manifest: Manifest, place: str) -> list[str]:
    """Return the URIs of the devices that run an artifact.

    device: the URIs that the caller asks for, separated by ","; None for the first devices of the
    artifact's kind. Raises RequestError for too few or too many devices, or devices of another kind
    than the artifact is compiled for.
    """
    wanted = manifest.target.device
    number = 1 if manifest.model is None else manifest.model.devices
    kinds = CPU_DRIVERS if wanted in CPU_DRIVERS else (wanted,)
    if device is None:
        of_cpu = wanted in CPU_DRIVERS or number == 1
        return [wanted if of_cpu else f"{wanted}://{n}" for n in range(number)]
    uris = device.split(",")
    if uris[0] in CPU_DRIVERS and len(uris) == 1:
        uris *= number
    for uri in uris:
        if driver_of(uri) not in kinds:
            raise RequestError(
                f"{place}: compiled for {manifest.target.name}, which runs on "
                f"{' or '.join(kinds)}; device {uri!r} cannot run it"
            )
    if len(uris) != number or (uris[0] not in CPU_DRIVERS and len({*uris}) != number):
        raise RequestError(
            f"{place}: compiled for {number} devices; found {device!r}, give {number}, "
            f"such as {','.join(f'{wanted}://{n}' for n in range(number))}"
        )
    return uris


def open_device(uri: str, threads: int, place: str) -> Any:
    """Return the iree.runtime.HalDevice at `uri` ("local-task", "hip://0"), opened at first use.

    threads: worker threads of a "local-task" device; it has no meaning for others. Raises
    RequestError for an unknown driver and ArtifactError, naming `place`, where this machine has
    no such device.
    """
    return open_devices([uri], threads, place)[0]


def open_devices(uris: Sequence[str], threads: int, place: str) -> list[Any]:
    """Open the devices that compute one program together, each as `open_device` does.

    Each "local-task" device has `threads` workers of its own, which are bound to separate cores
    where the machine has enough of them.
    """
    known = rt.query_available_drivers()
    for uri in uris:
        if driver_of(uri) not in known:
            raise RequestError(f"unknown device {uri!r}; known drivers: {', '.join(sorted(known))}")
    found = []
    with _LOCK:
        for number, uri in enumerate(uris):
            local = driver_of(uri) == "local-task"
            share = (number, len(uris)) if driver_of(uri) in CPU_DRIVERS else (0, 1)
            key = (uri, threads if local else 0, share)
            if key not in _OPEN:
                with _on_own_cores(number, len(uris), threads if local else 0) as bound:
                    _OPEN[key] = _create(uri, threads, place, bound=bound)
            found.append(_OPEN[key])
    return found


@contextmanager
def _on_own_cores(number: int, devices: int, threads: int) -> Iterator[bool]:
    """Yield whether to bind the workers of device `number` to cores.

    While the context lasts, this thread may run only on the cores of that device, because IREE
    binds workers to the cores that the thread which creates them may run on.
    """
    cores, total = core_cpus(), devices * threads
    bound = _is_bound(total, usable_cores())
    if devices == 1 or not bound or not cores:
        yield bound and devices == 1
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set().union(*cores[number * threads : (number + 1) * threads]))
    try:
        yield True
    finally:
        os.sched_setaffinity(0, before)


def _is_bound(threads: int, cores: int) -> bool:
    """Whether workers are bound to cores; see `topology`."""
    return threads == cores or (threads < cores and is_confined())


def topology(threads: int, bound: bool | None = None) -> list[str]:
    """Return the IREE flags for `threads` workers. `bound`: whether each is bound to one core.

    By default as many workers as usable cores are bound, each to its own core. Linux wakes a thread
    on the core of the thread that wakes it, and moves it only after milliseconds: without binding,
    one worker of two slept through half of the decode steps. Fewer workers are left to Linux, which
    finds idle cores, because the bound workers of two processes would share the first cores. They
    are bound nevertheless where the process is confined to some CPUs, because IREE lets unbound
    workers run on all CPUs.
    """
    if bound is None:
        bound = _is_bound(threads, usable_cores())
    return [
        "--task_topology_nodes=all",
        f"--task_topology_group_count={0 if bound else threads}",
        f"--task_topology_max_group_count={threads}",
    ]


@contextmanager
def without_preempting() -> Iterator[bool]:
    """While the context lasts, this thread does not displace another one when it is woken; yields
    whether this could be had.

    The worker that ends a call wakes the caller and then finishes; the caller waits for that in a
    loop (IREE, iree_hal_semaphore_multi_wait). If it is woken on the core of this worker, Linux
    runs it at once, and the worker only after the next tick, 4 ms later: of tokens that take 12 ms,
    a third took 16 on two cores. A thread of SCHED_BATCH is run when the worker sleeps (sched(7)).
    Nothing is changed on systems without that policy, for threads with a policy of their own, or
    where a sandbox refuses it.
    """
    changed = False
    with suppress(OSError):
        if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            changed = True
    try:
        yield changed
    finally:
        if changed:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _create(uri: str, threads: int, place: str, *, bound: bool) -> Any:
    driver = driver_of(uri)
    try:
        if driver == "local-task":
            rt.flags.parse_flags(*topology(threads, bound))
        # iree.runtime.get_driver would return the driver of the first request every time.
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
