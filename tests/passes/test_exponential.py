"""Exponential and tanh of the kernels against float64, in registers of AVX-512 and of AVX2."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from iree import runtime as rt
from iree.compiler import ir
from iree.compiler.dialects import func, vector
from numpy.typing import NDArray

from mxc.compiler.driver import compile_here
from mxc.compiler.steps import CompileRequest
from mxc.dialects.context import new_context
from mxc.passes.kernels.executables import dispatch, executable
from mxc.passes.kernels.exponential import exponential, tanh
from mxc.passes.kernels.vectors import f32, index, load, loop
from mxc.runtime.device import open_device

#: Lanes of the registers for which the functions are built: AVX2 and AVX-512.
LANES = (8, 16)
FUNCTIONS = {"exp": exponential, "tanh": tanh}
#: Number of points at which a function is computed.
POINTS = 1 << 16


def program() -> bytes:
    """Return a program with a function for each of LANES and FUNCTIONS, whose kernel computes
    nothing else, for POINTS numbers."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for lanes, name in product(LANES, FUNCTIONS):
                _function(lanes, name)
        return str(module).encode()


def _function(lanes: int, name: str) -> None:
    def body(x: ir.Value, y: ir.Value) -> None:
        with loop(index(0), index(POINTS), index(lanes)) as (at, _, _):
            vector.store(FUNCTIONS[name](load(x, [at], f32(), lanes)), y, [at])

    executable(f"{name}{lanes}", [ir.MemRefType.get([POINTS], f32())] * 2, lambda _: [1], body)
    kind = ir.RankedTensorType.get([POINTS], f32())
    func.FuncOp.from_py_func(kind, name=f"call_{name}{lanes}")(
        lambda x: dispatch(f"{name}{lanes}", [x], [kind]).results[0]
    )


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exponential")
    request = CompileRequest(
        program=program(), place="exponential", target="cpu", module=folder / "module.vmfb"
    )
    compile_here(request, None, folder / "program", lambda step: None)
    return folder / "module.vmfb"


def call(file: Path, name: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    device, instance = open_device("local-task", 2, "test"), rt.VmInstance()
    module = rt.VmModule.mmap(instance, str(file))
    context = rt.VmContext(instance, [rt.create_hal_module(instance, device), module])
    entry = rt.FunctionInvoker(context, device, module.lookup_function(f"call_{name}"))
    return np.array(entry(x).to_host())


@pytest.mark.parametrize("lanes", LANES)
def test_exponential(lanes: int, module: Path) -> None:
    """Every binade down to the least normal number, both ends of every step, and what is beyond."""
    rng = np.random.default_rng(0)
    steps = np.arange(-126, 128)[:, None] * np.log(2) / 2 + np.array([-1e-6, 0, 1e-6])
    x = np.concatenate([
        -np.geomspace(1e-30, 87.3, POINTS // 4),
        -rng.uniform(0, 87.3, POINTS // 4),
        rng.uniform(-1, 88, POINTS // 4),
        np.clip(steps.reshape(-1), -87.3, 88),
    ])  # fmt: skip
    edges = [0.0, -0.0, -88.0, -89.0, -1e30, -3e38, -np.inf, np.nan, -np.nan]
    x = np.pad(x, (0, POINTS - len(edges) - x.size)).astype(np.float32)
    x = np.concatenate([x, np.array(edges, np.float32)])
    found = call(module, f"exp{lanes}", x)
    assert found[-len(edges) :].tolist()[:2] == [1.0, 1.0]
    assert not found[-7:-2].any()
    assert np.isnan(found[-2:]).all()
    x, found = x[: -len(edges)].astype(np.float64), found[: -len(edges)]
    wanted = np.exp(x)
    error = np.abs(found - wanted) / np.spacing(wanted.astype(np.float32))
    assert error.max() <= 1.0, (error.max(), x[error.argmax()])


@pytest.mark.parametrize("lanes", LANES)
def test_tanh(lanes: int, module: Path) -> None:
    """Both sides of the bound between the two formulas, and what is beyond."""
    rng = np.random.default_rng(0)
    edges = [np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0, np.nan, -np.nan]
    half = POINTS // 4
    x = np.concatenate([
        np.geomspace(1e-30, 20, half),
        -np.geomspace(1e-30, 20, half),
        rng.uniform(-1, 1, half),
        rng.uniform(-10, 10, half - len(edges)),
        edges,
    ]).astype(np.float32)  # fmt: skip
    found = call(module, f"tanh{lanes}", x)
    assert found[-8:-2].tolist() == [1.0, -1.0, 1.0, -1.0, 0.0, -0.0]
    assert np.isnan(found[-2:]).all()
    x, found = x[: -len(edges)].astype(np.float64), found[: -len(edges)]
    wanted = np.tanh(x)
    error = np.abs(found - wanted) / np.spacing(np.abs(wanted).astype(np.float32))
    assert error.max() <= 2.0, (error.max(), x[error.argmax()])
