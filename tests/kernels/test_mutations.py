"""Faults in AMX kernels of the language: the interpreter finds each of them.

Each helper returns the kernel with one fault, which its docstring describes. Without a fault, the
results are right.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mxc.kernels.amx import scheduled
from mxc.kernels.decode import BF16, STEP
from mxc.kernels.language import Body, Do, For, Kernel, labels, statements
from mxc.kernels.layout import layout
from mxc.kernels.schedule import ScheduleRefused, decode, finish_early, keep, over, stage
from mxc.kernels.tiles import TILE_C
from tests.kernels.conftest import Problem
from tests.kernels.nest_edits import edited, without

ROWS, COLUMNS, DEPTH = 37, 40, 544


def in_order(kernel: Kernel) -> Kernel:
    """Activations are in plain order, although weights are looked up in another order along K."""
    plain = layout("k0 | k1 k2 k3 k4 | m0 m1 m2 m3")
    return kernel.with_arrays(replace(kernel.arrays["a"], layout=plain))


def one_slot(kernel: Kernel) -> Kernel:
    """Both panels of decoded weights have one slot, so that the second overwrites the first."""
    return kernel.with_arrays(replace(kernel.arrays["W"], slots={"n": 16}))


def overwritten_early(kernel: Kernel) -> Kernel:
    """A tile of the next chunk is decoded before the tile whose place it takes is multiplied."""

    def change(each: Do | For) -> Body:
        if isinstance(each, For) and len(each.body) > 1 and decodes(each.body[-1]):
            *multiplied, decoded = each.body
            return (replace(each, body=(decoded, *multiplied)),)
        return (each,)

    return edited(kernel, change)


def decodes(each: Do | For) -> bool:
    """Return whether a loop decodes a later chunk."""
    return isinstance(each, For) and any(later(do) for do in statements(each.body))


def later(each: Do | For) -> bool:
    """Return whether a statement decodes a later chunk."""
    return isinstance(each, Do) and each.op == "decode" and each.early is not None


def overwritten_by_the_first_rows(kernel: Kernel) -> Kernel:
    """The next chunk is decoded as soon as the first rows are multiplied, before other rows."""

    def change(each: Do | For) -> Body:
        if isinstance(each, Do) and later(each):
            assert each.early is not None
            return (replace(each, early=replace(each.early, last="g")),)
        return (each,)

    return edited(kernel, change)


def not_decoded(kernel: Kernel) -> Kernel:
    """Only the first chunk is decoded."""
    return edited(kernel, lambda each: () if later(each) else (each,))


def finished_before_the_last_chunk(kernel: Kernel) -> Kernel:
    """Results are stored before the sums of the last chunk are written back to scratch."""

    def change(each: Do | For) -> Body:
        if isinstance(each, For) and len(each.body) > 1:
            *added, stored, finished = each.body
            if isinstance(finished, For) and "Y=" in labels((finished,)) and isinstance(stored, Do):
                return (replace(each, body=(*added, finished, stored)),)
        return (each,)

    return edited(kernel, change)


def finished_for_the_last_rows(kernel: Kernel) -> Kernel:
    """Results are stored in the last iteration of a loop over columns instead of the last chunk."""

    def change(each: Do | For) -> Body:
        if isinstance(each, Do) and each.label == "Y=" and each.early is not None:
            return (replace(each, early=replace(each.early, last="n")),)
        return (each,)

    return edited(kernel, change)


def not_stored(kernel: Kernel) -> Kernel:
    """Sums of a chunk stay in registers and are not written back to scratch."""
    return edited(
        kernel, lambda each: () if isinstance(each, Do) and each.label == "T=" else (each,)
    )


def not_begun(kernel: Kernel) -> Kernel:
    """Sums are not set to zero and begin with what scratch holds."""
    return without(kernel, "T=0")


def rows_too_many(kernel: Kernel) -> Kernel:
    """The mask of rows has one row too many."""
    return replace(kernel, sizes={**kernel.sizes, "m": ROWS + 1})


def rows_too_few(kernel: Kernel) -> Kernel:
    """The mask of rows has one row too few."""
    return replace(kernel, sizes={**kernel.sizes, "m": ROWS - 1})


def scale_of_the_next_block(kernel: Kernel) -> Kernel:
    """A scale is read as if it were for 64 elements."""
    return kernel.with_arrays(replace(kernel.arrays["SB"], grain={"k": 64}))


MUTATIONS = [
    in_order,
    one_slot,
    overwritten_early,
    overwritten_by_the_first_rows,
    not_decoded,
    finished_before_the_last_chunk,
    finished_for_the_last_rows,
    not_stored,
    not_begun,
    rows_too_many,
    rows_too_few,
    scale_of_the_next_block,
]


def is_right(problem: Problem, kernel: Kernel) -> bool:
    """Return whether a kernel gives the right results and writes nothing else."""
    problem.sizes = {}
    try:
        found = problem.run(kernel)
    except IndexError:
        return False
    close = np.isclose(found[:ROWS, :COLUMNS], problem.wanted, rtol=1e-3, atol=1e-2 * SIZE)
    return bool(close.all() and (found[ROWS:] == -7).all())


#: Approximate magnitude of a result.
SIZE = 100.0


@pytest.fixture(scope="module")
def problem(draw: Callable[..., Problem]) -> Problem:
    return draw("mxfp4", ROWS, COLUMNS, DEPTH, scales=(125, 129))


def test_the_kernel_is_right(problem: Problem) -> None:
    assert is_right(problem, scheduled(problem.contraction))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_a_fault_is_found(problem: Problem, mutation: Callable[..., Any]) -> None:
    assert not is_right(problem, mutation(scheduled(problem.contraction)))


def test_steps_that_would_change_what_is_computed_are_refused(problem: Problem) -> None:
    kernel = problem.contraction.kernel
    with pytest.raises(ScheduleRefused, match="T=0 within the sum over k"):
        over(kernel, "k", 32, "T=0 T+=")
    with pytest.raises(ScheduleRefused, match="T\\+= stands between"):
        over(kernel, "m", 32, "T=0 Y=")
    with pytest.raises(ScheduleRefused, match="no statement W="):
        over(kernel, "k", 32, "W=")
    with pytest.raises(ScheduleRefused, match="wanted the widest first"):
        over(kernel, "m", 32, "T+=", rest=(32,))
    cut = over(kernel, "m", 48, "T+=")
    with pytest.raises(ScheduleRefused, match="steps of 32 in a tile of 48"):
        over(cut, "m", 32, "T+=")
    with pytest.raises(ScheduleRefused, match="no loop over k by 64"):
        keep(over(kernel, "k", 32, "T+="), "T", "t", ("k", 64), "tile", TILE_C)
    chunks = over(over(kernel, "k", 64, "T+="), "m", 32, "T+=")
    with pytest.raises(ScheduleRefused, match="no loop over m that adds what Y= reads, in k"):
        finish_early(over(chunks, "n", 16, "Y="), "Y=", ("k", 64), "m")
    with pytest.raises(ScheduleRefused, match="Y=: steps of 48 in 32"):
        finish_early(over(chunks, "m", 48, "Y="), "Y=", ("k", 64), "m")


def test_a_wrong_order_of_tiles_does_not_lower(problem: Problem) -> None:
    """Rows of tiles have to be side by side: found when the addresses are derived."""
    from mxc.kernels.lowering.memory import row_stride
    from mxc.kernels.tiles import tile_a

    kernel = decode(problem.contraction.kernel, "B", "SB", "W", BF16)
    weights = layout("k2 | n0 n1 n2 n3 | k1 k0 k3 k4")
    kernel = stage(kernel, "A", "a", "T+=", "tile", tile_a(weights))
    array = replace(kernel.arrays["A"], layout=layout("k0 k1 k2 k3 k4"))
    sizes = {"r": 64, "k": DEPTH}
    with pytest.raises(ValueError, match="not side by side"):
        row_stride(kernel, array, sizes, tile_a(weights))
    right = replace(array, layout=layout("k2 k1 k0 k3 k4"))
    assert row_stride(kernel, right, sizes, tile_a(weights)) == 2 * DEPTH
    assert STEP == 32
