"""Programs for gfx950, compiled as users do, then run on the simulator and watched."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mxc
from mxc.artifact.code_objects.metadata import Resources, read_resources
from mxc.artifact.manifest import MODULE
from mxc.compiler.steps import CompileRequest
from mxc.compiler.worker import compile_program
from mxc.runtime.simulated import SimulatedModel, load
from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.watch.sanitizer import Sanitizer


def resources_of(artifact: Path) -> dict[str, Resources]:
    """Return the registers and memory that the kernels of an artifact use, by kernel name."""
    data = (artifact / MODULE).read_bytes()
    objects = [data[found.start() :] for found in re.finditer(b"\x7fELF", data)]
    return {name: use for each in objects for name, use in read_resources(each).items()}


@dataclass
class Watched:
    """A program on the simulator. `seen`: the kernels of the last call, with their sanitizers."""

    model: SimulatedModel
    artifact: Path
    seen: list[tuple[CodeObjectKernel, Sanitizer]] = field(default_factory=list)

    def call(
        self, name: str, *inputs: npt.NDArray[np.generic], kernels: int = 1
    ) -> list[npt.NDArray[np.uint8]]:
        """Run a function and return its results as bytes.

        Asserts that it has `kernels` dispatches, and that the sanitizer finds nothing.
        """
        self.seen.clear()
        results = self.model.call(name, *inputs)
        assert len(self.seen) == kernels
        assert not [finding for _, sanitizer in self.seen for finding in sanitizer.findings]
        outputs = results if isinstance(results, list | tuple) else [results]
        return [np.ascontiguousarray(each).view(np.uint8) for each in outputs]

    @property
    def kernel(self) -> CodeObjectKernel:
        """The last kernel of the last call."""
        return self.seen[-1][0]

    @property
    def resources(self) -> dict[str, Resources]:
        """Registers and memory that the kernels of the program use, by kernel name."""
        return resources_of(self.artifact)


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Watched]:
    """Return a function that compiles the text of a program, with `schedules` if they are given,
    and loads it on the simulator."""

    def watch(
        text: str, schedules: Sequence[Mapping[str, Any]] = (), target: str = "gfx950"
    ) -> Watched:
        folder: Path = tmp_path_factory.mktemp("watched")
        (folder / "program.mlir").write_text(text)
        (folder / "schedules.json").write_text(json.dumps(schedules))
        mxc.compile(
            folder / "program.mlir",
            target=target,
            output=folder / "program.mxc",
            schedule=folder / "schedules.json" if schedules else None,
            listing=False,
        )
        seen: list[tuple[CodeObjectKernel, Sanitizer]] = []

        def observe(kernel: CodeObjectKernel) -> Sanitizer:
            seen.append((kernel, Sanitizer()))
            return seen[-1][1]

        artifact = folder / "program.mxc"
        return Watched(load(artifact, observe=observe), artifact, seen)

    return watch


@pytest.fixture
def resources(tmp_path: Path) -> Callable[[str, str], dict[str, Resources]]:
    """Return a function that compiles a program for a target and returns the registers and memory
    that its kernels use, by kernel name. The program may have parameters."""

    def of(text: str, target: str) -> dict[str, Resources]:
        module = tmp_path / MODULE
        request = CompileRequest(
            program=text.encode(), place="program", target=target, module=module, parameters=True,
            listed=False,
        )  # fmt: skip
        compile_program(request)
        return resources_of(tmp_path)

    return of
