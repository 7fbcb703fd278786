"""Our gfx950 kernels against the reference: a few of the cases of the script that has them all."""

from dataclasses import replace
from pathlib import Path

import pytest
from agreement import Programs, compared
from agreement_cases import SCHEDULES, Case, at, cases
from agreement_operands import Pattern, operands, patterns

#: What no other test runs: specials beside the end of K, an id that is no expert, columns of a ring
#: that fill no quad; blocks of other sizes, sides that are decoded, rounded, rings of these.
CASES = [
    at("mxfp8e5m2", "mxfp8e4m3", "16 along K"),
    at("mxfp8e4m3", "mxfp4", "ring"),
    replace(at("mxfp4", "mxfp8e5m2", "32"), groups=4, experts=3),
    at("nvfp4", "nvfp4", "16 along K"),
    at("mxfp8e4m3", "nvfp4", "16"),
    at("nvfp4", "mxfp6e2m3", "32"),
    at("mxfp8e5m2", "mxfp6e2m3", "16", block=16),
    at("mxint8", "mxfp4", "32"),
    at("mxfp8e4m3", "mxfp4", "16 along K", block=64),
    at("mxfp4", "mxfp8e5m2", "ring", block=64),
    at("mxfp4", "mxfp4", "ring", block=512),
    at("bf16", "mxfp6e3m2", "16 along K", block=128),
    replace(at("mxfp8e4m3", "mxfp8e5m2", "16 along K"), between="bf16"),
    replace(at("f16", "mxfp8e4m3", "32"), between="f16"),
    replace(at("mxfp4", "mxfp6e2m3", "16"), between="f16"),
]
RUNS = [(case, pattern) for case in CASES for pattern in patterns(case)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(CASES, Path(tmp_path_factory.mktemp("agreement")))


@pytest.mark.parametrize(
    ("case", "pattern"), RUNS, ids=[f"{case.name}, {pattern}" for case, pattern in RUNS]
)
def test_kernels_agree_with_the_reference(case: Case, pattern: Pattern, programs: Programs) -> None:
    assert programs.run(case, pattern).wrong == ""


def test_all_pairs_take_all_ways_with_all_patterns_and_epilogues() -> None:
    every = cases()
    pairs = {(case.lhs, case.rhs) for case in every if not case.register}
    assert len(pairs) == 25
    for pair in pairs:
        own = [case for case in every if (case.lhs, case.rhs) == pair and not case.register]
        assert {case.schedule for case in own} == set(SCHEDULES)
        assert len({case.epilogue for case in own}) == 6
        assert {"random", "nan", "extremes", "subnormals"} <= set(patterns(own[0]))
    assert all(case.m % 16 and case.n % 32 for case in every if not case.epilogue)


def test_a_result_that_is_off_is_said_to_be() -> None:
    case = at("nvfp4", "nvfp4", "16 along K")
    _, wanted = operands(case, "random")
    result = wanted.results[0].copy()
    assert compared(case, "random", [result], wanted).wrong == ""
    result[3, 4] *= 1.01
    assert compared(case, "random", [result], wanted).wrong.startswith("1 of 165 differ, at [3, 4]")
