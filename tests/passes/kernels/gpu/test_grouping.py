"""GPU kernels that sort pairs of a row and an expert by expert, against a stable sort of numpy.

The kernels of gfx950 and gfx942, in waves of 64, run on the simulator, compiled as users do. That
of gfx1201, in waves of 32, is run by an interpreter of MLIR (lane_interpreter.py).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.context import new_context
from mxc.dialects.expert_groups import group_by_expert, rows_of_groups
from mxc.dialects.sizes import size_of
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.int32]

#: Numbers of experts and of slots of a group: fewer experts than lanes of a wave, more than the
#: fewest lanes of a workgroup (256), and odd numbers.
CASES = [(5, 4), (32, 16), (300, 16), (7, 3)]
each_case = pytest.mark.parametrize(("experts", "rows"), CASES)
SIMULATED = ["gfx950", "gfx942"]
each_target = pytest.mark.parametrize("target", [*SIMULATED, "gfx1201"])

Call = Callable[[str, Integers, int, int], list[Integers]]


class Copies(NamedTuple):
    """A case in which the kernel also copies rows of `width` elements to their slots."""

    experts: int
    rows: int
    width: int
    element: str


#: Rows with a piece for each lane, with more pieces than lanes load at once, and with fewer.
COPIES = [Copies(32, 16, 2880, "bf16"), Copies(5, 4, 20, "f32"), Copies(300, 16, 8000, "i8")]
TYPES = {"bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8}


def program(cases: list[tuple[int, int]]) -> str:
    """Return a program with a function for each case."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            size = ir.ShapedType.get_dynamic_size()
            kind = ir.RankedTensorType.get([size], ir.IntegerType.get_signless(32))
            for experts, rows in cases:

                def body(
                    chosen: ir.Value, experts: int = experts, rows: int = rows
                ) -> list[ir.Value]:
                    return group_by_expert(chosen, experts, rows)

                func.FuncOp.from_py_func(kind, name=f"groups_of_{rows}_of_{experts}")(body)
        return str(module)


@pytest.fixture(scope="module")
def call(watched: Callable[..., Any]) -> Call:
    """Return a function that computes a case on a target."""
    made = {target: watched(program(CASES), target=target) for target in SIMULATED}

    def compute(target: str, chosen: Integers, experts: int, rows: int) -> list[Integers]:
        if target not in SIMULATED:
            return interpreted(target, chosen, experts, rows)
        found = made[target].call(f"groups_of_{rows}_of_{experts}", chosen)
        assert made[target].kernel.name == f"mxc_groups_of_{rows}_D_of_{experts}"
        return [each.view(np.int32).reshape(-1) for each in found]

    return compute


@pytest.fixture(scope="module")
def copy(watched: Callable[..., Any]) -> Callable[[str, Copies, Integers, Array], list[Array]]:
    """Return a function that computes a case with copies on a target: the results of `call`, then
    the rows in their slots."""
    made = {target: watched(program_of_copies(COPIES), target=target) for target in SIMULATED}

    def compute(target: str, case: Copies, chosen: Integers, x: Array) -> list[Array]:
        if target in SIMULATED:
            found = made[target].call(f"copies_{COPIES.index(case)}", chosen, x)
            name = f"mxc_groups_of_{case.rows}_D_of_{case.experts}_with_{case.width}_{case.element}"
            assert made[target].kernel.name == name
            *integers, rows = (each.reshape(-1).view(np.uint8) for each in found)
        else:
            groups = count_of_groups(len(chosen), case.experts, case.rows)
            sizes = (groups, groups * case.rows, len(chosen))
            integers = [np.full(size, -9, np.int32).view(np.uint8) for size in sizes]
            rows = np.zeros(sizes[1] * x[0].nbytes, np.uint8)
            flat = [each.reshape(-1).view(np.uint8) for each in (chosen, x)]
            run_here(target, program_of_copies([case]), [*flat, *integers, rows], chosen, len(x))
        return [*(each.view(np.int32) for each in integers), rows.view(x.dtype)]

    return compute


def run_here(target: str, source: str, flat: list[Array], chosen: Integers, tokens: int) -> None:
    """Interpret the kernel of a program of one case on buffers `flat`, in place."""
    groups = len(flat[2]) // 4
    with new_context():
        module = with_kernels(source, target)
        lane_interpreter.run(module, flat, (len(chosen), groups, tokens))


def program_of_copies(cases: list[Copies]) -> str:
    """Return a program with a function for each case."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        size = ir.ShapedType.get_dynamic_size()
        with ir.InsertionPoint(module.body):
            for number, case in enumerate(cases):
                chosen = ir.RankedTensorType.get([size], ir.IntegerType.get_signless(32))
                x = ir.RankedTensorType.get([size, case.width], ir.Type.parse(case.element))

                def body(chosen: ir.Value, x: ir.Value, case: Copies = case) -> list[ir.Value]:
                    return group_by_expert(chosen, case.experts, case.rows, x)

                func.FuncOp.from_py_func(chosen, x, name=f"copies_{number}")(body)
        return str(module)


def count_of_groups(pairs: int, experts: int, rows: int) -> int:
    """Return the largest number of groups that `pairs` pairs may need."""
    return (pairs + min(pairs, experts) * (rows - 1)) // rows


def interpreted(target: str, chosen: Integers, experts: int, rows: int) -> list[Integers]:
    """Interpret the kernel of a case, and return its results."""
    groups = count_of_groups(len(chosen), experts, rows)
    made = [np.full(size, -9, np.int32) for size in (groups, groups * rows, len(chosen))]
    with new_context():
        module = with_kernels(program([(experts, rows)]), target)
        flat = [each.view(np.uint8) for each in (chosen, *made)]
        lane_interpreter.run(module, flat, (len(chosen), groups))
    return made


def check(chosen: Integers, experts: int, rows: int, found: list[Integers]) -> None:
    """Assert that the pairs of an expert are adjacent, in their order, and that unused slots of an
    expert and unused groups come last."""
    owners, pairs, slots = found
    groups = count_of_groups(len(chosen), experts, rows)
    wanted_owners = np.full(groups, experts)
    wanted_pairs, wanted_slots = np.zeros(groups * rows), np.zeros(len(chosen))
    group = 0
    for expert in range(experts):
        (own,) = np.nonzero(chosen == expert)
        places = group * rows + np.arange(len(own))
        wanted_pairs[places], wanted_slots[own] = own, places
        behind = group + -(-len(own) // rows)
        wanted_owners[group:behind] = expert
        group = behind
    np.testing.assert_array_equal(owners, wanted_owners)
    np.testing.assert_array_equal(pairs, wanted_pairs)
    np.testing.assert_array_equal(slots, wanted_slots)


@pytest.mark.parametrize("target", SIMULATED)
@each_case
def test_more_pairs_than_lanes(target: str, experts: int, rows: int, call: Call) -> None:
    """Two rounds of all lanes, of which there are at least 256, and a part of one; or one round."""
    pairs = 700 if (experts, rows) == (32, 16) else max(experts, 256) + 30
    chosen = np.random.default_rng(7).integers(0, experts, pairs, dtype=np.int32)
    check(chosen, experts, rows, call(target, chosen, experts, rows))


@each_target
@each_case
@pytest.mark.parametrize("pairs", [1, 4, 30])
def test_pairs_of_any_experts(target: str, experts: int, rows: int, pairs: int, call: Call) -> None:
    chosen = np.random.default_rng(pairs).integers(0, experts, pairs, dtype=np.int32)
    check(chosen, experts, rows, call(target, chosen, experts, rows))


@each_target
@each_case
def test_pairs_of_one_expert(target: str, experts: int, rows: int, call: Call) -> None:
    chosen = np.full(33, experts - 2, np.int32)
    check(chosen, experts, rows, call(target, chosen, experts, rows))


@each_target
@pytest.mark.parametrize("case", COPIES, ids=str)
@pytest.mark.parametrize("tokens", [1, 13])
def test_rows_are_copied_to_slots(
    target: str, case: Copies, tokens: int, copy: Callable[..., list[Array]]
) -> None:
    rng = np.random.default_rng(tokens)
    chosen = rng.integers(0, case.experts, 4 * tokens, dtype=np.int32)
    x = rng.integers(-99, 99, (tokens, case.width)).astype(TYPES[case.element])
    *integers, rows = copy(target, case, chosen, x)
    check(chosen, case.experts, case.rows, integers)
    np.testing.assert_array_equal(rows.reshape(-1, case.width), x[integers[1] // 4])


#: Pairs of an expert, and the rows of a group from so many pairs on: not the numbers of any GPU.
GROUP_ROWS = ((0, 16), (16, 48), (40, 128))


@pytest.mark.parametrize("target", SIMULATED)
@pytest.mark.parametrize(("pairs", "rows"), [(1, 16), (78, 16), (80, 48), (300, 128)])
def test_rows_of_groups_that_come_with_the_call(
    target: str, pairs: int, rows: int, watched: Callable[..., Any]
) -> None:
    """More of them where an expert has many pairs."""
    chosen = np.random.default_rng(pairs).integers(0, 5, pairs, dtype=np.int32)
    x = np.random.default_rng(1).integers(-99, 99, (pairs // 2, 8)).astype(np.float32)
    made = watched(program_of_any_rows(5), target=target)
    found = made.call("copies", chosen, x) if x.size else made.call("groups", chosen)
    integers = [each.view(np.int32).reshape(-1) for each in found[:3]]
    check(chosen, 5, rows, integers)
    assert made.kernel.name.startswith("mxc_groups_of_D_D_of_5")
    for copies in found[3:]:
        np.testing.assert_array_equal(copies.view(np.float32).reshape(-1, 8), x[integers[1] // 2])


def program_of_any_rows(experts: int) -> str:
    """Return a program with two functions: groups alone, and groups with copies of rows that have
    two pairs each."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        size = ir.ShapedType.get_dynamic_size()
        kind = ir.RankedTensorType.get([size], ir.IntegerType.get_signless(32))
        rows = ir.RankedTensorType.get([size, 8], ir.F32Type.get())

        def body(chosen: ir.Value, x: ir.Value | None = None) -> list[ir.Value]:
            count = rows_of_groups(size_of(chosen, 0), experts, GROUP_ROWS)
            return group_by_expert(chosen, experts, count, x, most_rows=GROUP_ROWS[-1][1])

        with ir.InsertionPoint(module.body):
            func.FuncOp.from_py_func(kind, name="groups")(lambda chosen: body(chosen))
            func.FuncOp.from_py_func(kind, rows, name="copies")(lambda chosen, x: body(chosen, x))
        return str(module)


def test_more_experts_than_lanes_are_sorted_by_the_reference(watched: Callable[..., Any]) -> None:
    made = watched(program([(1030, 16)]))
    chosen = np.array([1029, 3, 1029, 0], np.int32)
    found = made.model.call("groups_of_16_of_1030", chosen)
    check(chosen, 1030, 16, [np.asarray(each) for each in found])
    assert not any(kernel.name.startswith("mxc_") for kernel, _ in made.seen)
