"""Benchmarks are scripts, which are run as a user runs them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CPU = Path(__file__).resolve().parents[2] / "benchmarks" / "cpu"

Run = Callable[..., "subprocess.CompletedProcess[str]"]

#: Runs a script as it would run where the peer is not installed.
WITHOUT_PEER = """
import runpy, sys
sys.modules["llama_cpp"] = None
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run() -> Run:
    """`run("limits.py", "--json")` in a process without the peer."""

    def start(script: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", WITHOUT_PEER, str(CPU / script), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    return start
