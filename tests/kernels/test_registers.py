"""Kernels on vector registers in the interpreter, without IREE: every kind of product and width of
registers, sizes that do not fit tiles, experts, every format, extreme scales.

Activations in bytes are integers times a unit. They have a scale for as many elements as a scale of
the weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import pytest

from mxc.formats.formats import block_format
from mxc.kernels.decode import BF16, F32, element_of
from mxc.kernels.language import Body, Chains, Do, Element, For, Kernel
from mxc.kernels.layout import layout
from mxc.kernels.vectors import VectorPlan, scheduled, steps
from tests.kernels.nest_edits import edited, without

UNTOUCHED = -7.0
I8 = Element("i8", 8, np.int8)
F16 = Element("f16", 16, np.float16)
CHAINS = Chains(12, 26)
TYPES = {"floats": F32, "pairs": BF16, "quads": I8}


@dataclass(frozen=True)
class Case:
    """A contraction (the arguments of `problem` in conftest.py) and the plan of its kernel.

    `scaled`: whether activations have scales.
    """

    format: str
    shape: tuple[int, int, int]
    plan: VectorPlan
    more: dict[str, Any]
    scaled: bool = False


def case(format: str, shape: tuple[int, int, int], kind: str, lanes: int = 16, **more: Any) -> Case:
    """Return a case. `more`: fields of the plan (`rows`, `rests`, `chains`, `staged`, `rounded`,
    `blocks`, `workgroup`, `excess`), then arguments of `problem`."""
    weights = TYPES[kind]
    excess = more.pop("excess", 0)
    if excess:
        weights = Element("u8", 8, np.uint8, excess=excess)
    rows, columns, sorted = shape[0], shape[1], more.get("choice") == "sorted"
    height = more.pop("rows", 4)
    rests = more.pop("rests", (rows % height,) if rows % height else ())
    known = {"lanes": lanes, "columns": 2 * lanes // more.get("halves", 1), "ahead": 64}
    known |= {name: more.pop(name) for name in ("staged", "rounded", "blocks") if name in more}
    plan = VectorPlan(
        cast(Literal["pairs", "quads", "floats"], kind), rows=height, rests=rests,
        weights=weights, chains=more.pop("chains", CHAINS),
        rows_a_workgroup=None if sorted else more.pop("workgroup", 8), **known,
    )  # fmt: skip
    assert columns > 0
    return Case(format, shape, plan, more, more.pop("scaled", kind == "quads"))


CASES = {
    "one row, floats": case("mxfp4", (1, 32, 64), "floats", rows=1),
    "a tile, pairs": case("mxfp4", (4, 32, 64), "pairs"),
    "bytes without a sign": case("mxfp4", (4, 32, 64), "quads", excess=12),
    "bytes with a sign": case("mxfp4", (4, 32, 64), "quads", 4),
    "ragged rows and columns": case("mxfp4", (11, 40, 96), "pairs"),
    "one register more": case("mxfp4", (3, 48, 96), "pairs"),
    "rows that come with the call": case("mxfp4", (13, 40, 96), "pairs", count=None, rests=(2, 1)),
    "eight lanes": case("mxfp4", (5, 40, 64), "floats", 8),
    "four lanes": case("mxfp6e2m3", (5, 40, 64), "floats", 4),
    "decoded once": case("mxfp8e4m3", (11, 40, 160), "floats", staged=96),
    "decoded once, rows that come with the call": case(
        "mxfp8e4m3", (15, 40, 160), "floats", staged=96, count=None, rests=(2, 1)
    ),
    "decoded once, scaled": case("mxfp8e4m3", (11, 40, 160), "pairs", staged=64, scaled=True),
    "rounded": case("mxfp4", (5, 40, 64), "floats", rounded=True),
    "a gate": case("mxfp4", (5, 48, 64), "pairs", halves=2),
    "blocks": case("mxfp4", (5, 64, 64), "pairs", blocks=True, together=32),
    "a gate, blocks": case("mxfp4", (5, 64, 64), "quads", 8, halves=2, blocks=True, together=32),
    "chosen experts": case(
        "mxfp4", (5, 24, 64), "pairs", choice="chosen", experts=3, groups=4, share=1
    ),
    "groups of their own": case("mxfp4", (5, 24, 64), "quads", choice="own", experts=3, groups=3),
    "sorted rows": case(
        "mxfp4", (50, 24, 64), "pairs", choice="sorted", experts=4, groups=4, rests=(2,),
        copied=False, chains=Chains(1, 26),
    ),
    "scales of 64": case("mxfp4", (5, 20, 128), "pairs", block=64),
    "nvfp4": case("nvfp4", (5, 20, 96), "pairs", step=16),
    "mxfp6e2m3": case("mxfp6e2m3", (5, 20, 96), "quads", excess=60),
    "mxfp6e3m2": case("mxfp6e3m2", (5, 20, 96), "floats"),
    "mxfp8e5m2": case("mxfp8e5m2", (5, 20, 96), "floats"),
    "mxint8": case("mxint8", (5, 20, 96), "quads", excess=128),
    "bf16 pairs": case("bf16", (2, 20, 96), "pairs", rows=2),
    "bf16 floats": case("bf16", (2, 20, 96), "floats", rows=2),
}  # fmt: skip


def built(draw: Any, each: Case) -> tuple[Any, VectorPlan]:
    """Draw a problem with activations in the form that the kernel of the case reads."""
    more = dict(each.more)
    sizes = {"rows": more.pop("count")} if "count" in more else {}
    found = draw(each.format, *each.shape, **more, **sizes)
    contraction, step = found.contraction, found.contraction.step
    rng = np.random.default_rng(4)
    rows, depth = found.x.shape
    plan, kind = each.plan, each.plan.kind
    unit = 1.0
    weights = contraction.weights
    if kind == "quads":
        known = block_format(each.format).element
        unit = known.min_positive
        weights = element_of(known, unit)
    if kind == "floats":
        found.x = rng.normal(size=(rows, depth)).astype(np.float32)
    activations = {"floats": F32, "pairs": BF16, "quads": I8}[kind]
    given = found.x
    if each.scaled:
        scales = rng.uniform(0.5, 2, (rows, depth // step)).astype(np.float32)
        if kind == "quads":
            given = rng.integers(-128, 128, (rows, depth)).astype(np.int8)
        wide = given.reshape(rows, -1, step).astype(np.float64)
        found.x = (wide * scales[..., None]).reshape(rows, depth)
        found.extra = {"SA": (scales * unit).astype(np.float32)}
        found.extra["OA"] = (-plan.weights.excess * wide.sum(axis=2)).astype(np.int32)
    else:
        found.extra = {}
    if contraction.choice == "sorted" and not contraction.copied:
        given = np.empty_like(given)
        given[found.order] = found.x
    found.given = given
    found.contraction = replace(
        contraction, activations=activations, weights=weights, scaled=each.scaled
    )
    return found, plan


def run(problem: Any, kernel: Any) -> Any:
    """Interpret a kernel on activations in the form that it reads; return its results."""
    values, problem.x = problem.x, problem.given
    step = problem.contraction.step
    for name, numbers in problem.extra.items():
        if name in kernel.arrays:
            problem.memory[name] = np.ascontiguousarray(numbers).reshape(-1)
    assert all(kernel.arrays[n].grain == {"k": step} for n in ("SA", "OA") if n in kernel.arrays)
    found = problem.run(kernel)
    problem.x = values
    return found


@pytest.mark.parametrize("name", CASES)
def test_every_step_of_the_schedule_computes_the_definition(draw: Any, name: str) -> None:
    problem, plan = built(draw, CASES[name])
    c = problem.contraction
    wanted = problem.wanted
    if plan.rounded:
        assert problem.scales is not None
        with np.errstate(over="ignore"):
            problem.weights = problem.weights.astype(np.float16).astype(np.float64)
        wanted = problem.wanted
    size = np.abs(problem.x.astype(np.float64)) @ np.abs(problem.weights).max(axis=(0, 1))
    for what, kernel in steps(c, plan):
        found = run(problem, kernel)
        assert (found[problem.rows :] == UNTOUCHED).all(), what
        error = np.abs(found[: problem.rows, : c.columns] - wanted)
        if plan.rounded and what == "what is computed":
            continue
        assert (error <= 3 * 2.0**-20 * size.max()).all(), (what, error.max() / size.max())


def is_right(problem: Any, kernel: Any) -> bool:
    """Return whether results are within the roundings of their terms, and nothing else is
    written."""
    c, wanted = problem.contraction, problem.wanted
    x, weights = np.abs(problem.x.astype(np.float64)), np.abs(problem.weights)
    size = np.einsum("rk,rnk->rn", x, weights[problem.ids])
    with np.errstate(invalid="ignore"):
        try:
            found = run(problem, kernel)
        except IndexError:
            return False
    error = np.abs(found[: problem.rows, : c.columns] - wanted)
    # Numbers below the least normal one become zero.
    tiny = x.sum(axis=1).max() * 6 * 2.0**-126
    return bool((error <= 1e-5 * size + tiny).all() and (found[problem.rows :] == -7).all())


@pytest.mark.parametrize("kind", ["pairs", "quads", "floats"])
@pytest.mark.parametrize("scales", [(0, 3), (1, 100), (200, 240)])
def test_scales_of_any_size(draw: Any, kind: str, scales: tuple[int, int]) -> None:
    problem, plan = built(draw, case("mxfp4", (4, 24, 128), kind, scales=scales))
    assert is_right(problem, scheduled(problem.contraction, plan))


def test_a_scale_of_nan_is_that_of_its_column(draw: Any) -> None:
    problem, plan = built(draw, CASES["ragged rows and columns"])
    problem.scales[0, 5, 1] = 255
    found = run(problem, scheduled(problem.contraction, plan))[: problem.rows]
    assert np.isnan(found[:, 5]).all()
    assert np.isfinite(np.delete(found, 5, axis=1)).all()


def changed(kernel: Kernel, name: str, **fields: Any) -> Kernel:
    """Return the kernel with other fields of an array."""
    return kernel.with_arrays(replace(kernel.arrays[name], **fields))


def in_order(kernel: Kernel) -> Kernel:
    """Fault: registers of weights have a plain layout, although codes are looked up in another
    order."""
    return changed(kernel, "W", layout=layout("k0 | n0 n1 n2 n3 | k1 k2 k3 k4"))


def without_a_start(kernel: Kernel) -> Kernel:
    """Fault: sums begin with zero, although the start should cancel the excess of each weight."""

    def begin(each: Do | For) -> Body:
        if isinstance(each, Do) and each.label == "S=":
            return (replace(each, op="zero", ins=()),)
        return (each,)

    return edited(kernel, begin)


def not_begun(kernel: Kernel) -> Kernel:
    """Fault: totals are not set to zero and begin with what registers hold."""
    return without(kernel, "T=0")


def chains_from_the_last_block(kernel: Kernel) -> Kernel:
    """Fault: the sums of a block are not set to zero before it."""
    return without(kernel, "S=0")


def rows_behind_the_end(kernel: Kernel) -> Kernel:
    """Fault: a tile stores rows past the end."""
    return changed(kernel, "Y", guards={"n": "masked"})


def columns_behind_the_end(kernel: Kernel) -> Kernel:
    """Fault: columns past the end are stored over the next row."""
    return changed(kernel, "Y", guards={"m": "masked"})


def scale_of_the_next_block(kernel: Kernel) -> Kernel:
    """Fault: a scale is read as if it were for 64 elements."""
    return changed(kernel, "SB", grain={"k": 64})


def one_slot(kernel: Kernel) -> Kernel:
    """Fault: the second register of columns has the slot of the first and overwrites it."""
    return changed(kernel, "W", slots={"n": 16})


def overwritten_early(kernel: Kernel) -> Kernel:
    """Fault: all chunks are decoded before the first one is multiplied."""

    def split(each: Do | For) -> Body:
        if isinstance(each, For) and (each.axis, each.by) == ("k", 96):
            decoded, multiplied = each.body
            return (replace(each, body=(decoded,)), replace(each, body=(multiplied,)))
        return (each,)

    return edited(kernel, split)


MUTATIONS: dict[Callable[[Kernel], Kernel], str] = {
    in_order: "a tile, pairs",
    without_a_start: "bytes without a sign",
    not_begun: "a tile, pairs",
    chains_from_the_last_block: "a tile, pairs",
    rows_behind_the_end: "decoded once, rows that come with the call",
    columns_behind_the_end: "decoded once",
    scale_of_the_next_block: "ragged rows and columns",
    one_slot: "decoded once",
    overwritten_early: "decoded once",
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.__name__)
def test_a_fault_is_found(draw: Any, mutation: Callable[[Kernel], Kernel]) -> None:
    problem, plan = built(draw, CASES[MUTATIONS[mutation]])
    kernel = scheduled(problem.contraction, plan)
    assert is_right(problem, kernel)
    assert not is_right(problem, mutation(kernel))
