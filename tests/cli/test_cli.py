"""What holds for every subcommand: refusals, interrupts, traces, and what is imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mxc.compiler.cli import app
from mxc.errors import MxcError

COMMANDS = [
    "compile", "generate", "run", "bench", "report", "inspect", "opt", "list", "demo", "tune",
]  # fmt: skip


def start(program: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert f" {command} " in result.output
    assert "--help" in result.output


def test_no_arguments_and_unknown_ones() -> None:
    runner = CliRunner()
    listed = runner.invoke(app, []).output
    assert all(command in listed for command in COMMANDS)
    unknown = runner.invoke(app, ["genrate"])
    assert unknown.exit_code == 2
    assert "genrate" in unknown.stderr


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("mxc 0.")
    assert "IREE 3." in result.output


def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path / "gone.mxc")])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"error: {tmp_path / 'gone.mxc'}: no such artifact\n"


def test_verbose_gives_the_trace(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["-v", "report", str(tmp_path / "gone.mxc")])
    assert isinstance(result.exception, MxcError)
    program = "from mxc.compiler.cli import main; main()"
    process = start(program, "-v", "report", str(tmp_path / "gone.mxc"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" in errors
    assert "read_manifest" in errors


def test_a_bug_of_ours_keeps_its_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_: Path) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("mxc.artifact.manifest.read_manifest", broken)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize("words", [("list", "formats"), ("list", "formats", "--json")])
def test_a_full_disk_is_one_line(words: tuple[str, ...]) -> None:
    program = "from mxc.compiler.cli import main; main()"
    with open("/dev/full", "w") as full:  # refuses every byte
        process = subprocess.run(
            [sys.executable, "-c", program, *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert process.returncode == 1
    assert process.stderr == ("error: the output: cannot be written (No space left on device)\n")


def test_a_terminal_without_the_character_gets_its_number() -> None:
    program = "print('before'); from mxc.compiler.cli import app, main; import sys\n"
    program += "app.command('say')(lambda: print('\\u6f22')); sys.argv[1:] = ['say']; main()"
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stdout) == (0, "before\n\\u6f22\n"), process.stderr


def test_interrupt_ends_with_one_line(toy_artifact: Path) -> None:
    """A real signal, while tokens are being printed."""
    program = (
        "import time\n"
        "from mxc.compiler.cli import main\n"
        "from mxc.runtime.sampling import Sampler\n"
        "def slow(self, logits): time.sleep(0.05); return 5\n"
        "Sampler.__call__ = slow\n"
        "main()\n"
    )
    process = start(program, "generate", str(toy_artifact), "--prompt-tokens", "1")
    assert process.stdout is not None
    assert process.stdout.read(2) == "w5"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "\ninterrupted\n"


def test_an_interrupt_in_the_middle_of_an_import_waits_for_its_end(tmp_path: Path) -> None:
    """C++ that initializes a module, which an exception would end, stands for IREE's."""
    (tmp_path / "slow_module.py").write_text(
        "import sys, time\n"
        "print('importing', flush=True)\n"
        "deadline = time.monotonic() + 0.3\n"
        "try:\n"
        "    while time.monotonic() < deadline: time.sleep(0.01)\n"
        "except BaseException as error:\n"
        "    print('ended by', type(error).__name__, flush=True)\n"
        "print('imported', flush=True)\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from mxc.compiler import cli\n"
        "@cli.app.command('wait')\n"
        "def wait():\n"
        "    import slow_module, time\n"
        "    time.sleep(60)\n"
        "cli.main()\n"
    )
    process = start(program, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "imported\n", "\ninterrupted\n")


def test_generating_never_imports_the_compiler(toy_artifact: Path) -> None:
    program = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('iree.compiler'): raise ImportError(name + ' is blocked')\n"
        "sys.meta_path.insert(0, Block())\n"
        "from mxc.compiler.cli import main\n"
        "main()\n"
    )
    for words in (
        ["generate", str(toy_artifact), "--prompt-tokens", "1", "--max-new-tokens", "2"],
        ["bench", str(toy_artifact), "--prompt", "4", "--generate", "2"],
    ):
        process = start(program, *words)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert output
    control = start(program, "list", "passes")
    _, errors = control.communicate(timeout=60)
    assert "iree.compiler is blocked" in errors


def test_the_shell_completes_commands() -> None:
    words = {"_MXC_COMPLETE": "complete_bash", "COMP_WORDS": "mxc comp", "COMP_CWORD": "1"}
    found = subprocess.run(
        [sys.executable, "-m", "mxc"], env={**os.environ, **words}, capture_output=True, text=True
    )
    assert found.stdout.split() == ["compile"]
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout
