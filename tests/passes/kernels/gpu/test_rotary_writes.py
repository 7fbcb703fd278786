"""Kernels that rotate queries and keys, and write keys and values to pages, against numpy.

Numbers are such that sums are exact, so every kernel gives the same bits. The kernels of gfx950 and
gfx942 run on the simulator, compiled as users do, and that of this CPU runs on it. That of gfx1201,
in waves of 32, is run by an interpreter of MLIR (lane_interpreter.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

import mxc
from mxc.artifact.code_objects.metadata import Resources
from mxc.artifact.pages import stored_positions
from mxc.compiler.models.blocks.primitives import parts_of
from mxc.dialects.context import new_context
from mxc.dialects.rotary_writes import rotary_write
from mxc.formats.reference import quantize
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels

Array = npt.NDArray[Any]

#: Index of the pool among the operands.
_POOL = 6

SIMULATED = ["gfx950", "gfx942"]
NAMED = 'mxc.operation = "rotary_write", '
each_target = pytest.mark.parametrize("target", [*SIMULATED, "gfx1201", "cpu"])
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
#: Number of entries of a page, the entry that holds keys, and number of pages.
ENTRIES, ENTRY, PAGES = 6, 2, 5


@dataclass(frozen=True)
class Case:
    """Numbers of query heads, key/value heads and their elements; element type or format of pages,
    and their positions.

    `pairs`: rotary pairs of a head; 0: half of its elements. `distance`: from the real part of a
    pair to the imaginary part, 1 where they alternate; 0: `pairs`. `scaled`: whether keys and
    values have scales.
    """

    queries: int
    heads: int
    depth: int
    element: str
    positions: int
    pairs: int = 0
    distance: int = 0
    scaled: tuple[bool, bool] = (False, False)

    @property
    def rotated(self) -> tuple[int, int]:
        """Number of rotary pairs, and the distance of their parts."""
        pairs = self.pairs or self.depth // 2
        return pairs, self.distance or pairs

    @property
    def packed(self) -> bool:
        """Whether pages are packed, as bytes."""
        return self.element not in TYPES

    @property
    def pool(self) -> tuple[int, ...]:
        """The shape of a page."""
        stored = stored_positions(self.element if self.packed else None, self.positions)
        return ENTRIES, stored, self.heads, self.depth


#: Rows with fewer runs of elements than a workgroup has lanes, and with more; every layout of
#: rotary pairs; every format of pages.
CASES = [
    Case(4, 2, 32, "bf16", 8),
    Case(64, 8, 64, "bf16", 64),
    Case(2, 1, 96, "f32", 16),
    Case(3, 3, 32, "f16", 4),
    Case(2, 2, 64, "bf16", 8, pairs=16),
    Case(2, 1, 64, "bf16", 8, distance=1),
    Case(3, 1, 96, "f32", 8, pairs=32, distance=1),
    Case(2, 2, 128, "bf16", 8, pairs=16, distance=64),
    Case(4, 2, 64, "mxint8", 32),
    Case(2, 3, 128, "mxfp8e4m3", 64, pairs=32),
    Case(2, 1, 64, "mxint8", 64, distance=1),
    Case(2, 2, 32, "mxint8", 32),
    Case(1, 1, 96, "mxfp8e4m3", 32, pairs=24, distance=48),
    Case(4, 2, 64, "fp8e4m3", 8, scaled=(True, True)),
    Case(1, 1, 128, "fp8e4m3", 8, pairs=32, distance=64, scaled=(False, True)),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)

Call = Callable[[str, Case, list[Array]], list[Array]]


def program(cases: list[Case], *, whole: bool = False) -> str:
    """Return a program with a function for each case. `whole`: whether queries, keys and values are
    columns of one operand."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        size, f32 = ir.ShapedType.get_dynamic_size(), ir.F32Type.get()
        with ir.InsertionPoint(module.body):
            for number, case in enumerate(cases):
                parts = [heads * case.depth for heads in (case.queries, case.heads, case.heads)]
                given = [sum(parts)] if whole else parts
                widths = given + [case.rotated[0]] * 2
                kinds = [ir.RankedTensorType.get([size, width], f32) for width in widths]
                kinds.append(ir.RankedTensorType.get([size], ir.IntegerType.get_signless(32)))
                element = ir.Type.parse("i8" if case.packed else case.element)
                kinds.append(ir.RankedTensorType.get([size, *case.pool], element))
                kinds += [ir.RankedTensorType.get([case.heads], f32)] * sum(case.scaled)

                def body(
                    *given: ir.Value, case: Case = case, parts: list[int] = parts
                ) -> tuple[ir.Value, ir.Value]:
                    count = len(given) - sum(case.scaled)
                    (*x, cos, sin, slots, pool), scales = given[:count], list(given[count:])
                    q, k, v = parts_of(x[0], parts) if whole else x
                    keys, values = (scales.pop(0) if has else None for has in case.scaled)
                    return rotary_write(
                        q, k, v, (cos, sin), slots, pool, ENTRY,
                        distance=case.rotated[1],
                        format=case.element if case.packed else None,
                        scales=(keys, values),
                    )  # fmt: skip

                func.FuncOp.from_py_func(*kinds, name=f"write_{number}")(body)
        return str(module)


