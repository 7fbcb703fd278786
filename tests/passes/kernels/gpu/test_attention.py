"""Attention kernels for gfx950 and gfx942 on the simulator, against float64.

Runs, groups and heads have sizes that do not divide tiles, pieces or pages. The cases of a GPU are
one program, compiled as a model is.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.dialects.attention import AttentionChunk
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import dispatches
from mxc.dialects.pool_reads import read_pool
from mxc.passes.kernels.gpu.attention.shape import PIECE_KEYS
from tests.passes.attention_cases import (
    KEYS,
    VALUES,
    Case,
    Inputs,
    check,
    draw,
    expected,
    program,
    seen,
)
from tests.passes.kernels.gpu.kernel_stage import with_kernels

#: Latent rows of the sizes of published models.
LONG = Case(1, 6, 576, latent=512, rounded=True)
#: One tile of rows or two, with the rows of several tokens or some rows of one; groups that do not
#: divide a tile; windows and chunks smaller than a block of keys, and a window of more than two
#: pieces; every type of pools; heads of one to eight fragments; results in bf16; capped scores;
#: latent values, summed by one wave or shared out to two; queries and weights of 16 bits.
CASES = [
    Case(2, 8, 64),
    Case(1, 6, 32, reach=20),
    Case(1, 4, 128, "f32", reach=7),
    Case(1, 4, 128, "f16", "f16", cap=3.0),
    Case(1, 3, 64, reach=AttentionChunk(20)),
    Case(1, 1, 32, "f16", "bf16", reach=PIECE_KEYS * 2 + 30),
    Case(1, 20, 64, rounded=True),
    Case(1, 2, 256, "bf16", "bf16", cap=50.0),
    Case(2, 4, 96, latent=64),
    # Keys and values are in the same entry of a page: the workload has its number twice.
    Case(1, 4, 48, latent=32),
    LONG,
    Case(2, 8, 64, "mxint8"),
    Case(1, 6, 32, "mxfp8e4m3", reach=20),
    Case(1, 4, 128, "mxfp8e4m3"),
    Case(1, 6, 576, "mxint8", latent=512),
    Case(2, 8, 64, "fp8e4m3"),
    Case(1, 4, 96, "fp8e4m3", reach=20),
    Case(1, 5, 80),
    Case(2, 8, 64, bits=16),
    Case(1, 4, 128, "f16", cap=3.0, bits=16),
]
#: Some of the cases in which values are not part of the keys, so that they alone can be NaN.
APART = [CASES[0], CASES[1], CASES[2], CASES[6], CASES[15]]
#: Cases for gfx942, whose matrix instructions have half of the depth: all types and sizes.
PLAIN = [
    *CASES[:6],
    Case(1, 20, 64, rounded=True),
    Case(2, 4, 96, latent=64),
    LONG,
    Case(1, 3, 80, "f32", cap=50.0),
    Case(1, 2, 16),
    Case(2, 8, 64, "mxfp8e4m3"),
    Case(1, 4, 128, "mxint8"),
    Case(1, 4, 96, "fp8e4m3", reach=20),
    Case(2, 8, 64, bits=16),
]
BY_TARGET = {"gfx950": CASES, "gfx942": PLAIN}
#: Cases of the tests of which keys a row sees. Both GPUs have the same code for this, apart from
#: matrix instructions and their operands, so gfx942 has only a case of each type and of latent
#: values. gfx950 omits LONG, because it has the same rows over a packed pool.
SEEN = {
    "gfx950": [case for case in CASES if case != LONG],
    "gfx942": [PLAIN[0], *PLAIN[2:4], PLAIN[7], *PLAIN[-4:]],
}
#: Cases that take the most registers, because of two tiles of rows, long heads or heads that are
#: loaded in parts. Cases that other tests compile for the GPU are not repeated here.
LARGE = [
    Case(1, 5, 80),
    Case(2, 8, 128),
    *(Case(2, 8, depth, "f32") for depth in (32, 64)),
    *(Case(2, 8, depth, "f16") for depth in (64, 256)),
    Case(8, 8, 64, reach=128),
    Case(8, 2, 256, cap=50.0, rounded=True),
    Case(4, 8, 512),
    *(Case(2, 8, 64, pool) for pool in ("mxint8", "mxfp8e4m3", "fp8e4m3")),
    Case(1, 4, 128, "mxint8"),
    Case(8, 8, 256, "mxint8"),
    *(Case(2, 8, 64, pool, bits=16) for pool in ("f32", "mxint8")),
    Case(2, 8, 128, bits=16),
    Case(8, 2, 256, cap=50.0, rounded=True, bits=16),
    replace(LONG, bits=16),
]


def each(cases: Mapping[str, Sequence[Case]]) -> pytest.MarkDecorator:
    """Parametrize a test with the cases of each GPU."""
    pairs = [(target, case) for target, own in cases.items() for case in own]
    return pytest.mark.parametrize(("target", "case"), pairs, ids=str)


each_case, each_seen = each(BY_TARGET), each(SEEN)

#: Runs of one call, as (tokens, positions before): decoded tokens over one or several pieces of
#: keys, a prompt, and parts of prompts. They share a call because the simulator runs waves in
#: lockstep.
LENGTHS = [
    *[(1, before) for before in (600, 0, 63, 255, 256, 513, 5)],
    *[(5, 254), (3, 125), (35, 0), (9, 250)],
]
#: Fewer runs for the tests with infinite or NaN numbers, and for long rows: kernels handle such
#: keys one by one, which takes time.
FEW = [(1, 300), (3, 125), (20, 0)]

Attend = Callable[[str, Case, Inputs], NDArray[Any]]


@pytest.fixture(scope="module")
def compiled(watched: Callable[..., Any]) -> Callable[[str], Any]:
    """Return a function that compiles all cases of a GPU, once."""

    @functools.cache
    def compile_all(target: str) -> Any:
        return watched(program(BY_TARGET[target]).decode(), target=target)

    return compile_all


@pytest.fixture(scope="module")
def attend(compiled: Callable[[str], Any]) -> Attend:
    """Return a function that runs a case, and asserts that the sanitizer finds nothing."""

    def call(target: str, case: Case, given: Inputs) -> NDArray[Any]:
        made = compiled(target)
        made.seen.clear()
        result = made.model.call(str(case), *given.arrays)
        assert made.seen
        assert all(k.name.startswith("mxc_attention") for k, _ in made.seen)
        assert not [finding for _, sanitizer in made.seen for finding in sanitizer.findings]
        shape = (*given.queries.shape[:3], case.mixed)
        return np.asarray(result).astype(np.float32).reshape(shape)

    return call


@pytest.mark.parametrize(
    ("case", "products"),
    [(CASES[0], 3), (replace(CASES[0], bits=16), 2), (replace(CASES[2], bits=16), 6)],
    ids=str,
)
def test_the_report_counts_the_products_of_parts(case: Case, products: int) -> None:
    with new_context():
        module = with_kernels(program([case]).decode(), "gfx950")
        first, *_ = dispatches(module.operation)
        read = read_pool(first.op)
        assert read is not None
        assert read.products == products


@each_case
def test_rows_of_runs(target: str, case: Case, attend: Attend) -> None:
    given = draw(case, [(1, 600), *FEW] if case.latent == LONG.latent else LENGTHS)
    check(attend(target, case, given), case, given)


@each_seen
def test_what_no_row_sees_may_be_anything(target: str, case: Case, attend: Attend) -> None:
    """Keys to come, after the window, pages of others."""
    given = draw(case, LENGTHS if case in CASES[:2] else FEW)
    poisoned = replace(given, pool=given.pool.copy())
    poisoned.pool[~_used(case, given)] = np.nan
    poisoned.pool[~_used(case, given), :, ::3] = -np.inf
    check(attend(target, case, poisoned), case, given)


def _used(case: Case, given: Inputs) -> NDArray[np.bool_]:
    """Return whether any row sees a position of an entry of a page, [N, E, B]."""
    found = np.zeros(given.pool.shape[:3], bool)
    for entry in {KEYS, case.values}:
        found[:, entry] = seen(case, given)
    return found


@each_seen
def test_bits_of_a_row_are_its_own(target: str, case: Case, attend: Attend) -> None:
    """A prompt at once, in parts that divide its tokens anyhow, in company, token by token."""
    given = draw(case, [(20, PIECE_KEYS - 9), (2, 530)], seed=2)
    whole = attend(target, case, given)
    assert np.isfinite(whole).all()
    # Attention writes no pages: runs of one call may be parts of one sequence.
    parts = [(1, 0, 1), (0, 0, 7), (0, 19, 1), (1, 1, 1), (0, 8, 1), (0, 0, 20)]
    rows = np.concatenate(
        [given.runs[run, 0] + np.arange(first, first + count) for run, first, count in parts]
    )
    found = attend(target, case, given.some(case, parts))
    np.testing.assert_array_equal(found.view(np.int32), whole[rows].view(np.int32))


@each({"gfx950": APART, "gfx942": PLAIN[:2]})
def test_a_key_spoils_the_rows_that_see_it_alone(target: str, case: Case, attend: Attend) -> None:
    """Rows that do not see it have the same bits as without it."""
    poison = np.inf if case.pool == "f32" else np.nan
    given = draw(case, [(5, 60), (1, 290)])
    found = attend(target, case, given)
    wanted, bound = expected(case, given)
    allowed = bound + 2.0**-8 * np.abs(wanted) * case.rounded
    for run, key in ((0, 62), (1, 285)):
        rows, positions = given.rows_of(run), given.positions[given.rows_of(run)]
        sees = np.array([case.first_seen(p) <= key <= p for p in positions])
        spoiled = replace(given, pool=given.pool.copy())
        page, place = given.place(run, key)
        spoiled.pool[page, VALUES, place, :, 5] = poison
        after = attend(target, case, spoiled)
        assert not np.isfinite(after[rows][sees][..., 5]).any()
        # Other elements of these rows are as precise as before; rows that do not see the value are
        # unchanged.
        other = np.delete(after, 5, axis=-1)
        assert (np.abs(other - np.delete(wanted, 5, axis=-1)) <= np.delete(
            np.broadcast_to(allowed, wanted.shape), 5, axis=-1)).all()  # fmt: skip
        same = np.ones(len(after), bool)
        same[np.arange(len(after))[rows][sees]] = False
        np.testing.assert_array_equal(after[same].view(np.int32), found[same].view(np.int32))
        spoiled.pool[page, KEYS, place, :, 1] = np.nan
        after = attend(target, case, spoiled)
        assert np.isnan(after[~same]).all()
        np.testing.assert_array_equal(after[same].view(np.int32), found[same].view(np.int32))


@pytest.mark.parametrize("lengths", [[(20, 0)], [(1, 290)]], ids=["a prompt", "a token"])
@pytest.mark.parametrize("target", BY_TARGET)
def test_a_value_without_weight_is_not_there(
    target: str, lengths: list[tuple[int, int]], attend: Attend
) -> None:
    """A key so far below the others that its weight is zero: its value may be infinite."""
    case = CASES[0]
    given = draw(case, lengths)
    given.queries[:] = np.abs(given.queries)
    # The first token sees only the first key; for later tokens its weight is zero.
    page, place = given.place(0, 0)
    given.pool[page, KEYS, place] = -60000.0
    given.pool[page, VALUES, place] = 1.0
    given.sinks[:] = 2.0
    check(attend(target, case, given), case, given)
    infinite = replace(given, pool=given.pool.copy())
    infinite.pool[page, VALUES, place] = np.inf
    check(attend(target, case, infinite), case, given)


@each_seen
def test_without_sinks(target: str, case: Case, attend: Attend) -> None:
    """Heads without one, beside heads whose sink takes all of the weight."""
    given = draw(case, [(3, 254), (1, 300)])
    given.sinks.flat[:] = np.resize([-np.inf, 60.0], given.sinks.size)
    check(attend(target, case, given), case, given)


def test_pages_beyond_two_gigabytes_are_reached(attend: Attend) -> None:
    target, case = "gfx950", CASES[0]
    small = draw(case, [(1, 70), (2, 0)])
    far = 44000
    pool = np.zeros((far + len(small.pool), *small.pool.shape[1:]), small.pool.dtype)
    assert pool.nbytes > 1 << 31
    pool[far:] = small.pool
    given = replace(small, pool=pool, lists=small.lists + far)
    check(attend(target, case, given), case, given)


@pytest.mark.parametrize("target", BY_TARGET)
def test_registers_are_enough(
    target: str, compiled: Callable[[str], Any], resources: Callable[[str, str], dict[str, Any]]
) -> None:
    """No spills where two tiles of rows, long heads, or parts of them fill registers, nor in what
    the other tests run."""
    large = [case for case in LARGE if case not in BY_TARGET[target]]
    found = resources(program(large).decode(), target)
    kernels: dict[Any, Any] = {}
    for use, cases in ((found, large), (compiled(target).resources, BY_TARGET[target])):
        own = {name: each for name, each in use.items() if name.startswith("mxc_attention")}
        assert len(own) >= 2 * len(cases)
        kernels |= own
    assert not [name for name, use in kernels.items() if use.spills or use.scratch_bytes]
