"""A progress callback that kills the worker processes of a run."""

import multiprocessing


class KillWorkers:
    """Kills, at call `at`, each worker process begun since this object; goes on once they are gone.

    All of them: one that is left might do what is left of a small job before the loss is noticed.
    """

    def __init__(self, at: int) -> None:
        self._at, self._calls = at, 0
        self._others = set(multiprocessing.active_children())

    def __call__(self, *progress: object) -> None:
        self._calls += 1
        if self._calls == self._at:
            for child in set(multiprocessing.active_children()) - self._others:
                child.kill()
                child.join()
