"""Kernels on AMX tiles: the program on a CPU that has tiles, against the interpreter.

The interpreter adds in the order of the tile unit, so that results have the same bits. On other
CPUs only the interpreter runs.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.artifact.manifest import SCOPE
from mxc.compiler.driver import compile_here
from mxc.compiler.iree import resolve
from mxc.compiler.packing.panels import to_panels
from mxc.compiler.steps import CompileRequest
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled import scaled_contraction
from mxc.formats.formats import block_format
from mxc.formats.packing import pack_elements
from mxc.kernels.amx import scheduled
from mxc.runtime.device import open_device
from mxc.targets.target import target
from mxc.targets.tile_permission import TILES, refusal
from tests.kernels.conftest import Problem

HAS_TILES = TILES in resolve(target("cpu")).features and refusal() is None
CASES = {"mxfp4": (37, 40, 288), "mxfp8e4m3": (20, 17, 64), "mxint8": (3, 32, 320)}


def program(format: str, rows: int, columns: int, depth: int) -> bytes:
    known, of = block_format(format), ir.RankedTensorType.get
    blocks = depth // known.block
    with new_context(), ir.Location.unknown():
        module, i8 = ir.Module.create(), ir.IntegerType.get_signless(8)
        parameters = Parameters(module)

        def main(x: ir.Value) -> ir.Value:
            w = parameters.load("w", [columns, blocks, known.block_bytes], i8)
            s = parameters.load("s", [columns, blocks], i8)
            kind = ir.Type.parse(known.element.mlir)
            w = w if kind == i8 else unpack(w, kind)
            return scaled_contraction(x, w, rhs_scale=unpack(s, ir.Type.parse(known.scale.mlir)))

        with ir.InsertionPoint(module.body):
            shape = [rows, blocks, known.block]
            func.FuncOp.from_py_func(of(shape, ir.BF16Type.get()), name="main")(main)
        return str(module).encode()


def run(folder: Path, format: str, problem: Problem) -> np.ndarray:
    """Compile the program of a format, run it on a problem, and return its result."""
    rows, columns, _ = CASES[format]
    request = CompileRequest(
        program=program(format, *CASES[format]), place="p", target="cpu",
        module=folder / "m.vmfb", parameters=True,
    )  # fmt: skip
    made = compile_here(request, None, folder / "program", lambda step: None)
    assert [row["kernel"].endswith("_tiles") for row in made.report["matmuls"]] == [True]
    index = rt.ParameterIndex()
    assert problem.codes is not None
    assert problem.scales is not None
    arrays = {"w": pack_elements(problem.codes[0], format), "s": problem.scales[0]}
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array).reshape(-1)
        panels = to_panels(flat, columns, flat.size // columns, made.panels[name])
        index.add_buffer(name, panels)
    device, instance = open_device("local-task", 2, "test"), rt.VmInstance()
    module = rt.VmModule.mmap(instance, str(folder / "m.vmfb"))
    provider = index.create_provider(scope=SCOPE)
    modules = [
        rt.create_hal_module(instance, device),
        rt.create_io_parameters_module(instance, provider),
        module,
    ]
    context = rt.VmContext(instance, modules)
    entry = rt.FunctionInvoker(context, device, module.lookup_function("main"))
    x = problem.x.reshape(rows, -1, block_format(format).block)
    return np.array(entry(x).to_host()).reshape(rows, columns)


@pytest.mark.parametrize("format", CASES)
def test_tiles_or_without_them_the_interpreter_alone(
    draw: Callable[..., Problem], tmp_path: Path, format: str
) -> None:
    rows, columns, depth = CASES[format]
    problem = draw(format, rows, columns, depth)
    found = problem.run(scheduled(problem.contraction))[:rows, :columns]
    np.testing.assert_allclose(found, problem.wanted, rtol=1e-3, atol=1e-5 * np.abs(found).max())
    if HAS_TILES:
        np.testing.assert_array_equal(run(tmp_path, format, problem), found)
