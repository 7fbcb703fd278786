"""Kernels that Triton compiles, on the simulator: some of those of the script that has them all."""

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import triton_kernels
from triton_case import Case

SEED, COUNT = 16, 52
EVERY = [(target, case) for target in triton_kernels.TARGETS for case in triton_kernels.cases()]
CHOSEN = random.Random(SEED).sample(EVERY, COUNT)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What Triton compiles is kept in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.mark.parametrize(
    ("target", "case"), CHOSEN, ids=[f"{target} {case.name}" for target, case in CHOSEN]
)
def test_results_and_no_accusation(target: str, case: Case) -> None:
    found = triton_kernels.run(case, target)
    assert found.kind in ("right", "wrong by Triton"), found


def test_a_wrong_result_would_be_seen() -> None:
    case = next(case for case in triton_kernels.cases() if case.name == "add fp32")

    def build(rng: object) -> object:
        given, wanted = case.build(rng)
        return given, {"out": wanted["out"] + 0.1}

    assert triton_kernels.run(replace(case, build=build), "gfx950").kind == "wrong"


def test_a_race_in_their_code_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its barriers a kernel reads LDS that other waves write."""
    case = next(c for c in triton_kernels.cases() if c.name == "softmax fp32 of 781, 4 warps")
    barrier, nothing = (word.to_bytes(4, "little") for word in (0xBF8A0000, 0xBF800000))
    compiled = triton_kernels.compiled

    def without_barriers(*given: object) -> SimpleNamespace:
        made = compiled(*given)
        code = made.asm["hsaco"]
        assert barrier in code
        return SimpleNamespace(
            asm={"hsaco": code.replace(barrier, nothing)}, metadata=made.metadata
        )

    monkeypatch.setattr(triton_kernels, "compiled", without_barriers)
    found = triton_kernels.run(case, "gfx950")
    assert found.kind == "wrong"
    assert "accused: race" in found.why
