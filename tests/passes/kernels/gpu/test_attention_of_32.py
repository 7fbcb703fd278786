"""Attention kernels of GPUs with waves of 32, run as MLIR by an interpreter, against float64.

The interpreter has the layouts of matrix instructions from documents (lane_interpreter.py). It runs
the attention kernel and the kernel that adds pieces up; the code that LLVM makes of them does not
run.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.dialects.attention import AttentionChunk
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import KERNEL
from mxc.passes.kernels.gpu.attention.shape import PIECE_KEYS, TAIL
from tests.passes.attention_cases import KEYS, PAGE, Case, Inputs, check, draw, program, seen
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels

TARGETS = ["gfx1201", "gfx1250", "gfx1151"]
#: Heads of less than a chunk of D, of whole chunks, and with a last chunk that is not full; queries
#: in registers and in LDS; windows, chunks, caps, latent values; values summed by one wave or two.
CASES = [
    Case(2, 8, 64, reach=50),
    Case(1, 3, 80, cap=3.0),
    Case(1, 20, 16, "f16", "bf16", reach=AttentionChunk(20), rounded=True),
    Case(1, 2, 256, latent=192),
    Case(1, 4, 128, "f32", "f16"),
    Case(2, 4, 64, "mxfp8e4m3"),
    Case(1, 4, 128, "mxint8"),
    Case(1, 4, 96, "fp8e4m3", reach=20),
    Case(2, 8, 64, bits=16),
    Case(1, 4, 128, "f32", bits=16),
]
#: Heads of published models, and the cases that take the most registers on gfx1250.
LARGE = [
    Case(2, 8, 64),
    Case(2, 8, 64, "mxint8"),
    Case(1, 5, 80),
    Case(2, 8, 128, "f32"),
    Case(2, 4, 128, "f16"),
    Case(2, 8, 256),
    Case(2, 2, 256, cap=50.0, reach=300, rounded=True),
    Case(2, 8, 256, "fp8e4m3"),
    Case(1, 8, 512),
    Case(1, 6, 576, "mxint8", latent=512),
    Case(1, 6, 576, latent=512, rounded=True),
    *(Case(2, 8, depth, bits=16) for depth in (64, 128, 256)),
    Case(1, 8, 512, bits=16),
    Case(1, 6, 576, "mxint8", latent=512, bits=16),
]
#: Decoded tokens and parts of prompts in one call, as (tokens, positions before).
LENGTHS = [(5, 254), (1, 520), (3, 29), (1, 0)]
each_target = pytest.mark.parametrize("target", TARGETS)
each_case = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def lowered(target: str, case: Case) -> ir.Module:
    """Return the MLIR of a case with its kernels."""
    with new_context():
        return with_kernels(program([case]).decode(), target)
    raise AssertionError("no kernels")


def attend(target: str, case: Case, given: Inputs, pieces: int) -> NDArray[np.float32]:
    """Interpret the kernels of a case and return its result. `pieces`: how many pieces of keys have
    waves of their own for decoded tokens."""
    queries, sinks, _, runs, pool, lists = given.arrays
    tokens, count = len(queries), len(runs)
    apart = count * pieces if pieces > 1 else 1
    rows = case.heads * case.group
    parts = np.full(apart * rows * (case.mixed + TAIL), np.nan, np.float32)
    kind = np.uint16 if case.rounded else np.float32
    result = np.full(tokens * rows * case.mixed, -1, np.int16).view(np.uint16)
    if not case.rounded:
        result = np.full(tokens * rows * case.mixed, np.nan, np.float32)
    flat = [
        np.ascontiguousarray(each).reshape(-1).view(np.uint8)
        for each in (queries, pool, sinks, runs, lists, parts, result)
    ]
    scalars = [tokens, count, lists.shape[1], len(pool), KEYS, case.values, pieces]
    module = lowered(target, case)
    with module.context:
        names = [
            ir.StringAttr(op.attributes["sym_name"]).value
            for op in module.body.operations
            if op.operation.name == KERNEL
        ]
        merging = next(name for name in names if name.endswith("_merged"))
        main = merging.removesuffix("_merged")
        lane_interpreter.run(module, flat, scalars, main)
        lane_interpreter.run(module, [flat[5], flat[2], flat[3], flat[6]], scalars, merging)
    found: NDArray[Any] = flat[6].view(kind)
    if case.rounded:
        found = (found.astype(np.uint32) << 16).view(np.float32)
    return found.reshape(*queries.shape[:3], case.mixed)


def pieces_of(given: Inputs) -> int:
    """Return the number of pieces of keys that the longest list of pages has."""
    return -(-given.lists.shape[1] * PAGE // PIECE_KEYS)


@each_target
@each_case
def test_rows_of_runs(case: Case, target: str) -> None:
    """The bits do not depend on what is computed apart."""
    given = draw(case, LENGTHS)
    found = attend(target, case, given, 1)
    check(found, case, given)
    apart = attend(target, case, given, pieces_of(given))
    np.testing.assert_array_equal(apart.view(np.int32), found.view(np.int32))


@each_target
def test_latent_rows_of_published_sizes(target: str) -> None:
    """Rows of DeepSeek-V2 and V3: four waves share out the values of a row."""
    case = Case(1, 3, 576, latent=512)
    given = draw(case, [(1, 40), (2, 5)])
    check(attend(target, case, given, 1), case, given)


@each_target
@pytest.mark.parametrize("case", [*CASES[:3], CASES[4], CASES[7]], ids=str)
def test_what_no_row_sees_may_be_anything(case: Case, target: str) -> None:
    given = draw(case, [(3, 30), (1, 40)])
    used = np.zeros(given.pool.shape[:3], bool)
    for entry in {KEYS, case.values}:
        used[:, entry] = seen(case, given)
    poisoned = replace(given, pool=given.pool.copy())
    poisoned.pool[~used] = np.nan
    poisoned.pool[~used, :, ::3] = -np.inf
    found = attend(target, case, poisoned, 1)
    check(found, case, given)
    same = attend(target, case, given, 1)
    np.testing.assert_array_equal(found.view(np.int32), same.view(np.int32))


@each_target
def test_bits_of_a_row_are_its_own(target: str) -> None:
    """A prompt at once, in parts that divide its tokens anyhow, in company, token by token."""
    case = CASES[0]
    given = draw(case, [(9, PIECE_KEYS - 4), (2, 270)], seed=2)
    whole = attend(target, case, given, 1)
    # Attention writes no pages, so the runs of one call may be parts of one sequence.
    parts = [(1, 0, 1), (0, 0, 7), (0, 8, 1), (1, 1, 1), (0, 3, 1)]
    rows = np.concatenate(
        [given.runs[run, 0] + np.arange(first, first + count) for run, first, count in parts]
    )
    some = given.some(case, parts)
    found = attend(target, case, some, pieces_of(some))
    np.testing.assert_array_equal(found.view(np.int32), whole[rows].view(np.int32))


@each_target
def test_a_key_that_is_infinite(target: str) -> None:
    """The rows that see it have what f32 has of it; others have the same bits as without it."""
    case = replace(CASES[0], pool="f32")
    given = draw(case, [(3, 10)])
    given.queries[:] = np.abs(given.queries)
    before = attend(target, case, given, 1)
    page, place = given.place(0, 12)
    given.pool[page, KEYS, place, :, 3] = -np.inf
    found = attend(target, case, given, 1)
    check(found, case, given)
    np.testing.assert_array_equal(found[:2].view(np.int32), before[:2].view(np.int32))


@each_target
def test_registers_are_enough(target: str, resources: Callable[[str, str], dict[str, Any]]) -> None:
    """Nothing goes to scratch memory, with queries in registers or in shared memory.

    Some scalar registers wait in lanes of vector registers, which count as spills.
    """
    found = resources(program([Case(2, 8, 64), Case(2, 8, 128)]).decode(), target)
    kernels = [use for name, use in found.items() if name.startswith("mxc_attention")]
    assert len(kernels) == 4
    assert {use.scratch_bytes for use in kernels} == {0}


def test_scalar_registers_are_enough_too(
    resources: Callable[[str, str], dict[str, Any]],
) -> None:
    """On gfx1250 nothing spills, masks of keys and values that are not finite among it."""
    found = resources(program(LARGE).decode(), "gfx1250")
    kernels = {name: use for name, use in found.items() if name.startswith("mxc_attention")}
    assert len(kernels) == 2 * len(LARGE)
    assert not [name for name, use in kernels.items() if use.spills or use.scratch_bytes]


@pytest.mark.parametrize("target", ["gfx1201", "gfx1250"])
def test_the_last_part_of_a_weight_is_rounded(target: str) -> None:
    """All keys but one have the same weight, and all values are 1. A weight whose bits after the
    first 16 are cut off is 2^-15 too small, and so is the result."""
    case = Case(1, 1, 16, bits=16)
    given = draw(case, [(1, 254)])
    # Choose the weight a little above 0.5 whose bits after the first 16 are the largest.
    lower = np.arange(2.0625, 2.75, 2.0**-6, dtype=np.float32)
    weights = np.exp(-lower.astype(np.float64) * case.scale).astype(np.float32)
    left = (weights.view(np.uint32) & 0xFF) * (weights.view(np.uint32) & 0xFF < 250)
    given.queries[...], given.sinks[...] = 0, -1000
    given.queries[..., 0] = 1
    given.pool[:, KEYS] = 0
    given.pool[:, KEYS, ..., 0] = -lower[left.argmax()]
    page, place = given.place(0, 0)
    given.pool[page, KEYS, place] = 0
    given.pool[:, case.values] = 1
    check(attend(target, case, given, 1), case, given)
