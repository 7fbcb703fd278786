"""Whatever happens to the compiler, the caller gets a refusal and nothing is left running."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mxc.artifact.child import Child
from mxc.compiler import opt
from mxc.compiler.iree import PHASES
from mxc.compiler.pipelines import pipeline
from mxc.compiler.steps import CompileRequest, CompileStep
from mxc.compiler.worker import compile_program
from mxc.errors import CompileError, PassError

DOUBLE = """func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""

#: It parses and verifies; LLVM does not know the intrinsic on line 4.
ILLEGAL = """func.func @f(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %z = linalg.map ins(%x : tensor<4xf32>) outs(%y : tensor<4xf32>)
    (%a: f32, %o: f32) {
      %r = "llvm.intr.nope"(%a) : (f32) -> f32
      linalg.yield %r : f32
    }
  return %z : tensor<4xf32>
}
"""


@pytest.fixture(autouse=True)
def _begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers as a user has them: no forks (tests/forked_child.py)."""
    monkeypatch.setattr("mxc.compiler.worker.Child", Child)
    monkeypatch.setitem(globals(), "OTHERS", frozenset(_all_children()))


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., CompileRequest]:
    def make(
        program: str | bytes, target: str = "cpu", module: Path | None = None
    ) -> CompileRequest:
        data = program.encode() if isinstance(program, str) else program
        return CompileRequest(
            program=data, place="p.mlir", target=target, module=module or tmp_path / "m.vmfb"
        )

    return make


#: Processes that tests before this one began and keep.
OTHERS: frozenset[int] = frozenset()


def _all_children() -> list[int]:
    # A process is listed under the thread that began it.
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for each in lists for pid in each.read_text().split()]


def children() -> list[int]:
    return [pid for pid in _all_children() if pid not in OTHERS]


def kept(message: str) -> Path:
    found = re.search(r"its IR is kept in (\S+?\.mlirbc)", message)
    assert found is not None, message
    return Path(found[1])


def stays(folder: Path, *kept: str) -> list[str]:
    """What is in `folder` when nothing but `kept` is, or after a while."""
    deadline = time.monotonic() + 60
    while {file.name for file in folder.iterdir()} - {*kept} and time.monotonic() < deadline:
        time.sleep(0.05)
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def test_steps_come_in_order_and_nothing_stays(
    request_of: Callable[..., CompileRequest], temporary: Path
) -> None:
    steps: list[CompileStep] = []
    compiled = compile_program(request_of(DOUBLE), steps.append)
    done = [step for step in steps if step.seconds is not None]
    assert [(s.kind, s.name) for s in steps[::2]] == [(s.kind, s.name) for s in done]
    wanted: list[str] = []
    for phase in (None, *PHASES):
        wanted += [] if phase is None else [phase]
        wanted += [s.name for s in pipeline("cpu").stages if s.phase == phase and s.passes]
    assert [step.name for step in done] == [*wanted, "report"]
    assert list(compiled.functions) == ["double"]
    assert (temporary.parent / "m.vmfb").stat().st_size > 1000
    assert stays(temporary) == []
    assert not children()


def test_a_killed_worker_is_an_error_with_its_phase_and_ir(
    request_of: Callable[..., CompileRequest], temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def kill(step: CompileStep) -> None:
        if step.name == "executable-targets":
            (worker,) = children()
            os.kill(worker, signal.SIGKILL)

    with pytest.raises(CompileError, match="memory runs out") as caught:
        compile_program(request_of(DOUBLE), kill)
    message = str(caught.value)
    assert message.startswith("the compiler died in IREE executable-targets (killed by SIGKILL")
    assert caught.value.phase == "executable-targets"
    file = kept(message)
    assert file.name == "executable-targets.mlirbc"
    assert [folder.name for folder in temporary.iterdir()] == [file.parent.name]
    assert opt.command(file, passes="canonicalize") == 0
    assert "hal.executable" in capsys.readouterr().out
    assert not children()


def test_what_llvm_says_on_its_death_is_told(
    request_of: Callable[..., CompileRequest], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No target of the table has such a name, so the worker is told of one that is not in it.
    start = (
        "import sys; sys.path[:] = {path!r}; from mxc.targets import target\n"
        "from dataclasses import replace\n"
        "target.TARGETS['cpu'] = replace(target.TARGETS['cpu:haswell'], chip='no-such-cpu')\n"
        "from mxc.artifact.child import serve; serve()"
    )
    monkeypatch.setattr("mxc.artifact.child._START", start)
    with pytest.raises(CompileError, match=r"the compiler died in .*: .*LLVM ERROR"):
        compile_program(request_of(DOUBLE))


def test_a_worker_that_cannot_start(
    request_of: Callable[..., CompileRequest], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxc.artifact.child._START", "import no_such_module")
    with pytest.raises(CompileError, match=r"died in IREE start \(exit status 1\): ModuleNotFound"):
        compile_program(request_of(DOUBLE))
    assert stays(temporary) == []


def test_a_refusal_of_iree_names_phase_line_and_ir(
    request_of: Callable[..., CompileRequest], temporary: Path
) -> None:
    with pytest.raises(CompileError) as caught:
        compile_program(request_of(ILLEGAL))
    message = str(caught.value)
    assert re.match(
        r"IREE refused the program in phase hal: p\.mlir:4:12: .*llvm.intr.nope", message
    )
    assert "\n" not in message
    assert opt.command(kept(message), passes="canonicalize", output=temporary / "out") == 0


def test_a_refusal_of_a_pass_has_its_place(
    request_of: Callable[..., CompileRequest], linear: Callable[..., str], temporary: Path
) -> None:
    # Blocks along the columns, which no kernel takes.
    along_k = "affine_map<(m, n, k) -> (n, k)>"
    program = linear("f", "mxfp6e2m3", n=96, k=96).replace(
        along_k, along_k.replace("n, k)>", "k, n)>")
    )
    line = next(n for n, t in enumerate(program.splitlines(), 1) if "linalg.matmul" in t)
    with pytest.raises(
        PassError, match=rf"^p\.mlir:{line}:\d+: .*6 bits yet; use a format of 4 or 8"
    ):
        compile_program(request_of(program))
    assert stays(temporary) == []


def test_files_that_cannot_be_written(
    request_of: Callable[..., CompileRequest], tmp_path: Path, temporary: Path
) -> None:
    full = tmp_path / "full.vmfb"
    full.symlink_to("/dev/full")
    for module, said in ((full, "No space left"), (tmp_path / "gone" / "m.vmfb", "No such file")):
        with pytest.raises(OSError, match=said):
            compile_program(request_of(DOUBLE, module=module))
    assert stays(temporary) == []


def test_a_bug_of_ours_keeps_its_trace(
    request_of: Callable[..., CompileRequest], temporary: Path
) -> None:
    with pytest.raises(RuntimeError, match=r"in the compiler process:\n(.|\n)*driver.py"):
        compile_program(
            CompileRequest(program=cast(Any, None), place="p", target="cpu", module=temporary / "m")
        )


HANGS = (
    "import sys, time; sys.path[:] = {path!r}\n"
    "from mxc.compiler import worker; from mxc.compiler.steps import CompileStep\n"
    "def hang(request, folder, send):\n"
    "    (folder / 'program.mlirbc').touch(); send(CompileStep(kind='phase', name='input'))\n"
    "    time.sleep(60)\n"
    "worker._outcome = hang\n"
    "from mxc.artifact.child import serve; serve()"
)


def test_a_phase_that_does_not_end(
    request_of: Callable[..., CompileRequest], temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxc.artifact.child._START", HANGS)
    request = replace(request_of(DOUBLE), phase_timeout=5.0)
    with pytest.raises(CompileError) as caught:
        compile_program(request)
    message = str(caught.value)
    assert message.startswith("p.mlir: IREE input did not end within 5 s; give it longer with")
    assert caught.value.phase == "input"
    assert [folder.name for folder in temporary.iterdir()] == [kept(message).parent.name]
    assert not children()


def test_what_a_killed_compile_left_goes_with_the_next_one(
    request_of: Callable[..., CompileRequest], temporary: Path
) -> None:
    for name in ("mxc-compile-0123abcd", "mxc-compile-dead", "another"):
        (temporary / name).mkdir()
        (temporary / name / "file").touch()
    compile_program(request_of(DOUBLE))
    assert stays(temporary, "another") == ["another", "another/file"]


def test_a_program_that_kills_the_parser(
    request_of: Callable[..., CompileRequest], temporary: Path
) -> None:
    deep = "func.func @f() attributes {a = " + "[" * 20000 + "]" * 20000 + "} { return }"
    with pytest.raises(CompileError, match=r"died in IREE start \(killed by SIGSEGV, as of attr"):
        compile_program(request_of(deep))
    file = temporary / "deep.mlir"
    file.write_text(deep)
    with pytest.raises(CompileError, match=r"died in the parser of MLIR \(killed by SIGSEGV"):
        opt.command(file, passes="cse")


def test_a_program_that_irees_bytecode_cannot_hold(
    request_of: Callable[..., CompileRequest], temporary: Path
) -> None:
    barrier = DOUBLE.replace("  return", "  gpu.barrier\n  return")
    with pytest.raises(CompileError, match=r"phase end: p.mlir:3:3: failed to legalize"):
        compile_program(request_of(barrier))


def test_a_callers_error_ends_the_worker(
    request_of: Callable[..., CompileRequest], temporary: Path
) -> None:
    with pytest.raises(ZeroDivisionError):
        compile_program(request_of(DOUBLE), cast(Any, lambda step: 1 // 0))
    assert not children()
    assert stays(temporary) == []


def test_a_worker_that_hears_nothing_is_ended_with_what_it_started(
    temporary: Path, request_of: Callable[..., CompileRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = (
        "import pickle, subprocess, sys, time; sys.path[:] = {path!r}\n"
        "from mxc.compiler.steps import CompileStep\nfrom mxc.artifact.child import Channel\n"
        "linker = subprocess.Popen(['sleep', '600'], stdout=2)\n"
        "Channel().send(pickle.dumps(CompileStep(kind='phase', name=str(linker.pid))))\n"
        "time.sleep(60)"
    )
    monkeypatch.setattr("mxc.artifact.child._START", start)
    started: list[Path] = []

    def stop(step: CompileStep) -> None:
        started.append(Path("/proc") / step.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_program(request_of(DOUBLE), stop)
    (linker,) = started
    deadline = time.monotonic() + 60
    while linker.exists() and "Z" not in (linker / "stat").read_text().split(")")[1]:
        assert time.monotonic() < deadline, "what the worker started outlives it"
        time.sleep(0.05)
    assert not children()


def test_what_is_printed_in_the_worker_does_not_mix_with_its_messages(
    temporary: Path, request_of: Callable[..., CompileRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = (
        "import os, sys; sys.path[:] = {path!r}; from mxc.compiler import driver\n"
        "inner = driver.compile_here\n"
        "def loud(*arguments):\n"
        "    print('from Python', flush=True); os.write(1, b'from below')\n"
        "    return inner(*arguments)\n"
        "driver.compile_here = loud\n"
        "from mxc.artifact.child import serve; serve()"
    )
    monkeypatch.setattr("mxc.artifact.child._START", start)
    assert list(compile_program(request_of(DOUBLE)).functions) == ["double"]


def test_a_program_without_a_guarded_main_may_compile(
    request_of: Callable[..., CompileRequest], tmp_path: Path
) -> None:
    (tmp_path / "request").write_bytes(pickle.dumps(request_of(DOUBLE)))
    script = tmp_path / "script.py"
    script.write_text(
        "import pickle, sys\nfrom mxc.compiler.worker import compile_program\n"
        "request = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(*compile_program(request).functions)\n"
    )
    result = subprocess.run(
        [sys.executable, script, tmp_path / "request"], capture_output=True, text=True, timeout=60
    )
    assert (result.stdout, result.stderr) == ("double\n", "")


def test_the_worker_dies_with_its_parent(
    request_of: Callable[..., CompileRequest], tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "request").write_bytes(pickle.dumps(request_of(DOUBLE)))
    program = (
        "import os, pathlib, pickle, sys\nfrom mxc.compiler.worker import compile_program\n"
        "def die(step):\n"
        "    children = pathlib.Path(f'/proc/self/task/{os.getpid()}/children')\n"
        "    print(children.read_text(), flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "compile_program(pickle.load(open(sys.argv[1], 'rb')), die)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "request"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert result.returncode == -signal.SIGKILL
    worker = Path("/proc") / result.stdout.strip()
    deadline = time.monotonic() + 60
    while worker.exists() and "Z" not in (worker / "stat").read_text().split(")")[1]:
        assert time.monotonic() < deadline, "the worker outlives its parent"
        time.sleep(0.05)
    assert stays(temporary) == []
