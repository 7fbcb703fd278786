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
    """Registers and memory of the kernels of an artifact, by name."""
    data = (artifact / MODULE).read_bytes()
    objects = [data[found.start() :] for found in re.finditer(b"\x7fELF", data)]
    return {name: use for each in objects for name, use in read_resources(each).items()}


@dataclass
class Watched:
    """A program; `call` gives the results of a function that is one kernel, as bytes."""

    model: SimulatedModel
    artifact: Path
    seen: list[tuple[CodeObjectKernel, Sanitizer]] = field(default_factory=list)

    def call(
        self, name: str, *inputs: npt.NDArray[np.generic], kernels: int = 1
    ) -> list[npt.NDArray[np.uint8]]:
        """Run a function, which must be so many dispatches without a finding."""
        self.seen.clear()
        results = self.model.call(name, *inputs)
        assert len(self.seen) == kernels
        assert not [finding for _, sanitizer in self.seen for finding in sanitizer.findings]
        outputs = results if isinstance(results, list | tuple) else [results]
        return [np.ascontiguousarray(each).view(np.uint8) for each in outputs]

    @property
    def kernel(self) -> CodeObjectKernel:
        """That of the last call."""
        return self.seen[-1][0]

    @property
    def resources(self) -> dict[str, Resources]:
        """Registers and memory of all its kernels, by name."""
        return resources_of(self.artifact)


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Watched]:
    """Compile a program from its text, with schedules of one's own if they are given."""

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
    """Registers and memory of the kernels of a program on a target, by name. The program may have
    parameters."""

    def of(text: str, target: str) -> dict[str, Resources]:
        module = tmp_path / MODULE
        request = CompileRequest(
            program=text.encode(), place="program", target=target, module=module, parameters=True,
            listed=False,
        )  # fmt: skip
        compile_program(request)
        return resources_of(tmp_path)

    return of
