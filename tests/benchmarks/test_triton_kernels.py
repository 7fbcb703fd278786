"""Kernels that Triton compiles, on the simulator: some of those of the script that has them all."""

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
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

    def build(rng: np.random.Generator) -> Any:
        given, wanted = case.build(rng)
        return given, {"out": wanted["out"] + 0.1}

    assert triton_kernels.run(replace(case, build=build), "gfx950").kind == "wrong"


SOFTMAX = "softmax fp32 of 781, 4 warps"
BARRIER, NOTHING = (word.to_bytes(4, "little") for word in (0xBF8A0000, 0xBF800000))


@pytest.mark.parametrize(
    ("name", "form", "was", "becomes", "seen"),
    [
        # A kernel reads LDS that other waves write.
        (SOFTMAX, "hsaco", BARRIER, NOTHING, "LDS that another wave"),
        # Workgroups store to one place.
        ("atomic add i32", "amdgcn", "global_atomic_add ", "global_store_dword ", "of workgroup"),
    ],
)
def test_a_race_in_their_code_would_be_seen(
    name: str, form: str, was: Any, becomes: Any, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(c for c in triton_kernels.cases() if c.name == name)
    compiled = triton_kernels.compiled

    def changed(*given: Any) -> SimpleNamespace:
        made = compiled(*given)
        code = made.asm[form]
        assert was in code
        return SimpleNamespace(asm={"hsaco": code.replace(was, becomes)}, metadata=made.metadata)

    monkeypatch.setattr(triton_kernels, "compiled", changed)
    monkeypatch.setattr(triton_kernels, "_difference", lambda *_: "")
    found = triton_kernels.run(case, "gfx950")
    assert found.kind == "wrong"
    assert "accused: race" in found.why
    assert seen in found.why
