"""Fixtures that compile contractions, run them on random data, and compare them with float64.

A test names its contractions (kernel_cases.py) and compiles them as one program, as a model is
compiled.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iree import runtime as rt
from numpy.typing import NDArray

from mxc.artifact.manifest import SCOPE
from mxc.compiler.driver import compile_here
from mxc.compiler.iree import resolve
from mxc.compiler.packing.panels import to_panels
from mxc.compiler.steps import Compiled, CompileRequest
from mxc.formats.formats import block_format
from mxc.passes.kernels.cpu.isa import ISAS, best_isa
from mxc.runtime.device import open_device
from mxc.targets.target import target
from tests.passes.kernel_cases import FLOATS, SCALES, UNITS, Case, Ids, U, program

Array = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Loaded:
    """A program that is loaded with weights; call it with the name of a case."""

    program: "Program"
    weights: dict[str, Any]
    context: rt.VmContext
    module: rt.VmModule
    device: Any

    def __call__(
        self, name: str, x: Any, ids: Ids = None, residual: Array | None = None
    ) -> NDArray[np.float32]:
        """Run a case, and return its result [groups, rows, columns]."""
        case = self.program.cases[name]
        arguments = list(x.arrays)
        if case.experts and case.is_dynamic:
            arguments = [array[:, None] for array in arguments]
        if case.chooses:
            arguments.append(case.ids() if ids is None else ids)
        if residual is not None:
            arguments.append(residual)
        if case.given:
            shapes = case.parameters.values()
            arguments += [
                array.reshape(shape)
                for array, shape in zip(self.weights[name].arrays, shapes, strict=True)
            ]
        function = self.module.lookup_function(name)
        entry = rt.FunctionInvoker(self.context, self.device, function)
        found = entry(*arguments).to_host()
        return found.reshape(case.groups, case.rows, case.columns)


@dataclass(frozen=True)
class Program:
    """Compiled cases, by name."""

    cases: dict[str, Case]
    file: Path
    compiled: Compiled
    formats: Any

    def layouts(self, name: str) -> list[str | None]:
        """Return the packed layout of each parameter of a case; None if portable code reads it."""
        return [self.compiled.panels.get(name) for name in self.cases[name].parameters]

    def draw(self, *, exact: bool) -> "Data":
        """Draw data for every case; see `Case.draw`."""
        sides = {name: case.draw(self.formats, exact=exact) for name, case in self.cases.items()}
        weights = {name: side[0] for name, side in sides.items()}
        return Data(self, weights, {name: side[1] for name, side in sides.items()})

    def load(self, weights: dict[str, Any], threads: int = 2) -> Loaded:
        """Load the program with the weights of its cases; cases without weights have zeros."""
        device = open_device("local-task", threads, "test")
        index = rt.ParameterIndex()
        for case in self.cases.values():
            arrays = weights[case.name].arrays if case.name in weights else None
            for place, (name, shape) in enumerate(case.parameters.items()):
                kind = FLOATS.get(case.weight, np.int8)
                if place and case.weight not in SCALES:
                    kind = np.float32
                array = np.zeros(shape, kind) if arrays is None else arrays[place]
                index.add_buffer(name, self._packed(case, name, array))
            if case.plus:
                index.add_buffer(f"{case.name}.b", np.arange(case.columns, dtype=np.float32))
        instance = rt.VmInstance()
        module = rt.VmModule.mmap(instance, str(self.file))
        hal = rt.create_hal_module(instance, device)
        parameters = rt.create_io_parameters_module(instance, index.create_provider(scope=SCOPE))
        return Loaded(
            self, weights, rt.VmContext(instance, [hal, parameters, module]), module, device
        )

    def _packed(self, case: Case, name: str, array: Array) -> NDArray[np.uint8]:
        """Return the bytes of a parameter in the layout that the program reads."""
        flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        layout = self.compiled.panels.get(name)
        if layout is None:
            return flat
        row_bytes = flat.size // (max(case.experts, 1) * case.columns)
        return to_panels(flat, case.columns, row_bytes, layout)


@dataclass(frozen=True, eq=False)
class Data:
    """Weights and activations of every case of a program, with actual and expected results."""

    program: Program
    weights: dict[str, Any]
    activations: dict[str, Any]
    threads: int = 2

    def on(self, threads: int) -> "Data":
        """Return the same data for a program that runs on another number of threads."""
        return replace(self, threads=threads)

    @cached_property
    def loaded(self) -> Loaded:
        return self.program.load(self.weights, self.threads)

    def found(self, name: str, x: Any | None = None, ids: Ids = None) -> NDArray[np.float32]:
        """Return what the program computes for a case, [groups, rows, columns]."""
        return self.loaded(name, self.activations[name] if x is None else x, ids)

    def wanted(self, name: str, ids: Ids = None, x: Any | None = None) -> Floats:
        """Return the expected result of a case in float64, [groups, rows, columns]."""
        return np.einsum("gmk,gnk->gmn", *self._factors(name, ids, x))

    def check(self, name: str, ids: Ids = None, x: Any | None = None) -> None:
        """Assert that the result of a case has no more error than f32 sums have.

        A sum of T terms t rounds its partial sums, which are random walks, by u = 2^-24: its error
        is about u * sqrt(T / 2) * |t|, where |t| is the root of the sum of squares. Four times that
        is allowed. The terms are the products of elements; where dot products of bytes are exact,
        they are the sums of blocks, each of which its scale rounds once more. One term too few
        makes an error a thousand times as large.
        """
        case = self.program.cases[name]
        rows, columns = self._factors(name, ids, x)
        if case.in_bytes:
            step = min(case.block, case.row_block)
            split = [side.reshape(*side.shape[:-1], -1, step) for side in (rows, columns)]
            terms, count = np.einsum("gmkb,gnkb->gmnk", *split), 2 * case.depth // step
            size = np.sqrt((terms**2).sum(axis=-1))
        else:
            size, count = np.sqrt(np.einsum("gmk,gnk->gmn", rows**2, columns**2)), case.depth
        wanted = np.einsum("gmk,gnk->gmn", rows, columns)
        found = self.found(name, self.activations[name] if x is None else x, ids)
        error = np.abs(found - wanted)
        limit = 4 * U * np.sqrt(count / 2) * size
        assert (error <= limit).all(), f"{(error / limit).max():.3g} of what is allowed"

    def _factors(self, name: str, ids: Ids, x: Any | None) -> tuple[Floats, Floats]:
        x = self.activations[name] if x is None else x
        return self.program.cases[name].factors(self.weights[name], x, ids)


@dataclass(frozen=True)
class Kernels:
    """Compiles cases. Tests get it as the fixture `kernels`."""

    folders: pytest.TempPathFactory
    formats: Any

    def __call__(
        self, *names: str, target: str = "cpu", assembly: bool = False, schedules: str = ""
    ) -> Program:
        """Compile the cases of these names as one program.

        `assembly`: whether the report describes the kernels. `schedules`: a file of schedules.
        """
        cases = [Case.parse(name) for name in names]
        folder = self.folders.mktemp("kernels")
        request = CompileRequest(
            program=program(cases), place="kernels", target=target, module=folder / "m.vmfb",
            parameters=True, schedules=schedules,
        )  # fmt: skip
        texts = folder / "assembly" if assembly else None
        made = compile_here(request, texts, folder / "program", lambda step: None)
        return Program({case.name: case for case in cases}, folder / "m.vmfb", made, self.formats)

    def units(self, case: Case) -> float:
        """Return the product of the units of both sides, which multiplies an integer sum; 1 if this
        CPU sums floats, as AVX2 does for int8."""
        name = best_isa(resolve(target("cpu")))
        bits = block_format(case.weight).element.bits
        if name is None or not ISAS[name].decodes(bits, "quads"):
            return 1
        return math.prod(UNITS[side] for side in (case.weight, case.activation))


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory, formats: Any) -> Kernels:
    return Kernels(tmp_path_factory, formats)
