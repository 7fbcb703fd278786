"""GPU kernels of norms with the router that reads the norm, against numpy in f64.

The kernels of gfx950 and gfx942, in waves of 64, run on the simulator, compiled as users do. Those
of other GPUs, in waves of 32, are run by an interpreter of MLIR (lane_interpreter.py).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func

import mxc
from mxc.artifact.manifest import REPORT
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.routes import route
from mxc.dialects.row_norms import row_norm
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels

Array = npt.NDArray[Any]

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
SIMULATED = ["gfx950", "gfx942"]
TARGETS = [*SIMULATED, "gfx1201", "gfx1151", "gfx1250"]
each_target = pytest.mark.parametrize("target", TARGETS)


@dataclass(frozen=True)
class Case:
    """A norm of rows of `width`, with a router that chooses `choices` of `experts` for each row.

    `weight`, `bias`: types of the router's weights and of its bias; empty: no bias. `rounded`:
    whether the norm is rounded to bf16.
    """

    width: int
    experts: int
    choices: int
    weight: str
    bias: str
    rounded: bool

    @property
    def name(self) -> str:
        """The name of the function of the case."""
        return f"route_{CASES.index(self)}"


#: Several iterations along a row; more experts than a row has columns; all experts chosen.
CASES = [
    Case(2880, 32, 4, "bf16", "bf16", rounded=True),
    Case(72, 100, 6, "f32", "", rounded=False),
    Case(1160, 8, 8, "f16", "f32", rounded=True),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

Call = Callable[[str, Case, list[Array]], list[Array]]


def program(cases: list[Case]) -> str:
    """Return a program with a function for each case: the norm, the shares and the experts.

    The reference body of each named operation is wrong, so that only a kernel gives the right
    numbers.
    """
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        size, f32 = ir.ShapedType.get_dynamic_size(), ir.F32Type.get()
        i32 = ir.IntegerType.get_signless(32)
        with ir.InsertionPoint(module.body):
            for case in cases:
                shapes = [([size, case.width], f32), ([case.width], f32)]
                shapes.append(([case.experts, case.width], ir.Type.parse(case.weight)))
                if case.bias:
                    shapes.append(([case.experts], ir.Type.parse(case.bias)))
                kinds = [ir.RankedTensorType.get(*shape) for shape in shapes]

                def body(*given: ir.Value, case: Case = case) -> list[ir.Value]:
                    x, weight, router, *bias = given
                    y = row_norm(x, weight, lambda x, weight: x, epsilon=1e-5, offset=0.0)
                    if case.rounded:
                        bf16 = ir.BF16Type.get()
                        y = generic([(y, "m n")], "m n", bf16, lambda a: arith.truncf(bf16, a))

                    def nothing(x: ir.Value, *_: ir.Value) -> list[ir.Value]:
                        made = "m j"
                        sizes = {"j": case.choices}
                        empty = generic([(x, "m k")], "m", f32, lambda a, acc: acc)
                        return [
                            generic([(empty, "m")], made, f32, lambda a: a, sizes=sizes),
                            generic(
                                [(empty, "m")],
                                made,
                                i32,
                                lambda a: arith.fptosi(i32, a),
                                sizes=sizes,
                            ),
                        ]

                    bias_of = bias[0] if bias else None
                    return [y, *route(y, router, bias_of, case.choices, nothing)]

                func.FuncOp.from_py_func(*kinds, name=case.name)(body)
        return str(module)


@pytest.fixture(scope="module")
def call(watched: Callable[..., Any]) -> Call:
    """Return a function that computes a case on a target: the norm, shares and experts."""
    made = {target: watched(program(CASES), target=target) for target in SIMULATED}

    def compute(target: str, case: Case, given: list[Array]) -> list[Array]:
        rows = len(given[0])
        kinds = [TYPES["bf16" if case.rounded else "f32"], np.float32, np.int32]
        widths = [case.width, case.choices, case.choices]
        if target not in SIMULATED:
            empty = [np.zeros((rows, n), kind) for n, kind in zip(widths, kinds, strict=True)]
            found = interpreted(target, case, given, empty)
        else:
            found = made[target].call(case.name, *given)
            assert "_top_" in made[target].kernel.name
        return [
            np.ascontiguousarray(each).reshape(-1).view(np.uint8).view(kind).reshape(rows, width)
            for each, kind, width in zip(found, kinds, widths, strict=True)
        ]

    return compute


def interpreted(target: str, case: Case, given: list[Array], made: list[Array]) -> list[Array]:
    """Interpret the kernel of a case on the results `made`, and return these."""
    with new_context():
        module = with_kernels(program([case]), target)
        flat = [each.reshape(-1).view(np.uint8) for each in (*given, *made)]
        lane_interpreter.run(module, flat, (len(given[0]),))
    return made


def draw(case: Case, rows: int) -> list[Array]:
    """Draw the operands of a case."""
    rng = np.random.default_rng(rows)
    x = rng.normal(size=(rows, case.width)).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, case.width).astype(np.float32)
    router = rng.normal(0, 0.02, (case.experts, case.width)).astype(TYPES[case.weight])
    biases = [rng.normal(size=case.experts).astype(TYPES[case.bias])] if case.bias else []
    return [x, weight, router, *biases]


def check(case: Case, given: list[Array], found: list[Array]) -> None:
    """Assert that the results are right. Experts are in the order of falling logits; those with
    equal logits, in the order of their numbers."""
    normed, shares, experts = (each.astype(np.float64) for each in found)
    x, weight, router, *biases = (each.astype(np.float64) for each in given)
    wanted = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(normed, wanted, rtol=2.0**-8 + 1e-6 if case.rounded else 1e-6)
    logits = normed @ router.T + (biases[0] if biases else 0.0)
    order = np.argsort(-logits, axis=1, kind="stable")[:, : case.choices]
    np.testing.assert_array_equal(experts, order)
    chosen = np.take_along_axis(logits, order, axis=1)
    powers = np.exp(chosen - chosen[:, :1])
    np.testing.assert_allclose(shares, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)


@each_target
@each_case
def test_routes(target: str, case: Case, call: Call) -> None:
    given = draw(case, 3)
    check(case, given, call(target, case, given))


@each_target
def test_experts_of_equal_logits(target: str, call: Call) -> None:
    given = draw(CASES[1], 4)
    given[2][10:90] = given[2][7]
    given[2][20:30] *= 0.5
    check(CASES[1], given, call(target, CASES[1], given))


@pytest.mark.parametrize("target", SIMULATED)
@each_case
def test_a_row_has_the_same_bits_in_every_call(target: str, case: Case, call: Call) -> None:
    x, *weights = draw(case, 5)
    together, alone = call(target, case, [x, *weights]), call(target, case, [x[3:4], *weights])
    for many, one in zip(together, alone, strict=True):
        np.testing.assert_array_equal(many[3:4], one)


@each_target
def test_a_row_of_nan_chooses_nothing(target: str, call: Call) -> None:
    given = draw(CASES[0], 2)
    given[0][1, 5] = np.nan
    normed, shares, experts = call(target, CASES[0], given)
    assert np.isnan(normed[1].astype(np.float32)).all()
    assert np.isnan(shares[1]).all()
    assert not experts[1].any()
    assert np.isfinite(shares[0]).all()


@each_target
def test_registers_are_enough(target: str, tmp_path: Path) -> None:
    """And the report has the products of routers, with the instructions that multiply."""
    (tmp_path / "program.mlir").write_text(program(CASES))
    mxc.compile(tmp_path / "program.mlir", target=target, output=tmp_path / "program.mxc")
    report = json.loads((tmp_path / "program.mxc" / REPORT).read_text())
    assert not [k["name"] for k in report["kernels"] if k["spills"] or k["scratch_bytes"]]
    found = [(each["n"], each["k"], each["fallback"]) for each in report["matmuls"]]
    assert found == [(case.experts, case.width, None) for case in CASES]