@pytest.fixture(scope="module")
def call(watched: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Return a function that computes a case on a target: the rotated queries, and the pool."""
    source = program(CASES)
    made = {target: watched(source, target=target) for target in SIMULATED}
    folder: Path = tmp_path_factory.mktemp("rotary")
    here = {}
    # Without its name the operation is an ordinary function, which IREE compiles.
    for name, text in (("cpu", source), ("reference", source.replace(NAMED, ""))):
        (folder / f"{name}.mlir").write_text(text)
        mxc.compile(folder / f"{name}.mlir", output=folder / f"{name}.mxc", listing=False)
        here[name] = mxc.load(folder / f"{name}.mxc")

    def compute(target: str, case: Case, given: list[Array]) -> list[Array]:
        name, copies = f"write_{CASES.index(case)}", [each.copy() for each in given]
        if target in here:
            found = [np.asarray(each) for each in here[target].call(name, *copies)]
        elif target in SIMULATED:
            found = made[target].call(name, *copies)
            assert made[target].kernel.name.startswith("mxc_rotary_write_")
        else:
            found = interpreted(target, case, copies)
        wanted = (given[0], given[_POOL])
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
    """Interpret the kernel of a case, and return the rotated queries and the pool.

    Asserts that the kernel also sets a counter for each query to zero.
    """
    rotated = np.full_like(given[0], np.nan)
    zeros = np.full((len(rotated), case.queries), -1, np.int32)
    with new_context():
        module = with_kernels(program([case]), target)
        flat = [each.reshape(-1).view(np.uint8) for each in (*given, rotated, zeros)]
        lane_interpreter.run(module, flat, (ENTRY, len(rotated), PAGES))
    assert not zeros.any()
    return [rotated, given[_POOL]]


def draw(case: Case, rows: int) -> list[Array]:
    """Draw operands: queries and keys are small integers, values are any floats, some large."""
    rng = np.random.default_rng(rows)
    pairs, _ = case.rotated

    def integers(width: int, most: int) -> Array:
        return rng.integers(-most, most + 1, (rows, width)).astype(np.float32)

    values = rng.normal(size=(rows, case.heads * case.depth)).astype(np.float32)
    values *= 2.0 ** rng.integers(-9, 9, values.shape)
    slots = rng.permutation(PAGES * case.positions)[:rows].astype(np.int32)
    pool: Array = rng.normal(size=(PAGES, *case.pool))
    pool = rng.integers(-128, 128, pool.shape) if case.packed else pool
    pool = pool.astype(TYPES.get(case.element, np.int8))
    tables = [integers(pairs, 3) for _ in range(2)]
    scales = [rng.uniform(0.01, 3, case.heads).astype(np.float32) for has in case.scaled if has]
    queries, keys = (integers(heads * case.depth, 9) for heads in (case.queries, case.heads))
    return [queries, keys, values, *tables, slots, pool, *scales]


def rotated(x: Array, cos: Array, sin: Array, case: Case) -> Array:
    """Rotate x [T, heads * D], with the pairs of each head as complex numbers."""
    pairs, distance = case.rotated
    first = np.arange(pairs) * (2 if distance == 1 else 1)
    heads = x.reshape(len(x), -1, case.depth).copy()
    numbers = heads[:, :, first] + 1j * heads[:, :, first + distance]
    numbers *= (cos + 1j * sin)[:, None]
    heads[:, :, first], heads[:, :, first + distance] = numbers.real, numbers.imag
    return heads.reshape(x.shape)


def stored(case: Case, given: list[Array]) -> Array:
    """Return the pool after keys and values are written."""
    _, keys, values, cos, sin, slots, pool, *scales = given
    page, at = slots // case.positions, slots % case.positions
    wanted, left = pool.copy(), list(scales)
    for part, rows in enumerate((rotated(keys, cos, sin, case), values)):
        rows = rows.reshape(len(slots), case.heads, case.depth)
        scale = left.pop(0)[:, None] if case.scaled[part] else 1
        entry = wanted[:, ENTRY + part]
        if not case.packed:
            entry[page, at] = rows.astype(pool.dtype)
        elif case.element == "fp8e4m3":
            codes = np.clip(rows / np.float32(scale), -448, 448).astype(ml_dtypes.float8_e4m3fn)
            entry[page, at] = codes.view(np.int8)
        else:
            blocks = quantize(rows, case.element, recipe="rceil")
            entry[page, at] = blocks.elements.view(np.int8)
            # Scales [N, V, D / 32, B] follow the positions of the entry.
            places = np.ascontiguousarray(entry[:, case.positions :])
            places = places.reshape(len(pool), case.heads, case.depth // 32, case.positions)
            places[page, :, :, at] = blocks.scales.view(np.int8)
            entry[:, case.positions :] = places.reshape(entry[:, case.positions :].shape)
    return wanted


@each_target
@each_case
@pytest.mark.parametrize("rows", [1, 13])
def test_rows_are_rotated_and_written(target: str, case: Case, rows: int, call: Call) -> None:
    given = draw(case, rows)
    queries, _, _, cos, sin, *_ = given
    found, written = call(target, case, given)
    np.testing.assert_array_equal(found, rotated(queries, cos, sin, case))
    wanted = stored(case, given)
    same = np.uint8 if case.packed else wanted.dtype
    np.testing.assert_array_equal(written.view(same), wanted.view(same))


@pytest.mark.parametrize("element", ["mxint8", "mxfp8e4m3", "fp8e4m3"])
def test_values_that_are_no_numbers(element: str, call: Call) -> None:
    """Infinity, NaN and subnormal numbers in values, as packed pages have them."""
    case = next(each for each in CASES if each.element == element)
    given = draw(case, 13)
    values = given[2]
    values[0, 3], values[1, 5], values[2, 7] = np.inf, np.nan, -np.inf
    values[3, :], values[4, :] = 1e-40, 0
    _, written = call("cpu", case, given)
    for target in SIMULATED:
        np.testing.assert_array_equal(call(target, case, given)[1], written, target)
    given[2][:3] = 1.0
    rows = given[5][:3]
    wanted = stored(case, given)
    page, at = rows // case.positions, rows % case.positions
    for pool in (written, wanted):
        pool[page, ENTRY + 1, at] = 0
    places = slice(None, case.positions)
    np.testing.assert_array_equal(written[:, :, places], wanted[:, :, places])


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
        mxc.compile(tmp_path / "program.mlir", output=tmp_path / "program.mxc", listing=False)
        model = mxc.load(tmp_path / "program.mxc")
        found = [np.asarray(each) for each in model.call("write_0", *given)]
    else:
        made = watched(source, target=target)
        found = made.call("write_0", *given)
        assert made.kernel.name.startswith("mxc_rotary_write_")
    for each, like in zip(found, wanted, strict=True):
        same = np.ascontiguousarray(each).view(np.uint8).reshape(-1)
        np.testing.assert_array_equal(same, np.ascontiguousarray(like).view(np.uint8).reshape(-1))


#: Heads of published models. In heads of 64, all blocks of 32 have the same cosines and sines,
#: which are in scalar registers.
WIDE = [
    Case(64, 8, 64, "mxint8", 64),
    Case(64, 8, 64, "mxfp8e4m3", 64),
    Case(64, 8, 64, "fp8e4m3", 64, scaled=(True, True)),
    Case(32, 4, 256, "mxint8", 64, pairs=32),
]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("target", [*SIMULATED, "gfx1201", "gfx1151", "gfx1250"])
def test_no_kernel_spills(
    target: str, whole: bool, resources: Callable[[str, str], dict[str, Resources]]
) -> None:
    found = resources(program(WIDE, whole=whole), target)
    assert len(found) == len(WIDE)
    assert not [name for name, use in found.items() if use.spills or use.scratch_bytes]


#: Cases that IREE computes: real parts are not a multiple of 4 elements, or 8 for packed pages.
LEFT = [Case(2, 1, 20, "bf16", 4), Case(2, 1, 64, "mxint8", 32, pairs=12)]


@pytest.mark.parametrize("case", LEFT, ids=str)
def test_odd_runs_are_left_to_the_reference(case: Case, tmp_path: Path) -> None:
    (tmp_path / "program.mlir").write_text(program([case]))
    mxc.compile(tmp_path / "program.mlir", output=tmp_path / "program.mxc", listing=False)
    given = draw(case, 3)
    queries, _, _, cos, sin, *_ = given
    model = mxc.load(tmp_path / "program.mxc")
    found, written = model.call("write_0", *[each.copy() for each in given])
    np.testing.assert_array_equal(np.asarray(found), rotated(queries, cos, sin, case))
    wanted = stored(case, given)
    np.testing.assert_array_equal(np.asarray(written).view(wanted.dtype), wanted)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_computes_the_same(case: Case, call: Call) -> None:
    """What IREE makes of the body of the named operation, in one program for all cases."""
    given = draw(case, 7)
    queries, _, _, cos, sin, *_ = given
    found, written = call("reference", case, given)
    np.testing.assert_array_equal(found, rotated(queries, cos, sin, case))
    np.testing.assert_array_equal(written.view(np.uint8), stored(case, given).view(np.uint8))
