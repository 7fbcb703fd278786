"""Rings with splits of K, on the simulator with its sanitizer, against numpy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.scaled import scaled_contraction
from mxc.passes.kernels.gpu.dense.chunks import STAGE
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.ring.dense_kernel import DenseRing
from mxc.passes.kernels.gpu.ring.split import split_side
from tests.passes.kernels.gpu.rings import (
    ACROSS,
    E2M3,
    E4M3,
    F4,
    NVFP4,
    SQUARE,
    Case,
    Compiled,
    compiler,
    floats,
    scaled,
    side,
    simulate,
)

_FLOATS = Case("bf16", F4, 70, 100, 1088, waves=SQUARE, k_steps=1, stages=3, splits=2)
_DECODED = Case(
    NVFP4, NVFP4, 70, 100, 768, waves=SQUARE, k_steps=1, stages=2, transport="decoded", splits=3
)
#: Every kind of ring; rows and columns that do not fill tiles; a row of lhs for several rows, a
#: scale for several blocks; splits with a cut stage, and splits of less than a chunk.
CASES = [
    Case(F4, F4, 260, 100, 2048, tiles=(1, 2), splits=4),
    Case(E4M3, E2M3, 40, 132, 1728, waves=ACROSS, splits=3),
    Case(F4, F4, 68, 36, 640, share=4, splits=2),
    Case(E4M3, E4M3, 64, 68, 2048, block=128, splits=8),
    _FLOATS,
    replace(_FLOATS, lhs="f32", rhs=E4M3, tiles=(2, 1), k=1536, stages=2, splits=6),
    _DECODED,
]
OF_GFX942 = [
    replace(_DECODED, lhs="bf16", rhs=F4, target="gfx942"),
    replace(_DECODED, lhs=E4M3, rhs=F4, n=68, tiles=(2, 1), target="gfx942", splits=2),
]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Case], Compiled]:
    """Return a function that compiles the kernel of a case once."""
    first = compiler(CASES)
    other = compiler(OF_GFX942, "gfx942")
    return lambda case: (first if case in CASES else other)(case)


@pytest.mark.parametrize("case", CASES + OF_GFX942, ids=str)
def test_as_numpy_and_clean(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    run = simulate(case, compiled(case).kernel)
    error = np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max()
    assert error < 1e-6
    assert not run.sanitizer.findings


@pytest.mark.parametrize("case", [CASES[0], CASES[4], OF_GFX942[0]], ids=str)
def test_what_waves_leave_goes_past_the_caches_of_a_die(
    case: Case, compiled: Callable[[Case], Compiled]
) -> None:
    """L2 is written back before a wave counts, and what the caches have is dropped after it."""
    text = compiled(case).assembly
    order = [
        text.index(name) for name in ("buffer_wbl2 sc1", "global_atomic_add", "buffer_inv sc1")
    ]
    assert order == sorted(order)
    assert "vmcnt(0)" in text[order[0] : order[1]]


def test_bits_are_those_of_any_order(compiled: Callable[[Case], Compiled]) -> None:
    case = CASES[0]
    first, second = (simulate(case, compiled(case).kernel).found for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("format", "k", "block", "splits"), [(F4, 96, 0, 2), (F4, 512, 128, 8), (E2M3, 96, 0, 3)]
)
def test_k_that_is_not_cut(format: str, k: int, block: int, splits: int) -> None:
    """Parts of a block, or of a scale, or a part that begins in the middle of a load."""
    with pytest.raises(ValueError, match=f"have no {splits} splits"):
        split_side(scaled(format, k // 32, block), splits)


def program() -> str:
    """Return a program with two products of the same rows, [70, 512] by [96, 512]. They must run
    one after the other, because they use the same counters."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        byte, bf16 = ir.IntegerType.get_signless(8), ir.BF16Type.get()
        weights = [
            ir.RankedTensorType.get([96, 16, 16], byte),
            ir.RankedTensorType.get([96, 16], byte),
        ]

        def body(x: ir.Value, *given: ir.Value) -> list[ir.Value]:
            f4, e8 = ir.Type.parse("f4E2M1FN"), ir.Type.parse("f8E8M0FNU")
            pairs = zip(given[::2], given[1::2], strict=True)
            return [scaled_contraction(x, unpack(w, f4), rhs_scale=unpack(s, e8)) for w, s in pairs]

        with ir.InsertionPoint(module.body):
            kinds = [ir.RankedTensorType.get([70, 16, 32], bf16), *weights, *weights]
            func.FuncOp.from_py_func(*kinds, name="both")(body)
        return str(module)


def test_products_count_one_after_the_other(watched: Callable[..., Any]) -> None:
    fields = {"instruction": 32, "tiles": [1, 1], "waves": [2, 2, 1], "transport": "ring"}
    schedule = {"n": 96, "k": 512, "schedule": fields | {"stages": 3, "k_steps": 1, "splits": 2}}
    made = watched(program(), [schedule])
    rng = np.random.default_rng(5)
    x, left = floats(rng, "bf16", 70, 512)
    sides = [side(rng, F4, 96, 512) for _ in range(2)]
    codes = [each.view(np.int8) for w, s, _ in sides for each in (w.reshape(96, 16, 16), s)]
    found = made.call("both", x.reshape(70, 16, 32), *codes, kernels=2)
    for result, (_, _, right) in zip(found, sides, strict=True):
        wanted = left @ right.T
        error = np.abs(result.view(np.float32).reshape(wanted.shape) - wanted).max()
        assert error < 1e-6 * np.abs(wanted).max()
    first, second = (each[0].name for each in made.seen)
    assert first == second


def test_dense_products_do_not_share_k() -> None:
    blocks, schedule = FloatBlocks("bf16", False, 8), _FLOATS.kernel.schedule
    dense = replace(schedule, instruction=TileInstruction(16), k_steps=STAGE, waves=(1, 4, 1))
    with pytest.raises(ValueError, match="bits of dense rows"):
        DenseRing(blocks, blocks, 1, 64, 64, 0, dense, decoded="bf16")


def test_experts_do_not_share_k() -> None:
    with pytest.raises(ValueError, match="of experts"):
        _ = replace(CASES[0], experts=2).kernel
