"""GPU kernels that find the largest elements of rows, against a stable sort of numpy.

The kernels of gfx950 and gfx942, in waves of 64, run on the simulator, compiled as users do. Those
of other GPUs, in waves of 32, are run by an interpreter of MLIR (lane_interpreter.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.context import new_context
from mxc.dialects.linalg_ext import top_k
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels

Array = npt.NDArray[Any]

#: Number of columns, and how many are chosen. Columns are fewer than the lanes of a wave, as many,
#: or more, with a last wave that is not full; all of a row are chosen, or one.
CASES = [(5, 5), (40, 8), (64, 6), (130, 8), (384, 1)]
each_case = pytest.mark.parametrize(("columns", "count"), CASES)
SIMULATED = ["gfx950", "gfx942"]
TARGETS = [*SIMULATED, "gfx1201", "gfx1151", "gfx1250"]
each_target = pytest.mark.parametrize("target", TARGETS)

Call = Callable[..., tuple[Array, Array]]


def program(cases: list[tuple[int, int]], rows: int | None = None) -> str:
    """Return a program with a function for each case; `rows`: None if it comes with the call."""
    size = ir.ShapedType.get_dynamic_size() if rows is None else rows
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for columns, count in cases:
                kind = ir.RankedTensorType.get([size, columns], ir.F32Type.get())

                def body(x: ir.Value, count: int = count) -> tuple[ir.Value, ir.Value]:
                    return top_k(x, count)

                func.FuncOp.from_py_func(kind, name=f"top_{count}_of_{columns}")(body)
        return str(module)


@pytest.fixture(scope="module")
def call(watched: Callable[..., Any]) -> Call:
    """Return a function that computes a case on a target: values and indices."""
    made = {target: watched(program(CASES), target=target) for target in SIMULATED}

    def compute(target: str, x: Array, count: int) -> tuple[Array, Array]:
        if target not in SIMULATED:
            return interpreted(target, x, count)
        found = made[target].call(f"top_{count}_of_{x.shape[1]}", x)
        values, indices = (
            each.view(kind).reshape(-1, count)
            for each, kind in zip(found, (np.float32, np.int32), strict=True)
        )
        assert made[target].kernel.name.startswith("mxc_top_")
        return values, indices

    return compute


def interpreted(target: str, x: Array, count: int) -> tuple[Array, Array]:
    """Interpret the kernel of a case, and return values and indices."""
    values = np.full((len(x), count), np.nan, np.float32)
    indices = np.full((len(x), count), -1, np.int32)
    with new_context():
        module = with_kernels(program([(x.shape[1], count)]), target)
        flat = [each.reshape(-1).view(np.uint8) for each in (x, values, indices)]
        lane_interpreter.run(module, flat, (len(x),))
    return values, indices


def check(x: Array, values: Array, indices: Array) -> None:
    """Assert that results are right: the first of equal elements comes first; in place of NaN and
    -inf are the value -inf and the index 0."""
    count = values.shape[1]
    known = np.where(np.isnan(x), -np.inf, x)
    order = np.argsort(-known, axis=1, kind="stable")[:, :count]
    wanted = np.take_along_axis(known, order, axis=1)
    np.testing.assert_array_equal(values, wanted)
    np.testing.assert_array_equal(indices, np.where(wanted == -np.inf, 0, order))


@each_target
@each_case
def test_values_that_differ(target: str, columns: int, count: int, call: Call) -> None:
    x = np.random.default_rng(1).normal(size=(7, columns)).astype(np.float32)
    check(x, *call(target, x, count))


@each_target
@each_case
def test_equal_values_nan_and_infinities(target: str, columns: int, count: int, call: Call) -> None:
    rng = np.random.default_rng(2)
    few = np.array([-0.0, 0.0, 1.0, 1e-40, -2.0, np.inf, -np.inf, np.nan], np.float32)
    x = rng.choice(few, size=(6, columns))
    x[1] = np.nan
    x[2] = -np.inf
    x[3] = 3.0
    x[4, :-1] = -np.inf
    check(x, *call(target, x, count))


def test_rows_that_are_known(watched: Callable[..., Any]) -> None:
    x = np.random.default_rng(3).normal(size=(3, 32)).astype(np.float32)
    made = watched(program([(32, 4)], rows=3))
    values, indices = made.call("top_4_of_32", x)
    check(x, values.view(np.float32).reshape(3, 4), indices.view(np.int32).reshape(3, 4))
    assert made.kernel.name == "mxc_top_4_of_3x32"


def test_what_no_kernel_takes_is_computed(watched: Callable[..., Any]) -> None:
    """By IREE: more columns than a workgroup has lanes."""
    made = watched(program([(1030, 3)]))
    x = np.random.default_rng(4).normal(size=(2, 1030)).astype(np.float32)
    values, indices = made.model.call("top_3_of_1030", x)
    check(x, np.asarray(values), np.asarray(indices))
    assert not any(kernel.name.startswith("mxc_") for kernel, _ in made.seen)
