"""GPU kernels of recurrences, against float64, and against themselves with runs cut into pieces.

The kernels of gfx950 and gfx942, in waves of 64, run on the simulator, compiled as users do. Those
of other GPUs, in waves of 32, are run by an interpreter of MLIR (lane_interpreter.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mxc.dialects.context import new_context
from mxc.passes.kernels.gpu.recurrences.delta_rule import GpuDeltaRule
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels
from tests.passes.recurrence_cases import (
    Array,
    Case,
    Convolution,
    Given,
    Rule,
    check,
    check_cuts,
    draw,
    program,
)

#: One workgroup for a head, and several; workgroups of two waves and of four; vectors of one, two
#: and four elements; a decay for each row of a state; columns that fill workgroups or do not.
CASES: list[Case] = [
    Rule(2, 4, 16, 32),
    Rule(1, 2, 128, 96),
    Rule(2, 2, 8, 16, each=True, layers=1),
    Rule(1, 3, 32, 8),
    Rule(1, 1, 128, 64, each=True),
    Convolution(192, 4),
    Convolution(300, 2, "f32", layers=1),
    Convolution(16, 8, "f16"),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
#: GPUs with waves of 64, then those with waves of 32.
TARGETS = ["gfx950", "gfx942", "gfx1201", "gfx1151", "gfx1250"]
each_target = pytest.mark.parametrize("target", TARGETS)
SIMULATED = TARGETS[:2]

#: (rows, positions before) of the runs of a call: new and continued runs, and more rows than a lane
#: loads at once; runs of one row; a single run.
RUNS = [[(1, 5), (7, 0), (3, 2), (19, 40)], [(1, n % 3) for n in range(5)], [(16, 1)]]

Call = Callable[[str, Case, Given], tuple[Array, Array]]


@pytest.fixture(scope="module")
def call(watched: Callable[..., Any]) -> Call:
    """Return a function that computes a case on a target: the result, and the pool afterwards."""
    source = program(CASES)
    made = {target: watched(source, target=target) for target in SIMULATED}

    def simulated(target: str, case: Case, given: Given) -> tuple[Array, Array]:
        *arrays, layer = given.arguments
        copies = [each.copy() for each in arrays]
        found = made[target].call(str(case), *copies, np.array(layer, np.int32))
        shape = given.rows[min(2, len(given.rows) - 1)].shape
        result, pool = (each.view(np.float32) for each in found)
        return result.reshape(shape), pool.reshape(given.pool.shape)

    def compute(target: str, case: Case, given: Given) -> tuple[Array, Array]:
        how = simulated if target in SIMULATED else interpreted
        return how(target, case, given)

    return compute


def interpreted(target: str, case: Case, given: Given) -> tuple[Array, Array]:
    """Interpret the kernel of a case, and return the result and the pool."""
    pool = given.pool.copy()
    result = np.full_like(given.rows[min(2, len(given.rows) - 1)], np.nan)
    weights = [] if isinstance(case, Rule) else [case.stored]
    buffers = [*given.rows, *weights, pool, given.runs, given.places, result]
    scalars = (given.layer, len(result), len(given.runs), len(pool))
    with new_context():
        module = with_kernels(program([case]), target)
        flat = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in buffers]
        lane_interpreter.run(module, flat, scalars)
    return result, pool


@each_target
@each_case
@pytest.mark.parametrize("runs", RUNS, ids=str)
def test_runs(case: Case, runs: list[tuple[int, int]], target: str, call: Call) -> None:
    given = draw(case, runs)
    check(case, given, *call(target, case, given))


@each_target
@each_case
def test_a_new_sequence_reads_no_state(case: Case, target: str, call: Call) -> None:
    given = draw(case, [(3, 0), (2, 0)])
    given.pool[:] = np.nan
    result, pool = call(target, case, given)
    assert np.isfinite(result).all()
    assert np.isfinite(pool[given.places, given.layer]).all()


@each_case
def test_cuts_and_company_change_no_bit(case: Case, call: Call) -> None:
    check_cuts(case, 6, lambda given: call("gfx950", case, given))


def test_what_no_kernel_takes_is_computed(watched: Callable[..., Any]) -> None:
    """By IREE: columns that fill no wave, and more tokens than a lane keeps."""
    cases: list[Case] = [Rule(1, 2, 8, 4), Convolution(16, 9)]
    made = watched(program(cases), target="gfx950")
    for case in cases:
        given = draw(case, RUNS[0])
        *arrays, layer = given.arguments
        result, pool = made.model.call(str(case), *arrays, np.array(layer, np.int32))
        check(case, given, np.asarray(result), np.asarray(pool))
        assert not any(kernel.name.startswith("mxc_") for kernel, _ in made.seen)


@pytest.mark.parametrize(
    ("rows", "columns", "taken"),
    [(256, 8, True), (264, 8, False), (12, 8, False), (8, 12, False), (8, 16, True)],
)
def test_states_of_a_delta_rule(rows: int, columns: int, taken: bool) -> None:
    kernel = GpuDeltaRule(
        key_heads=1, heads=1, key_depth=rows, depth=columns, each=False, layers=1, lanes=64
    )
    assert (kernel.checked() is kernel) is taken
