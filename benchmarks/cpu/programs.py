"""Compiles programs that benchmarks build with mxc for this CPU, and runs them in this process.

A program is compiled like a model: mxc's passes, IREE's phases, a worker process. Parameters are
arrays in canonical order, and are packed for the kernels as in an artifact.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from iree import runtime as rt
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.artifact.manifest import SCOPE
from mxc.compiler.packing.panels import to_panels
from mxc.compiler.steps import Compiled, CompileRequest
from mxc.compiler.worker import compile_program
from mxc.dialects.context import new_context
from mxc.dialects.parameters import Parameters
from mxc.runtime.device import open_device
from mxc.targets.tile_permission import refusal

Array = NDArray[Any]

#: Adds functions to the module at the insertion point.
Build = Callable[[Parameters], None]


@dataclass(frozen=True)
class Program:
    """Compiled code in memory, which runs on any number of threads."""

    code: bytes
    compiled: Compiled


def compile_build(build: Build, target: str = "cpu") -> Program:
    """Compile the module to which `build` adds functions. Raises CompileError, PassError."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            build(Parameters(module))
        text = str(module).encode()
    with tempfile.TemporaryDirectory(prefix="mxc-bench-") as folder:
        file = Path(folder) / "module.vmfb"
        request = CompileRequest(
            program=text, place="benchmark", target=target, module=file, parameters=True
        )
        compiled = compile_program(request)
        return Program(file.read_bytes(), compiled)


def laid_out(program: Program, name: str, rows: Array) -> Array:
    """Return the bytes of parameter `name` as the program reads them: in panels, where its kernel
    wants them. `rows`: the parameter [rows, ..] in canonical order."""
    data = np.ascontiguousarray(rows).reshape(rows.shape[0], -1).view(np.uint8)
    layout = program.compiled.panels.get(name)
    if layout is None:
        return data.reshape(-1)
    return to_panels(data.reshape(-1), *data.shape, layout)


class Loaded:
    """A program, loaded with its parameters on a CPU device with `threads` worker threads."""

    def __init__(self, code: bytes, parameters: Mapping[str, Array], threads: int) -> None:
        """Load the program. `parameters`: bytes as the program reads them (`laid_out`), by name."""
        refusal()  # asks Linux for AMX tiles, which kernels use if the compiler found them granted
        self.device = open_device("local-task", threads, "benchmark")
        index = rt.ParameterIndex()
        for name, array in parameters.items():
            index.add_buffer(name, array)
        instance = rt.VmInstance()
        self._module = rt.VmModule.copy_buffer(instance, code)
        hal = rt.create_hal_module(instance, self.device)
        provider = rt.create_io_parameters_module(instance, index.create_provider(scope=SCOPE))
        self._context = rt.VmContext(instance, [hal, provider, self._module])

    def put(self, array: Array) -> Any:
        """Put an array on the device, as an argument. Its dtype must be one of numpy's own."""
        return rt.asdevicearray(self.device, array)

    def prepare(self, name: str, *arguments: Any) -> Callable[[], Array]:
        """Return a call of function `name` with fixed arguments, which does nothing else.

        It returns the results as IREE does: `read` makes one an array.
        """
        function = self._module.lookup_function(name)
        if function is None:
            raise ValueError(f"the program has no function {name!r}")
        inputs = rt.VmVariantList(len(arguments))
        for argument in arguments:
            inputs.push_ref(argument._buffer_view)

        def call() -> Any:
            outputs = rt.VmVariantList(1)
            self._context.invoke(function, inputs, outputs)
            return outputs

        return call

    def read(self, outputs: Any, index: int = 0) -> Array:
        """Return a result of a prepared call as a new array."""
        view = outputs.get_as_object(index, rt.HalBufferView)
        return np.array(rt.DeviceArray(self.device, view).to_host())


def shape(*sizes: int, of: ir.Type) -> ir.Type:
    """Return the type of a static tensor."""
    return ir.RankedTensorType.get(list(sizes), of)


def memref(sizes: Sequence[int], of: ir.Type) -> ir.Type:
    """Return the type of a static buffer."""
    return ir.MemRefType.get(list(sizes), of)
