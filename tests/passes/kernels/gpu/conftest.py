"""Programs for gfx950 by the whole road: compiled, then run on the simulator and watched."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import mxc
from mxc.runtime.simulator.code.code_object import Kernel
from mxc.runtime.simulator.session import SimulatedModel, load
from mxc.runtime.simulator.watch.sanitizer import Sanitizer


@dataclass
class Watched:
    """A program; `call` gives the results of a function that is one kernel, as bytes."""

    model: SimulatedModel
    seen: list[tuple[Kernel, Sanitizer]] = field(default_factory=list)

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
    def kernel(self) -> Kernel:
        """That of the last call."""
        return self.seen[-1][0]


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Watched]:
    """Compile a program from its text."""

    def compile_program(text: str) -> Watched:
        folder: Path = tmp_path_factory.mktemp("watched")
        (folder / "program.mlir").write_text(text)
        mxc.compile(folder / "program.mlir", target="gfx950", output=folder / "program.mxc")
        seen: list[tuple[Kernel, Sanitizer]] = []

        def observe(kernel: Kernel) -> Sanitizer:
            seen.append((kernel, Sanitizer()))
            return seen[-1][1]

        return Watched(load(folder / "program.mxc", observe=observe), seen)

    return compile_program
