"""The measured servers: some run already, and others are started here and stopped in between."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

#: Seconds within which a started server must answer, and a terminated one must have ended.
_STARTED, _ENDED = 300.0, 30.0


class ServerFailed(Exception):
    """A server could not be started; the message has the end of its output."""


@dataclass(frozen=True)
class Server:
    """A measured server.

    `process`: the leader of a process group of its own; None for a server that the script did not
    start, which is never stopped or ended.
    """

    name: str
    url: str
    process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Continue the server (SIGCONT) in this context, and stop it (SIGSTOP) afterwards, so that
        it takes no time while another one is measured."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the server if the script started it; kill it if it takes longer than _ENDED."""
        if self.process is None:
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self.process.wait(_ENDED)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)


@contextlib.contextmanager
def servers(texts: Sequence[str], threads: int | None) -> Iterator[list[Server]]:
    """Yield the servers of `texts`: [NAME=]URL, or NAME=COMMAND with {port} and perhaps {threads}.

    Commands are started one by one, must answer, and are then stopped (`Server.running`). They are
    ended with the context. Raises ServerFailed.
    """
    with contextlib.ExitStack() as ends, tempfile.TemporaryDirectory() as folder:
        found = []
        for number, text in enumerate(texts):
            name, _, what = text.partition("=")
            if text.startswith("http"):
                name, what = "server", text
            if what.startswith("http"):
                found.append(Server(name, what.rstrip("/")))
                continue
            if not what or "{port}" not in what:
                raise ServerFailed(
                    f"{text}: wanted a URL, NAME=URL, or NAME=COMMAND with {{port}} in it"
                )
            if "{threads}" in what and threads is None:
                raise ServerFailed(f"{text}: {{threads}} wants --threads")
            server = _start(name, what, threads, Path(folder) / f"{number}.log")
            ends.callback(server.end)
            _wait(server, Path(folder) / f"{number}.log")
            found.append(server)
            with server.running():
                pass
        yield found


def _start(name: str, command: str, threads: int | None, log: Path) -> Server:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = shlex.split(command.replace("{port}", str(port)).replace("{threads}", str(threads)))
    try:
        with log.open("wb") as said:
            process = subprocess.Popen(
                words, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
    except OSError as error:
        raise ServerFailed(f"{name}: {error}") from error
    return Server(name, f"http://127.0.0.1:{port}", process)


def _wait(server: Server, log: Path) -> None:
    """Wait until the server answers /health. Raises ServerFailed."""
    assert server.process is not None
    until = time.monotonic() + _STARTED
    why = f"did not answer within {_STARTED:g} s"
    while time.monotonic() < until:
        if server.process.poll() is not None:
            why = f"ended with {server.process.returncode}"
            break
        # URLError is an OSError.
        with contextlib.suppress(OSError), urlopen(f"{server.url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    said = log.read_text(errors="replace").splitlines()[-10:]
    raise ServerFailed("\n".join([f"{server.name} {why}; it said:", *said]))
