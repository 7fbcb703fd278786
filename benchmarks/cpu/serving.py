"""Runs llama.cpp in a separate process, which does one run at a time; see llama.py."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ggml import PeerMissing

_SCRIPT = Path(__file__).resolve().parent / "llama.py"


class Served:
    """The peer in a process of its own, which answers one run at a time."""

    def __init__(
        self, model: Path, threads: int, length: int, sequences: int = 1, *, mmap: bool = True
    ) -> None:
        """Start the process. Raises PeerMissing if it ends; it prints why on standard error."""
        words = ["--threads", threads, "--prompt", length, "--generate", 0, "--batch", sequences]
        words += [] if mmap else ["--no-mmap"]
        command = [sys.executable, _SCRIPT, model, "--serve", *words]
        self._process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def run(self, prompt: int, generate: int, batch: int = 1) -> dict[str, Any]:
        """Let the process run the model once, and return the fields of llama.Run."""
        assert self._process.stdin is not None
        print(prompt, generate, batch, file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerMissing(f"the peer ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def serving(
    model: Path | None, threads: int, length: int, sequences: int = 1, *, mmap: bool = True
) -> Iterator[Served | None]:
    """Yield the peer with a model, and end it with the context; None if there is no model."""
    if model is None:
        yield None
        return
    served = Served(model, threads, length, sequences, mmap=mmap)
    try:
        yield served
    finally:
        served.close()
