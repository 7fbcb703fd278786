"""The schedules that the cost model chooses, and their estimated clocks, against a record.

    python -m tests.passes.kernels.gpu.test_recorded_choices      records them again

No choice is right or wrong, but an unintended change may make a kernel slower, and no test of
results finds it. After an intended change, record the choices again and look at the difference;
benchmarks/gpu/matrix.py shows what the kernels become.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from mxc.passes.kernels.gpu.choice import choose, choose_by_rows
from mxc.passes.kernels.gpu.cost import cost
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.amd import GFX950, GPUS
from mxc.targets.gpu import Gpu

RECORD = Path(__file__).with_name("recorded_choices.json")
ROWS = (1, 16, 100, 512, 4096)
#: Columns and blocks of 32 along K.
SHAPES = ((512, 90), (5760, 90), (8192, 256))


#: Columns and blocks of products whose sums f32 scales multiply: o and up of DeepSeek-R1, and up of
#: a small expert.
SHAPES_OF_SUMS = ((7168, 512), (4096, 224), (512, 64))


class Pair(NamedTuple):
    """The formats of both sides of a product, as fields of Problem.

    `bits`: those of an element. `parts`: number of floats as whose sum an element of lhs is
    multiplied; 0: sides stay packed. `integers`: whether elements are integers. `shared`: blocks of
    32 under one f32 scale; 0: no f32 scales. `one_scale`: whether 128 columns share scales of rhs.
    """

    name: str
    bits: tuple[int, int]
    parts: int
    integers: tuple[bool, bool] = (False, False)
    shared: tuple[int, int] = (0, 0)
    one_scale: bool = False


FLOATS = (
    Pair("bf16 x f4", (16, 4), 1),
    Pair("f32 x f8", (32, 8), 3),
    Pair("bf16 x int8", (16, 8), 1, (False, True)),
    Pair("bf16 x bf16", (16, 16), 1),
)
#: Pairs that a scaled instruction multiplies, and the same pairs where they are decoded.
SCALED = (Pair("f4 x f4", (4, 4), 0), Pair("f6 x f8", (6, 8), 0))
DECODED = (Pair("f4 x f4", (4, 4), 1), Pair("f6 x f8", (6, 8), 1))
#: Pairs whose sums f32 scales multiply: for 128, 64 and 32 elements, and for squares.
SUMS = (
    Pair("bf16 x fp8 of 128", (16, 8), 1, shared=(0, 4)),
    Pair("bf16 x fp8 of squares", (16, 8), 1, shared=(0, 4), one_scale=True),
    Pair("bf16 x int4 of 128", (16, 4), 1, (False, True), (0, 4)),
    Pair("bf16 x int4 of 64", (16, 4), 1, (False, True), (0, 2)),
    Pair("bf16 x int4 of 32", (16, 4), 1, (False, True), (0, 1)),
    Pair("f32 x int8 of 32", (32, 8), 3, (False, True), (0, 1)),
    Pair("fp8 of 128 x fp8 of squares", (8, 8), 0, shared=(4, 4), one_scale=True),
    Pair("f8 x fp8 of 128", (8, 8), 0, shared=(0, 4)),
)


def choices() -> dict[str, str]:
    """Return the schedule that is chosen for each problem, with its estimated clocks."""
    found = {}
    for gpu in GPUS:
        pairs = (*FLOATS, *DECODED, *(SCALED if gpu.matrix.takes(4, 4) else ()))
        # No kernel for WMMA has f32 scales.
        known = SUMS if gpu.matrix.family == "mfma" else ()
        sums = [pair for pair in known if pair.parts or gpu.matrix.takes(8, 8)]
        products = (*product(pairs, SHAPES, ROWS), *product(sums, SHAPES_OF_SUMS, ROWS))
        for pair, (columns, blocks), m in products:
            problem = Problem(
                rows=m, columns=columns, blocks=blocks, bits=pair.bits, parts=pair.parts,
                integers=pair.integers, shared=pair.shared, one_scale=pair.one_scale,
                splits=() if pair.bits[1] > 8 else splits(blocks),
            )  # fmt: skip
            how = "decoded" if pair in DECODED else "as they are"
            name = f"{gpu.name}: {pair.name} {how}, {m} x {columns} x {32 * blocks}"
            found[name] = described(problem, choose(problem, device=gpu), gpu)
            if pair in (*SCALED, FLOATS[0]):
                packed = replace(problem, panels=True)
                found[f"{name}, in panels"] = described(packed, choose(packed, device=gpu), gpu)
    return found | dict(by_rows())


def splits(blocks: int) -> tuple[int, ...]:
    """Return the numbers of splits that K may have."""
    return tuple(n for n in range(2, 17) if blocks % n == 0 and blocks // n >= 8)


def by_rows() -> Iterator[tuple[str, str]]:
    """Yield the choices for products whose rows come with the call, with and without experts, and
    with and without a gate that joins two halves."""
    for pair, experts, halves in product((*FLOATS[:1], *SCALED), (0, 32), (1, 2)):
        problem = Problem(
            rows=1, columns=5760, blocks=90, bits=pair.bits, parts=pair.parts, halves=halves,
            groups=32 if experts else 1, experts=experts, width=5760 // halves,
            splits=() if experts else splits(90),
        )  # fmt: skip
        found = choose_by_rows(problem, chosen_experts=experts > 0)
        parts = [described(replace(problem, rows=64), each, GFX950) for each in found.schedules]
        pairs = zip(found.bounds, parts[1:], strict=True)
        later = [f"from {bound} rows on {part}" for bound, part in pairs]
        name = f"{GFX950.name}: {pair.name}, any rows, {experts} experts, {halves} halves"
        yield name, "; ".join([parts[0], *later])


def described(problem: Problem, schedule: GpuSchedule, gpu: Gpu) -> str:
    """Return the description of a schedule and its estimated clocks."""
    tiles, waves = ("x".join(map(str, each)) for each in (schedule.tiles, schedule.waves))
    text = f"{schedule.transport} of {schedule.instruction.rows}, tiles {tiles}, waves {waves}"
    if schedule.transport != "stream":
        text += f", {schedule.stages} stages of {schedule.k_steps}"
    if schedule.splits > 1:
        text += f", {schedule.splits} splits"
    return f"{text}: {cost(problem, schedule, gpu):.0f} clocks"


def test_choices_are_those_that_are_recorded() -> None:
    recorded, found = json.loads(RECORD.read_text()), choices()
    changed = {
        name: (recorded.get(name), found.get(name))
        for name in {**recorded, **found}
        if recorded.get(name) != found.get(name)
    }
    if changed:
        name, (before, after) = next(iter(changed.items()))
        pytest.fail(
            f"{len(changed)} choices are not those of {RECORD.name}; the first is {name}:\n"
            f"  recorded {before}\n  chosen   {after}\n"
            f"If this is meant: python -m {__spec__.name}"
        )


if __name__ == "__main__":
    RECORD.write_text(json.dumps(choices(), indent=0) + "\n")
