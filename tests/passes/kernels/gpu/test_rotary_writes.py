"""Queries and keys that are turned, keys and values that are written to pages: against numpy.

Numbers are such that sums are exact, so every kernel has the same bits. Those of gfx950 and gfx942
run on the simulator, as users compile them, that of this CPU as it is; that of gfx1201, in waves of
32, is run by an interpreter of MLIR (lane_interpreter.py).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lane_interpreter
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

import mxc
from mxc.compiler.models.blocks.primitives import parts_of
from mxc.compiler.pipelines import pipeline
from mxc.dialects.context import new_context
from mxc.dialects.rotary_writes import rotary_write
from mxc.passes import base

Array = npt.NDArray[Any]

#: Query heads, key/value heads, their elements, type of the pages, and their positions: fewer
#: pieces than lanes, and more.
CASES = [
    (4, 2, 32, "bf16", 8),
    (64, 8, 64, "bf16", 64),
    (2, 1, 96, "f32", 16),
    (3, 3, 32, "f16", 4),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
SIMULATED = ["gfx950", "gfx942"]
each_target = pytest.mark.parametrize("target", [*SIMULATED, "gfx1201", "cpu"])
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
#: Entries of a page, of which keys are in this one; pages.
ENTRIES, ENTRY, PAGES = 6, 2, 5

Case = tuple[int, int, int, str, int]
Call = Callable[[str, Case, list[Array]], list[Array]]


def program(cases: list[Case], *, whole: bool = False) -> str:
    """A function for each case. `whole`: queries, keys and values are columns of one operand."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        size, f32 = ir.ShapedType.get_dynamic_size(), ir.F32Type.get()
        with ir.InsertionPoint(module.body):
            for number, (queries, heads, depth, element, positions) in enumerate(cases):
                widths = [queries * depth, heads * depth, heads * depth, depth // 2, depth // 2]
                parts, tables = widths[:3], widths[3:]
                given = [sum(parts)] if whole else parts
                kinds = [ir.RankedTensorType.get([size, width], f32) for width in given + tables]
                kinds.append(ir.RankedTensorType.get([size], ir.IntegerType.get_signless(32)))
                shape = [size, ENTRIES, positions, heads, depth]
                kinds.append(ir.RankedTensorType.get(shape, ir.Type.parse(element)))

                def body(*given: ir.Value, parts: list[int] = parts) -> tuple[ir.Value, ir.Value]:
                    *x, cos, sin, slots, pool = given
                    q, k, v = parts_of(x[0], parts) if whole else x
                    return rotary_write(q, k, v, (cos, sin), slots, pool, ENTRY)

                func.FuncOp.from_py_func(*kinds, name=f"write_{number}")(body)
        return str(module)


@pytest.fixture(scope="module")
def call(watched: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Compute a case on a target: the turned queries, and the pool."""
    source = program(CASES)
    made = {target: watched(source, target=target) for target in SIMULATED}
    folder: Path = tmp_path_factory.mktemp("rotary")
    (folder / "program.mlir").write_text(source)
    mxc.compile(folder / "program.mlir", target="cpu", output=folder / "program.mxc")
    here = mxc.load(folder / "program.mxc")

    def compute(target: str, case: Case, given: list[Array]) -> list[Array]:
        name, copies = f"write_{CASES.index(case)}", [each.copy() for each in given]
        if target == "cpu":
            found = [np.asarray(each) for each in here.call(name, *copies)]
        elif target in SIMULATED:
            found = made[target].call(name, *copies)
            assert made[target].kernel.name.startswith("mxc_rotary_write_")
        else:
            found = interpreted(target, case, copies)
        wanted = (given[0], given[-1])
        return [
            np.ascontiguousarray(each)
            .view(np.uint8)
            .reshape(-1)
            .view(like.dtype)
            .reshape(like.shape)
            for each, like in zip(found, wanted, strict=True)
        ]

    return compute


def interpreted(target: str, case: Case, given: list[Array]) -> list[Array]:
    """What the body of the kernel computes, beside a zero for each query."""
    turned = np.full_like(given[0], np.nan)
    zeros = np.full((len(turned), case[0]), -1, np.int32)
    with new_context():
        module = ir.Module.parse(program([case]))
        for stage in pipeline(target).stages:
            base.run(stage.passes, module)
            if stage.name == "kernels":
                break
        flat = [each.reshape(-1).view(np.uint8) for each in (*given, turned, zeros)]
        lane_interpreter.run(module, flat, (ENTRY, len(turned), PAGES))
    assert not zeros.any()
    return [turned, given[-1]]


def draw(case: Case, rows: int) -> list[Array]:
    """Operands: what is turned is small integers, values are any floats."""
    queries, heads, depth, element, positions = case
    rng = np.random.default_rng(rows)

    def integers(width: int, most: int) -> Array:
        return rng.integers(-most, most + 1, (rows, width)).astype(np.float32)

    values = rng.normal(size=(rows, heads * depth)).astype(np.float32)
    slots = rng.permutation(PAGES * positions)[:rows].astype(np.int32)
    pool = rng.normal(size=(PAGES, ENTRIES, positions, heads, depth)).astype(TYPES[element])
    tables = [integers(depth // 2, 3) for _ in range(2)]
    return [integers(queries * depth, 9), integers(heads * depth, 9), values, *tables, slots, pool]


def turned(x: Array, cos: Array, sin: Array, depth: int) -> Array:
    """x [T, heads * D], head by head, as complex numbers."""
    halves = x.reshape(len(x), -1, 2, depth // 2)
    numbers = (halves[:, :, 0] + 1j * halves[:, :, 1]) * (cos + 1j * sin)[:, None]
    return np.stack([numbers.real, numbers.imag], axis=2).reshape(x.shape)


@each_target
@each_case
@pytest.mark.parametrize("rows", [1, 13])
def test_rows_are_turned_and_written(target: str, case: Case, rows: int, call: Call) -> None:
    given = draw(case, rows)
    queries, keys, values, cos, sin, slots, pool = given
    _, heads, depth, _, positions = case
    found, written = call(target, case, given)
    np.testing.assert_array_equal(found, turned(queries, cos, sin, depth))
    page, at = slots // positions, slots % positions
    wanted = pool.copy()
    wanted[page, ENTRY, at] = turned(keys, cos, sin, depth).reshape(rows, heads, depth)
    wanted[page, ENTRY + 1, at] = values.reshape(rows, heads, depth).astype(pool.dtype)
    np.testing.assert_array_equal(written, wanted)


@pytest.mark.parametrize("target", [*SIMULATED, "cpu"])
def test_columns_of_one_tensor_are_read_where_they_lie(
    target: str, watched: Callable[..., Any], tmp_path: Path, call: Call
) -> None:
    """One dispatch: nothing is copied before."""
    case = CASES[2]
    queries, keys, values, *others = draw(case, 3)
    wanted = call(target, case, [queries, keys, values, *others])
    given = [np.concatenate([queries, keys, values], axis=1), *(each.copy() for each in others)]
    source = program([case], whole=True)
    if target == "cpu":
        (tmp_path / "program.mlir").write_text(source)
        mxc.compile(tmp_path / "program.mlir", target="cpu", output=tmp_path / "program.mxc")
        model = mxc.load(tmp_path / "program.mxc")
        found = [np.asarray(each) for each in model.call("write_0", *given)]
    else:
        made = watched(source, target=target)
        found = made.call("write_0", *given)
        assert made.kernel.name.startswith("mxc_rotary_write_")
    for each, like in zip(found, wanted, strict=True):
        same = np.ascontiguousarray(each).view(np.uint8).reshape(-1)
        np.testing.assert_array_equal(same, np.ascontiguousarray(like).view(np.uint8).reshape(-1))


def test_odd_halves_are_left_to_the_reference(tmp_path: Path) -> None:
    case = (2, 1, 20, "bf16", 4)
    (tmp_path / "program.mlir").write_text(program([case]))
    mxc.compile(tmp_path / "program.mlir", target="cpu", output=tmp_path / "program.mxc")
    given = draw(case, 3)
    queries, keys, values, cos, sin, slots, pool = given
    model = mxc.load(tmp_path / "program.mxc")
    found, written = model.call("write_0", *[each.copy() for each in given])
    np.testing.assert_array_equal(np.asarray(found), turned(queries, cos, sin, 20))
    wanted = pool.copy()
    wanted[slots // 4, ENTRY, slots % 4] = turned(keys, cos, sin, 20).reshape(3, 1, 20)
    wanted[slots // 4, ENTRY + 1, slots % 4] = values.reshape(3, 1, 20).astype(pool.dtype)
    np.testing.assert_array_equal(np.asarray(written).view(pool.dtype), wanted)
