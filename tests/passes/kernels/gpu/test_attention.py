"""Attention kernels for gfx950 on the simulator, against float64: every way to be ragged.

All cases are functions of one program, compiled the way a model is.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_cases import (
    KEYS,
    VALUES,
    Case,
    Inputs,
    at_the_end,
    check,
    draw,
    expected,
    program,
)
from numpy.typing import NDArray

import mxc
from mxc.artifact.manifest import REPORT
from mxc.dialects.attention import Chunk

#: One token over pieces, with a window and without; tiles of several tokens and of parts of one;
#: two tiles of rows; a tile and a part of one; several waves; heads of one fragment to eight; a
#: cache in every type; groups that do not divide a tile; results in bf16; values that are the first
#: elements of keys, of one wave and of two; chunks.
CASES = [
    Case(1, 2, 8, 64, 300),
    Case(20, 2, 8, 64, 300),
    Case(33, 1, 8, 64, 120, width=20, size=52),
    Case(5, 2, 1, 128, 90, "f32", width=7),
    Case(9, 1, 4, 128, 40, "f16", "f16"),
    Case(1, 4, 4, 32, 64, width=20, size=20),
    Case(3, 1, 2, 96, 60, "f16", "bf16", size=60),
    Case(7, 1, 6, 256, 50),
    Case(5, 1, 8, 64, 48, size=48, rounded=True),
    Case(1, 2, 4, 64, 300, rounded=True),
    Case(3, 2, 4, 96, 60, latent=64),
    Case(33, 1, 6, 32, 90, width=Chunk(20)),
    Case(1, 1, 20, 576, 300, latent=512),
    Case(3, 1, 8, 576, 70, latent=512, rounded=True),
]
#: Those whose values can be poisoned alone.
APART = [case for case in CASES if not case.latent]
each_case = pytest.mark.parametrize("case", CASES, ids=str)


Attend = Callable[[Case, Inputs], NDArray[np.float32]]


@pytest.fixture(scope="module")
def attend(watched: Callable[[str], Any]) -> Attend:
    """Run a case, without a finding of the sanitizer."""
    made = watched(program(CASES).decode())

    def call(case: Case, given: Inputs) -> NDArray[np.float32]:
        made.seen.clear()
        numbers = [np.array(n, np.int32) for n in (given.position, given.first, given.size)]
        result = made.model.call(str(case), given.queries, given.cache, given.sinks, *numbers)
        assert made.seen
        assert all(k.name.startswith("mxc_attention") for k, _ in made.seen)
        assert not [finding for _, sanitizer in made.seen for finding in sanitizer.findings]
        return np.asarray(result).astype(np.float32).reshape((*case.queries[:3], case.mixed))

    return call


@each_case
def test_last_tokens(case: Case, attend: Attend) -> None:
    given = at_the_end(case)
    check(attend(case, given), case, given)


@each_case
def test_tokens_within_the_keys(case: Case, attend: Attend) -> None:
    """Some keys come after them, some are behind the window, the first is not the cache's first."""
    first = 0 if case.size else 3
    given = draw(case, case.capacity // 2, first, case.size or case.capacity - 9, seed=1)
    check(attend(case, given), case, given)


@each_case
def test_what_nobody_sees_may_be_anything(case: Case, attend: Attend) -> None:
    """Other entries of the cache, keys outside of the slice or the window, tokens to come."""
    size = case.size or case.capacity // 2
    given = draw(case, position=size // 2, first=3 if not case.size else 0, size=size)
    hidden = ~given.seen(case).any(axis=0)
    assert hidden.any()
    poisoned = replace(given, cache=given.cache.copy())
    poisoned.cache[1] = np.nan
    for entry in {KEYS, case.values}:
        poisoned.cache[entry][hidden] = [[[np.inf], [np.nan]][entry == VALUES] * case.depth]
        poisoned.cache[entry][hidden, :, ::3] = -np.inf
    check(attend(case, poisoned), case, given)


@pytest.mark.parametrize("case", [c for c in APART if c.tokens > 1], ids=str)
@pytest.mark.parametrize("poison", [np.nan, np.inf], ids=str)
def test_a_token_spoils_what_comes_after_it_alone(
    case: Case, poison: float, attend: Attend
) -> None:
    given = at_the_end(case)
    wanted, allowed = expected(case, given)
    token = case.tokens // 2
    key = given.position + token
    given.cache[VALUES, key, :, 5] = poison
    found = attend(case, given)
    after = given.seen(case)[:, key]
    assert not np.isfinite(found[after, ..., 5]).any()
    # The value is part of other means no longer, so that only their own size bounds the error.
    allowed = allowed + 2.0**-8 * np.abs(wanted) * case.rounded
    found[after, ..., 5] = wanted[after, ..., 5]
    assert (np.abs(found - wanted) <= allowed).all()
    given.cache[KEYS, key, :, 1] = np.nan
    found = attend(case, given)
    assert np.isnan(found[after]).all()
    assert (np.abs(found - wanted) <= allowed)[~after].all()


def test_a_value_without_weight_is_not_there(attend: Attend) -> None:
    """A key so far below the others that its weight is zero: its value may be infinite."""
    case = CASES[1]
    given = at_the_end(case)
    given.queries[:] = np.abs(given.queries)
    given.cache[KEYS, given.position] = -60000.0
    given.cache[VALUES, given.position] = np.inf
    found = attend(case, given)
    check(found, case, replace(given, cache=np.where(np.isinf(given.cache), 0, given.cache)))


@each_case
def test_without_sinks(case: Case, attend: Attend) -> None:
    given = at_the_end(case)
    for sink in (-np.inf, 60.0):
        given.sinks[:] = sink
        check(attend(case, given), case, given)


def test_registers_are_enough(tmp_path: Path) -> None:
    """Nothing is spilled where two tiles of rows, long heads, or parts of them fill registers."""
    shapes = [(32, "bf16"), (64, "bf16"), (64, "f32"), (128, "bf16"), (128, "f32"), (256, "f16")]
    shapes += [(32, "f32"), (64, "f16")]
    cases = [Case(32, 2, 8, depth, 4096, cache) for depth, cache in shapes]
    cases += [Case(1, 2, 8, depth, 4096, cache) for depth, cache in ((32, "f32"), (64, "f16"))]
    cases.append(Case(3, 2, 2, 32, 64, "f32", "bf16", width=20, size=60, rounded=True))
    cases += [Case(tokens, 1, 128, 576, 4096, latent=512) for tokens in (1, 64)]
    (tmp_path / "program.mlir").write_bytes(program(cases))
    mxc.compile(tmp_path / "program.mlir", target="gfx950", output=tmp_path / "program.mxc")
    report = json.loads((tmp_path / "program.mxc" / REPORT).read_text())
    kernels = [k for k in report["kernels"] if k["name"].startswith("mxc_attention")]
    assert len(kernels) >= len(cases)
    assert {(k["spills"], k["scratch_bytes"]) for k in kernels} == {(0, 0)}
