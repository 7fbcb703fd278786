"""Sentinels: each test holds while one IREE fault that mxc works around is there.

A sentinel that fails is good news: IREE has repaired the fault, and the message names the
workaround that can go. Each has a control which shows that the program itself is sound.
"""

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import iree.runtime as rt
import pytest
from iree.compiler.tools import binaries

HERE = Path(__file__).parent
CPU = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


@pytest.fixture(scope="session")
def iree_compile() -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run the stock compiler in a process of its own: some of the faults kill it."""

    def run(
        source: Path, output: Path, *flags: str, target: tuple[str, ...] = CPU
    ) -> "subprocess.CompletedProcess[str]":
        compiler = binaries.find_tool("iree-compile")
        return subprocess.run(
            [compiler, str(source), "-o", str(output), *target, *flags],
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.fixture(scope="session")
def program(
    iree_compile: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Any]:
    """Compile a file of this folder, or a text in its place, with stock flags and load it."""
    folder = tmp_path_factory.mktemp("sentinels")

    @cache
    def load(name: str, text: str | None = None) -> Any:
        source = HERE / name
        if text is not None:
            source = folder / name
            source.write_text(text)
        output = folder / f"{source.stem}.vmfb"
        result = iree_compile(source, output)
        assert result.returncode == 0, result.stderr
        context = rt.SystemContext(config=rt.Config("local-sync"))
        context.add_vm_module(rt.VmModule.copy_buffer(context.instance, output.read_bytes()))
        return context.modules.module

    return load
