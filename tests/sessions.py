"""Documents that are run: commands, programs and servers, and what they show.

In these
    ```console   lines that begin with `$ ` are commands, what follows is their output
    ```python    is a program
    ```mlir NAME is the content of the file NAME
    ```sh        with `mxc serve`: a server, and the requests that curl sends to it
`...` in an output stands for whatever is there, as a line for any number of lines. Frames of
tables and runs of spaces are not compared. A command whose output is not shown must succeed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

#: What prepares a machine: these commands need the network or an hour, and are only looked at.
PREPARATION = {"git", "cd", "make", "pip", "source"}

_FRAME = re.compile(r"[\u2500-\u257f]")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, what stands after the language, the line it begins at."""

    language: str
    name: str
    line: int
    text: str


@dataclass(frozen=True)
class Command:
    """One command of a session and the output that is shown for it."""

    line: int
    text: str
    output: str


def blocks(text: str) -> list[Block]:
    fences = re.finditer(r"^```(\w+)[ ]?(\S*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 2, found[3])
        for found in fences
    ]


def commands(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = next(n for n in range(start, end) if not lines[n].endswith("\\"))
        text = "\n".join(lines[start : last + 1])[2:]
        yield Command(block.line + start, text, "\n".join(lines[last + 1 : end]))


def plain(text: str) -> str:
    """Without frames, runs of spaces and empty lines."""
    lines = (" ".join(_FRAME.sub(" ", line).split()) for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line)


def shows(shown: str, found: str) -> bool:
    """Whether the output `found` is what the text `shown` says, `...` being anything."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else r".*?".join(map(re.escape, line.split("..."))) + r"\n"
        for line in plain(shown).splitlines()
    )
    return re.fullmatch(pattern, plain(found)) is not None


def run_sessions(documents: Sequence[Path], folder: Path) -> int:
    """Run all of some documents in a folder, in their order; the number of commands and programs.

    Fails where one ends with an error, or shows something else than the document.
    """
    environment = {**os.environ, "COLUMNS": "100"}  # of a reader's terminal
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["XDG_CACHE_HOME"] = str(folder / ".cache")  # of a new user
    ran = 0

    def run(words: list[str] | str, place: str) -> str:
        result = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            shell=isinstance(words, str),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert result.returncode == 0, f"{place}: {words}\n{result.stdout}"
        return result.stdout

    for document, block in (
        (each.name, block) for each in documents for block in blocks(each.read_text())
    ):
        if block.language == "mlir":
            (folder / block.name).write_text(block.text)
        elif block.language == "python":
            program = folder / "program.py"
            program.write_text(block.text)
            run([sys.executable, program.name], f"{document}:{block.line}")
            ran += 1
        elif block.language == "sh" and "mxc serve " in block.text:
            serve(block.text, folder, environment)
            ran += 1
        elif block.language == "console":
            for command in commands(block):
                if command.text.split()[0] in PREPARATION:
                    continue
                place = f"{document}:{command.line}"
                found = run(command.text, place)
                if command.output and not shows(command.output, found):
                    pytest.fail(
                        f"{place}: $ {command.text}\n"
                        f"shown:\n{plain(command.output)}\nfound:\n{plain(found)}",
                        pytrace=False,
                    )
                ran += 1
    return ran


def serve(text: str, folder: Path, environment: dict[str, str]) -> None:
    """Start the server of a block on a free port, and send the requests of its `curl` lines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        text = text.replace("8000", str(free.getsockname()[1]))
    lines = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    [server] = [line for line in lines if line[:2] == ["mxc", "serve"]]
    requests = [line for line in lines if line[0] == "curl"]
    assert requests
    process = subprocess.Popen(server, cwd=folder, env=environment)
    try:
        for _, url, *options in requests:
            given = dict(zip(options[::2], options[1::2], strict=True))
            name, value = given.pop("-H").split(": ")
            request = Request(url, given.pop("-d").encode(), {name: value})
            assert not given
            answer = json.loads(_answer(request, process))
            assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    finally:
        process.terminate()
        process.wait()


def _answer(request: Request, process: subprocess.Popen[bytes]) -> bytes:
    """What a server answers that is just starting."""
    until = time.monotonic() + 120
    while True:
        try:
            with urlopen(request) as response:
                return bytes(response.read())
        except URLError as error:
            refused = isinstance(error.reason, ConnectionRefusedError)
            if not refused or process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.1)
