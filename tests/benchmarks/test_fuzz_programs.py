"""The first programs of the fuzz, and what the fuzz is made of."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fuzz import interpreter, stages
from fuzz.bounded import exact, plus, product, rounded
from fuzz.check import Outcome, check, difference
from fuzz.description import Program, Side, fault, read
from fuzz.foreign import foreign
from fuzz.generate import programs
from fuzz.mlir import function
from fuzz.operands import PATTERNS, chosen, constants, operands
from fuzz.reference import computed, quantized_wrongly
from fuzz.shrink import smallest
from fuzz_programs import Run
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.passes.base import Pass, Pipeline, Stage, run
from mxc.passes.normalize import NORMALIZE
from mxc.passes.rewriting.rebuild import linalg_operations

#: Programs of `benchmarks/fuzz_programs.py --seed 0`; of the first ones each form of a kernel is
#: compiled and run.
COUNT, COMPILED = 300, 60

#: What the fuzz has found in compiled programs: a rounding to the least normal number of f8E4M3FN
#: that gave zero; sums that were infinite before a small scale made them less; weights rounded
#: under their scales, decoded once for several tiles of rows.
FOUND = {
    5268: '{"lhs": {"format": "f32"}, "rhs": {"format": "mxfp4"}, "m": 5, "n": 32, "k": 32, '
    '"ending": "quantize"}',
    5537: '{"lhs": {"format": "mxfp4"}, "rhs": {"format": "mxfp4", "factor": "fpowi", '
    '"style": "stepwise", "kind": "f32>bf16"}, "m": 1, "n": 16, "k": 64, "batch": 2}',
    214: '{"lhs": {"format": "f32"}, "rhs": {"format": "mxfp8e4m3", "factor": "fpowi", '
    '"kind": "f32>f16"}, "m": 9, "n": 16, "k": 96, "accumulator": "dense", '
    '"epilogue": ["clamp", "relu_maxnumf"], "ending": "gate"}',
}

WEIGHT = Side(format="mxfp4", factor="scaling_extf", broadcast="blocks", style="inline")
PLAIN = Program(lhs=Side(format="f32"), rhs=WEIGHT, m=2, n=16, k=64)


@pytest.mark.parametrize(
    ("first", "end", "whole"), [(0, COMPILED, COUNT), (COMPILED, COUNT, 0)]
)  # fmt: skip
def test_the_first_programs(first: int, end: int, whole: int, tmp_path: Path) -> None:
    state = Run(seed=0, target="cpu", whole=whole, smaller=False, output=tmp_path)
    state.check(range(first, end))
    state.finish()
    wrong = [place.read_text() for place in sorted(tmp_path.glob("*.mlir"))]
    assert not wrong, "\n".join(text[:600] for text in wrong)
    assert {"kernel"} <= set(state.found) <= {"kernel", "refused"}
    assert (state.compiled >= 10) == bool(whole)


def test_what_was_wrong_is_right() -> None:
    outcomes = check([read(text) for text in FOUND.values()], [*FOUND])
    assert [each.kind for each in outcomes] == ["kernel"] * len(FOUND), outcomes


def test_programs_are_what_a_seed_says() -> None:
    several = programs(3, 0, 50)
    assert programs(3, 17, 5) == several[17:22]
    assert programs(4, 0, 50) != several
    assert [read(each.json()) for each in several] == several


def test_a_hundred_programs_of_others() -> None:
    every = foreign()
    assert len(every) == len({(each.origin, each.name) for each in every}) == 100
    assert not [each.name for each in every if fault(each.program)]


def test_a_number_that_is_off_is_found() -> None:
    given = operands(PLAIN, "random", 0)
    (wanted,) = computed(PLAIN, given)
    result = wanted.value.astype(np.float32)
    assert difference(PLAIN, [result], [wanted]) == ""
    result[1, 3] *= np.float32(1.0001)
    assert difference(PLAIN, [result], [wanted]).startswith("1 of 32 differ, at [1, 3]")


def test_sums_of_few_bits_have_no_error() -> None:
    (wanted,) = computed(PLAIN, operands(PLAIN, "exact", 0))
    assert not wanted.error.any()
    wanted.value[0, 0] += 2.0**-20
    (again,) = computed(PLAIN, operands(PLAIN, "exact", 0))
    assert difference(PLAIN, [again.value], [wanted]).startswith("1 of 32 differ")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bounds_hold_whatever_the_order_of_a_sum(pattern: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=(3, 64)).astype(np.float32) for _ in range(2))
    if pattern == "extremes":
        a[1] *= np.float32(2.0**100)
    wanted = product(exact(a), exact(b.T), exact(np.zeros(3)), "f32")
    for _ in range(20):
        order = rng.permutation(64)
        total = np.zeros((3, 3), np.float32)
        for k in order:
            total = total + a[:, k, None] * b[None, :, k]
        assert difference(PLAIN, [total], [wanted]) == ""


def test_rounding_is_to_the_nearest_and_of_errors_to_neighbours() -> None:
    value = exact(np.array([1 + 2.0**-8, 3.0]))
    assert rounded(value, "bf16").value.tolist() == [1.0, 3.0]
    assert rounded(value, "bf16").error.tolist() == [0.0, 0.0]
    moved = plus(value, exact(np.array([2.0**-30, 0.0])))
    assert rounded(moved, "bf16").error[0] >= 2.0**-8


def test_quantized_results_are_compared_as_blocks() -> None:
    y = exact(np.full((1, 32), 3.0))
    codes, scales = np.full((1, 32), 0x7C, np.uint8), np.array([[120]], np.uint8)
    assert not quantized_wrongly(y, codes, scales).any()  # 384 * 2^-7
    assert quantized_wrongly(y, codes - 1, scales).all()
    assert quantized_wrongly(y, codes, scales + 1).all()


def test_a_finding_is_made_smaller() -> None:
    def found(chosen: Sequence[Program], seeds: Sequence[int], target: str) -> list[Outcome]:
        wrong = "square" in chosen[0].epilogue and chosen[0].k >= 64
        return [Outcome("wrong") if wrong else Outcome("kernel")]

    large = dataclasses.replace(
        PLAIN, m=9, k=128, batch=2, epilogue=("silu", "square", "clamp"), swapped=True
    )
    small, outcome = smallest(large, Outcome("wrong"), 0, "cpu", found)
    assert outcome.kind == "wrong"
    assert (small.m, small.k, small.batch, small.epilogue) == (1, 64, 0, ("square",))


def test_programs_compute_what_the_reference_does_before_any_pass() -> None:
    with new_context():
        for number, program in enumerate(programs(0, 0, 40)):
            made = function(program, "main", constants(program, number))
            module = ir.Module.parse(made.text)
            run(("convert-elementwise-to-linalg",), module)
            (main,) = module.body.operations
            given = operands(program, "random", number)
            results = interpreter.call(main.operation, chosen(given, made.arguments))
            assert difference(program, results, computed(program, given)) == "", program.json()


@pytest.mark.parametrize("change", ["", "arith.mulf %v, %v : f32", "arith.negf %v : f32"])
def test_a_pass_that_changes_numbers_is_found(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a faulty pass may do to what is yielded; without it nothing is found."""
    monkeypatch.setattr(stages, "pipeline", lambda target: Pipeline(target, (Stage(
        "normalize", "", (*NORMALIZE, _Wrong(change)) if change else NORMALIZE),)))  # fmt: skip
    (checked,) = stages._checked([PLAIN], [0], "cpu")
    assert (checked.outcome.kind == "wrong") == bool(change), checked


@dataclasses.dataclass(frozen=True)
class _Wrong(Pass):
    """Does something to the last value of the last linalg operation."""

    change: str
    name = "mxc-wrong"

    def run(self, module: ir.Operation) -> None:
        """Change it."""
        last = list(linalg_operations(module))[-1]
        end = list(last.regions[0].blocks[0].operations)[-1].operation
        with ir.InsertionPoint(end), end.location:
            name, count = self.change.split()[0], self.change.count("%")
            kind = [end.operands[0].type]
            made = ir.Operation.create(name, kind, [end.operands[0]] * count)
        end.operands[0] = made.result
