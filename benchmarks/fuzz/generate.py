"""Random programs, in families with equal shapes and formats, so that equal parts compile once."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any, TypeVar

from fuzz.description import (
    ACCUMULATORS,
    BROADCASTS,
    CONTRACTIONS,
    ELEMENTS,
    ENDINGS,
    EPILOGUES,
    FACTORS,
    FLOATS,
    FORMATS,
    KINDS,
    LAYOUTS,
    STYLES,
    Program,
    Side,
    fault,
)

#: Programs of a family. They have one shape and one format of weights, and draw from two types of
#: activations and three epilogues.
FAMILY = 20
#: Sizes m, n and k / 32 of families. Repeated values are more likely.
_ROWS = (1, 1, 1, 2, 3, 4, 5, 9)
_COLUMNS = (16, 16, 16, 32, 7, 12, 20, 33)
_BLOCKS = (1, 1, 1, 2, 2, 3)
#: Formats of weights. The common ones are repeated, so that they are more likely.
_WEIGHTS = (*FORMATS, "mxfp4", "mxfp4", "mxfp4", "mxfp8e4m3", "nvfp4")

_Item = TypeVar("_Item")


def programs(seed: int, first: int, count: int) -> list[Program]:
    """Return `count` programs from number `first` on, of the endless sequence of a seed."""
    found: list[Program] = []
    for number in range(first // FAMILY, (first + count - 1) // FAMILY + 1):
        family = _family(random.Random(f"{seed} {number}"))
        start = max(first - number * FAMILY, 0)
        found += family[start : first + count - number * FAMILY]
    return found


def _family(rng: random.Random) -> list[Program]:
    m, n, blocks = rng.choice(_ROWS), rng.choice(_COLUMNS), rng.choice(_BLOCKS)
    weights = rng.choice(_WEIGHTS)
    activations = [rng.choice((*FLOATS, "f32", "bf16", weights, *FORMATS)) for _ in range(2)]
    after = [_after(rng) for _ in range(3)]
    found: list[Program] = []
    while len(found) < FAMILY:
        program = _program(rng, (m, n, blocks * 32), rng.choice(activations), weights,
                           rng.choice(after))  # fmt: skip
        if not fault(program):
            found.append(program)
    return found


def _after(rng: random.Random) -> dict[str, Any]:
    """Draw an epilogue and an ending, as fields of a program."""
    chain = [rng.choice(EPILOGUES) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    return {
        "epilogue": tuple(chain),
        "ending": _often(rng, ENDINGS, 0.5),
        "whole": rng.random() < 0.3,
    }


def _often(rng: random.Random, values: Sequence[_Item], share: float) -> _Item:
    """Return the first value with the probability `share`, else a random one."""
    return values[0] if rng.random() < share else rng.choice(values)


def _program(
    rng: random.Random, shape: tuple[int, int, int], lhs: str, rhs: str, after: dict[str, Any]
) -> Program:
    m, n, k = shape
    batch = rng.choice((0, 0, 0, 0, 2, 3))
    left = Side(format=lhs)
    right = _side(rng, rhs)
    if left.packed:
        # Mostly, both sides are written in the same way.
        left = dataclasses.replace(right, format=lhs, layout="nk", scales="nk", constant=False)
        if rng.random() < 0.3:
            left = dataclasses.replace(_side(rng, lhs), layout="nk", scales="nk", constant=False)
    registers = {left.register, right.register}
    low = registers.pop() if len(registers) == 1 and rng.random() < 0.4 else "f32"
    return Program(
        lhs=left,
        rhs=right,
        m=m,
        n=n,
        k=k,
        batch=batch,
        shared=bool(batch) and rng.random() < 0.3,
        dynamic=rng.random() < 0.12,
        contraction=rng.choice(CONTRACTIONS),
        accumulator=_often(rng, ACCUMULATORS, 0.3),
        sum=low,
        before=rng.random() < 0.1,
        swapped=rng.random() < 0.2,
        **after,
    )


def _side(rng: random.Random, name: str) -> Side:
    layout = _often(rng, LAYOUTS, 0.6)
    return Side(
        format=name,
        elements=_often(rng, ELEMENTS, 0.4),
        factor=rng.choice(FACTORS),
        broadcast=rng.choice(BROADCASTS),
        style=rng.choice(STYLES),
        kind=_often(rng, KINDS, 0.5),
        layout=layout,
        scales=layout if rng.random() < 0.8 else rng.choice(LAYOUTS),
        constant=rng.random() < 0.1,
    )
