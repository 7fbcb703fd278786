"""Programs that do not ask for AMX tiles, and get them."""

import os
import sys
from pathlib import Path

import pytest

from mxc.errors import RequestError
from mxc.runtime import tiled_child
from mxc.targets.tile_permission import refusal

#: A request of ptrace: the child goes on.
_DETACH = 17
#: Prints the permissions of the process: ARCH_GET_XCOMP_PERM of asm/prctl.h.
PERMISSIONS = (
    "import ctypes; found = ctypes.c_uint64();"
    "ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(found)); print(found.value)"
)


def test_a_child_has_the_permission_that_it_did_not_ask_for() -> None:
    if refusal() is not None:
        with pytest.raises(RequestError, match="a tool of IREE needs tiles of AMX"):
            tiled_child.run([sys.executable, "-c", PERMISSIONS])
        return
    done = tiled_child.run([sys.executable, "-c", PERMISSIONS])
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >> 18 & 1


def test_output_and_status_are_those_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    if refusal() is not None:
        monkeypatch.setattr(tiled_child, "_permit", lambda p: tiled_child._ptrace(_DETACH, p))
    words = "import sys; print('out'); print('wrong', file=sys.stderr); sys.exit(7)"
    done = tiled_child.run([sys.executable, "-c", words])
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "wrong\n")


@pytest.mark.parametrize(
    ("stopped", "said"),
    [
        ("forbid", r"Linux forbids it; compile for a second target"),
        ("refuse", r"refuses them to it \(Invalid argument\); compile for a second"),
    ],
)
def test_no_child_is_left_where_tiles_are_refused(
    stopped: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = set()

    def ptrace(request: int, process: int, place: int = 0, data: int = 0) -> int:
        children.add(process)
        if stopped == "forbid" and process:
            raise tiled_child._refusal("Linux forbids it")
        if request == tiled_child._GETREGS:  # the result of a system call: -EINVAL
            tiled_child._Registers.from_address(data)[tiled_child._RAX] = 2**64 - 22
        return 0

    monkeypatch.setattr(tiled_child, "_ptrace", ptrace)
    monkeypatch.setattr(tiled_child, "_wait", lambda process: None)
    with pytest.raises(RequestError, match=said):
        tiled_child.run([sys.executable, "-c", "import time; time.sleep(60)"])
    (child,) = children
    assert not Path(f"/proc/{child}").exists()


def test_a_child_that_may_not_be_traced_does_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ptrace(request: int, process: int) -> int:
        raise RequestError("not here")

    monkeypatch.setattr(tiled_child, "_ptrace", ptrace)
    with pytest.raises(RequestError, match=r"forbids tracing .* \(ptrace failed in it\)"):
        tiled_child.run([sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"])
    assert not [*tmp_path.iterdir()]


def test_a_process_that_is_not_a_child_cannot_be_traced() -> None:
    with pytest.raises(RequestError, match="the system forbids tracing a child"):
        tiled_child._ptrace(tiled_child._GETREGS, os.getpid())
