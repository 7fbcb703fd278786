"""Workers that compute pieces: threads of this process, processes of this machine, or a Dask
cluster.

Each kind is used as a `concurrent.futures.Executor`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mxc.errors import RequestError

#: Seconds within which a scheduler has to answer.
_TIMEOUT = 20


def _ignore(line: str) -> None:
    """Discard the line."""


@dataclass(frozen=True)
class Workers:
    """The workers of a job: `processes`, or those of the Dask scheduler at address `dask`.

    With one process, this process computes with `threads`, by default one per CPU. `say` is called
    with each line for the user.
    """

    processes: int = 1
    threads: int | None = None
    dask: str | None = None
    say: Callable[[str], None] = field(default=_ignore, compare=False)

    def __post_init__(self) -> None:
        """Raise RequestError for options that exclude each other."""
        if self.dask is not None and self.processes > 1:
            raise RequestError("--workers is for processes of this machine; leave it or --dask out")
        if self.threads is not None and self.remote:
            raise RequestError("--threads is for one process; leave it, or --workers or --dask out")

    @property
    def remote(self) -> bool:
        """Whether pieces are computed by other processes."""
        return self.dask is not None or self.processes > 1

    @contextmanager
    def executor(self) -> Iterator[tuple[Executor, int]]:
        """Yield the executor, and the number of pieces that it computes at a time.

        At the end, pieces that have not begun are cancelled. Raises RequestError if Dask is not
        installed, or no scheduler answers.
        """
        if self.dask is not None:
            with _cluster(self.dask) as (executor, count):
                yield executor, count
            return
        pool: Executor
        if self.remote:
            count = self.processes
            # Not forked: threads of IREE and BLAS do not survive a fork.
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin)
        else:
            count = self.threads or usable_cpus()
            pool = ThreadPoolExecutor(count, thread_name_prefix="piece")
        try:
            yield pool, count
        finally:
            pool.shutdown(cancel_futures=True)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2


def _begin() -> None:
    """Set up a worker process: it ignores Ctrl-C, left to its parent, and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _cluster(address: str) -> Iterator[tuple[Executor, int]]:
    try:
        from distributed import Client
    except ImportError as error:
        raise RequestError(
            f"--dask {address}: Dask is not installed; pip install 'mxc[dask]'"
        ) from error
    try:
        client: Any = Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--dask {address}: no scheduler answers ({error}); give its address, as in "
            "tcp://HOST:8786"
        ) from error
    try:
        count = sum(client.nthreads().values())
        if not count:
            raise RequestError(f"--dask {address}: the cluster has no workers; start some")
        pool: Executor = client.get_executor()
        try:
            yield pool, count
        finally:
            # Not awaited: nobody knows when running pieces end, and their files may already be
            # removed.
            pool.shutdown(wait=False)
    finally:
        client.close()
