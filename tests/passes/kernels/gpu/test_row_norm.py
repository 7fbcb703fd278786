"""GPU kernels of norms of rows, with and without the sum of experts before them, against numpy in
f64.

The kernels of gfx950 and gfx942, in waves of 64, run on the simulator, compiled as users do. Those
of other GPUs, in waves of 32, are run by an interpreter of MLIR (lane_interpreter.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func

from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.row_norms import row_norm, sum_experts
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels

Array = npt.NDArray[Any]

#: SLOTS: number of experts' rows in a call, of which each row adds up `Case.choices`.
SLOTS, EPSILON = 11, 1e-5
TYPES = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}
SIMULATED = ["gfx950", "gfx942"]
TARGETS = [*SIMULATED, "gfx1201", "gfx1151", "gfx1250"]
each_target = pytest.mark.parametrize("target", TARGETS)


@dataclass(frozen=True)
class Case:
    """Norms of rows of `width` with weights of type `weight`.

    `choices`: experts' rows that are added to each row before; 0: none. `stores`: the types in
    which norms are stored, f32, bf16 or both.
    """

    width: int
    weight: str
    offset: float
    choices: int
    stores: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the function of the case."""
        return f"norm_{CASES.index(self)}"


#: Rows that fill the lanes of a workgroup or do not, and rows of several iterations.
CASES = [
    Case(256, "bf16", 0.0, 0, ("bf16",)),
    Case(2880, "bf16", 0.0, 4, ("bf16",)),
    Case(60, "f32", 1.0, 0, ("f32",)),
    Case(4500, "f32", 0.0, 1, ("f32", "bf16")),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

Call = Callable[[str, Case, list[Array]], list[Array]]


def program(cases: list[Case]) -> str:
    """Return a program with a function for each case. The reference bodies of norms are wrong, so
    that only a kernel gives the right numbers."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        size, f32 = ir.ShapedType.get_dynamic_size(), ir.F32Type.get()
        with ir.InsertionPoint(module.body):
            for case in cases:
                shapes = [([size, case.width], f32)]
                if case.choices:
                    i32 = ir.IntegerType.get_signless(32)
                    shapes += [([size, case.width], f32)]
                    shapes += [([size, case.choices], kind) for kind in (f32, i32)]
                shapes += [([case.width], ir.Type.parse(case.weight))]
                kinds = [ir.RankedTensorType.get(*shape) for shape in shapes]

                def body(*given: ir.Value, case: Case = case) -> list[ir.Value]:
                    x, *experts, weight = given
                    found = []
                    if experts:
                        summed = sum_experts(*[*experts, lambda rows, shares, slots: rows])
                        x = generic([(x, "m n"), (summed, "m n")], "m n", f32, arith.addf)
                        found.append(x)
                    numbers = {"epsilon": EPSILON, "offset": case.offset}
                    y = row_norm(x, weight, lambda x, weight: x, **numbers)
                    for store in case.stores:
                        kind = ir.Type.parse(store)
                        rounded = (
                            generic([(y, "m n")], "m n", kind, lambda a, k=kind: arith.truncf(k, a))
                            if store != "f32"
                            else y
                        )
                        found.append(rounded)
                    return found

                func.FuncOp.from_py_func(*kinds, name=case.name)(body)
        return str(module)


@pytest.fixture(scope="module")
def call(watched: Callable[..., Any]) -> Call:
    """Return a function that computes a case on a target: the sum, if it has one, and the norms."""
    made = {target: watched(program(CASES), target=target) for target in SIMULATED}

    def compute(target: str, case: Case, given: list[Array]) -> list[Array]:
        kinds = [np.float32] * bool(case.choices) + [TYPES[each] for each in case.stores]
        if target not in SIMULATED:
            found = interpreted(target, case, given, kinds)
        else:
            found = made[target].call(case.name, *given)
            assert made[target].kernel.name.startswith("mxc_row_norm_")
        return [
            np.ascontiguousarray(each).reshape(-1).view(np.uint8).view(kind).reshape(given[0].shape)
            for each, kind in zip(found, kinds, strict=True)
        ]

    return compute


def interpreted(target: str, case: Case, given: list[Array], kinds: list[Any]) -> list[Array]:
    """Interpret the kernel of a case, and return its results, of types `kinds`."""
    made = [np.full(given[0].shape, np.nan, kind) for kind in kinds]
    with new_context():
        module = with_kernels(program([case]).replace("@norm_0", f"@{case.name}"), target)
        flat = [each.reshape(-1).view(np.uint8) for each in (*given, *made)]
        scalars = (len(given[0]), *([SLOTS] if case.choices else []))
        lane_interpreter.run(module, flat, scalars)
    return made


def draw(case: Case, rows: int) -> list[Array]:
    """Draw the operands of a case."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, case.width)).astype(np.float32)
    experts: list[Array] = []
    if case.choices:
        shares = rng.uniform(size=(rows, case.choices)).astype(np.float32)
        slots = rng.integers(0, SLOTS, (rows, case.choices)).astype(np.int32)
        experts = [rng.normal(size=(SLOTS, case.width)).astype(np.float32), shares, slots]
    weight = rng.normal(size=case.width).astype(TYPES[case.weight])
    return [x, *experts, weight]


def check(case: Case, given: list[Array], found: list[Array]) -> None:
    """Assert that sums have the bits of additions in the order of the choices, and that norms are
    as precise as f32, rounded to nearest."""
    x, *experts, weight = given
    if experts:
        rows, shares, slots = experts
        products = [rows[slots[:, j]] * shares[:, j, None] for j in range(case.choices)]
        total = products[0]
        for product in products[1:]:
            total = total + product
        x = x + total
        np.testing.assert_array_equal(found.pop(0), x)
    wide = x.astype(np.float64)
    scale = np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPSILON)
    wanted = wide / scale * (case.offset + weight.astype(np.float64))
    for store, each in zip(case.stores, found, strict=True):
        within = 1e-6 if store == "f32" else 2.0**-8 + 1e-6
        np.testing.assert_allclose(each.astype(np.float64), wanted, rtol=within, atol=1e-37)


@each_target
@each_case
def test_norms(target: str, case: Case, call: Call) -> None:
    given = draw(case, 3)
    check(case, given, call(target, case, given))


@pytest.mark.parametrize("target", SIMULATED)
@each_case
def test_a_row_has_the_same_bits_in_every_call(target: str, case: Case, call: Call) -> None:
    x, *experts, weight = draw(case, 5)
    together = call(target, case, [x, *experts, weight])
    own = [each if number == 0 else each[3:4] for number, each in enumerate(experts)]
    alone = call(target, case, [x[3:4], *own, weight])
    for many, one in zip(together, alone, strict=True):
        np.testing.assert_array_equal(many[3:4], one)


@each_target
def test_zeros_and_numbers_that_are_not_finite(target: str, call: Call) -> None:
    case = CASES[2]
    x, weight = draw(case, 4)
    x[0], x[1, 7], x[2, 9] = 0.0, np.nan, np.inf
    (found,) = call(target, case, [x, weight])
    assert not found[0].any()
    assert np.isnan(found[1]).all()
    assert np.isnan(found[2, 9])
    assert not np.delete(found[2], 9).any()
    assert np.isfinite(found[3]).all()


@each_target
def test_registers_are_enough(target: str, resources: Callable[[str, str], dict[str, Any]]) -> None:
    found = resources(program(CASES), target)
    assert len(found) == len(CASES)
    assert not [name for name, use in found.items() if use.spills or use.scratch_bytes]
