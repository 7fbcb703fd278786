"""A child answers, or the parent learns how it ended; nothing of it stays."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mxc
from mxc.artifact.child import Channel, Child, ChildExited, ChildTimedOut, limit_processor


def echo(channel: Channel, word: str) -> None:
    print("what a library prints is no message")
    while True:
        channel.send(word.encode() + channel.receive())


def take(channel: Channel) -> None:
    channel.receive()
    try:
        data = bytearray(2 << 30)
    except MemoryError:
        channel.send(b"refused")
    else:
        channel.send(str(len(data)).encode())


def hang(channel: Channel, seconds: str) -> None:
    limit_processor(float(seconds))
    channel.send(str(os.getpid()).encode())
    while True:
        pass


def die(channel: Channel) -> None:
    os.abort()


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or "Z" in stat.read_text().split(")")[1]


def test_messages_of_any_size() -> None:
    child = Child(f"{__name__}:echo", "a")
    for size in (0, 1, 1 << 22):
        child.send(bytes(size))
        assert child.receive(30) == b"a" + bytes(size)
    child.end()
    assert child.process.returncode is not None


def test_a_message_that_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is read to its place: nothing as large as the message is made for one."""
    pieces = iter([b"abc", b"d", b"ef"])

    def readv(handle: int, places: list[memoryview]) -> int:
        piece = next(pieces)
        places[0][: len(piece)] = piece
        return len(piece)

    monkeypatch.setattr(os, "readv", readv)
    assert Channel._read(6) == b"abcdef"


def test_the_package_is_found_where_only_a_hook_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an editable install: no entry of the parent's path holds the package."""
    place = str(Path(mxc.__file__).parents[1])
    path = [entry for entry in sys.path if entry not in ("", place)]
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *path])
    child = Child("test_child:echo", "a")
    child.send(b"b")
    assert child.receive(30) == b"ab"
    child.end()


def test_memory_is_limited() -> None:
    for memory, answer in ((512 << 20, b"refused"), (None, b"2147483648")):
        child = Child(f"{__name__}:take", memory=memory)
        child.send(b"")
        assert child.receive(30) == answer


def test_a_child_that_does_not_answer_is_ended() -> None:
    child = Child(f"{__name__}:hang", "60")
    pid = int(child.receive(30))
    with pytest.raises(ChildTimedOut):
        child.receive(0.1)
    assert gone(pid)


def test_a_child_that_dies() -> None:
    with pytest.raises(ChildExited, match="killed by SIGABRT"):
        Child(f"{__name__}:die").receive(30)
    with pytest.raises(ChildExited, match="exit status 1"):
        Child("no_such_module:f").receive(30)


def test_a_child_goes_with_its_object() -> None:
    child = Child(f"{__name__}:hang", "60")
    pid = int(child.receive(30))
    del child
    assert gone(pid)


def test_a_child_that_computes_ends_after_its_parent() -> None:
    """Its parent is killed, and it never reads again: its processor time is limited."""
    program = (
        "import os, sys\nfrom mxc.artifact.child import Child\n"
        f"print(Child({__name__ + ':hang'!r}, '0.5').receive(30).decode(), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + 60
    while not gone(int(found.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
