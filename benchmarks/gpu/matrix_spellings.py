"""Cases of the matrix in the forms of other projects: spellings of products and their epilogues.

The programs are those of the fuzzer (../fuzz/description.py), at shapes of models. Each group
varies one property: how a side is dequantized, the contracting operation and the layouts that it
reads, the accumulator, the epilogue, the result. The programs of ../fuzz/foreign.py are included.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from matrix_case import SHORT, Case

sys.path.append(str(Path(__file__).parents[1]))

from fuzz.description import (
    ACCUMULATORS,
    BROADCASTS,
    CONTRACTIONS,
    ELEMENTS,
    ENDINGS,
    EPILOGUES,
    FACTORS,
    FLAT,
    KINDS,
    LAYOUTS,
    STYLES,
    Program,
    Side,
    fault,
)
from fuzz.foreign import foreign
from fuzz.mlir import function
from fuzz.operands import constants

#: Rows, columns and depth: a layer of a model with rows that are no multiple of a tile.
_M, _N, _K = 100, 2880, 2880
#: Columns and depth if the weights are constants of the program.
_SMALL = 512
#: Formats of activations and weights for accumulators, epilogues and results.
_PAIRS = (("f4", "f4"), ("bf16", "f4"), ("e4m3", "f4"))
_PLAIN = Side(format="mxfp4", style="inline")
_SHORTER = {long: short for short, long in SHORT.items()}


def spelling_cases() -> Iterator[Case]:
    """Yield all cases that are programs in the forms of other projects."""
    yield from _dequantized()
    yield from _contracted()
    yield from _accumulated()
    yield from _finished()
    yield from _foreign()


def spelled(program: Program) -> bytes:
    """Return the text of a program. Its weights are parameters, or constants if it says so."""
    text = function(program, "main", constants(program, 0), parameters=True).text
    return text.encode()


def _case(name: str, group: str, program: Program) -> Case:
    left, right = (_SHORTER.get(side.format, side.format) for side in (program.lhs, program.rhs))
    return Case(
        name=name,
        group=group,
        m=-1 if program.dynamic else program.m,
        n=program.n,
        k=program.k,
        lhs=left,
        rhs=right,
        batch=program.batch,
        between=_between(program),
        spelled=program,
    )


def _between(program: Program) -> str:
    """Return the narrowest float type to which packed operands are dequantized."""
    kinds = [side.register for side in (program.lhs, program.rhs) if side.packed]
    return next((kind for kind in ("f16", "bf16") if kind in kinds), "f32")


def _program(lhs: str, right: Side, **more: Any) -> Program:
    """Describe a program. If both sides are packed, both are dequantized in the same way."""
    kind = SHORT.get(lhs, lhs)
    left = Side(format=kind)
    if left.packed:
        left = replace(right, format=kind, layout="nk", scales="nk", constant=False)
        if kind != "mxfp4":
            left = replace(left, elements="cast")
    found = Program(lhs=left, rhs=right, m=_M, n=_N, k=_K)
    return replace(found, **more)


def _dequantized() -> Iterator[Case]:
    """Each way to dequantize a weight; for mxfp4 with each way to decode elements and scales."""
    for name in ("mxfp4", "mxfp8e4m3", "nvfp4", "mxint8"):
        ways = itertools.product(ELEMENTS, FACTORS, BROADCASTS, STYLES)
        for elements, factor, broadcast, style in ways:
            if name != "mxfp4" and factor != "extf":
                continue
            side = Side(format=name, elements=elements, factor=factor, broadcast=broadcast,
                        style=style)  # fmt: skip
            program = _program("bf16", side)
            if not fault(program):
                way = f"{elements} {factor} {broadcast} {style}"
                yield _case(f"spelling {_SHORTER[name]} {way}", "spelling", program)
    for factor, broadcast, style in itertools.product(FACTORS, BROADCASTS, STYLES):
        side = Side(format="mxfp4", factor=factor, broadcast=broadcast, style=style)
        program = _program("f4", side)
        if not fault(program):
            yield _case(f"spelling f4xf4 {factor} {broadcast} {style}", "spelling", program)
    for kind, (lhs, name) in itertools.product(
        KINDS, (("f32", "mxfp4"), ("bf16", "mxfp8e4m3"), ("f16", "nvfp4"), ("f4", "mxfp4"))
    ):
        for style in ("inline", "stepwise"):
            broadcast = "floordiv" if style == "inline" else "unit"
            side = Side(format=name, kind=kind, style=style, broadcast=broadcast)
            program = _program(lhs, side)
            if not fault(program):
                yield _case(f"spelling {lhs}x{_SHORTER[name]} by {kind} {style}", "spelling",
                            program)  # fmt: skip


def _contracted() -> Iterator[Case]:
    """Each contracting operation on each layout of elements and of scales."""
    for op, layout, scales in itertools.product(CONTRACTIONS, LAYOUTS, LAYOUTS):
        side = Side(format="mxfp4", layout=layout, scales=scales)
        for lhs in ("bf16", "f4"):
            more = {"m": 1} if op in FLAT else {}
            more |= {"batch": 4} if op.startswith("batch") else {}
            program = _program(lhs, side, contraction=op, **more)
            if not fault(program):
                yield _case(f"contraction {lhs}xf4 {op} [{layout}] scales [{scales}]",
                            "contraction", program)  # fmt: skip


def _accumulated() -> Iterator[Case]:
    for accumulator, (lhs, _) in itertools.product(ACCUMULATORS, _PAIRS[:2]):
        program = _program(lhs, _PLAIN, accumulator=accumulator)
        yield _case(f"accumulator {accumulator} {lhs}xf4", "accumulator", program)
    for kind in ("bf16", "f16"):
        side = Side(format="mxfp4", kind=f"f32>{kind}")
        program = _program(kind, side, sum=kind)
        yield _case(f"accumulator of {kind} {kind}xf4", "accumulator", program)


def _finished() -> Iterator[Case]:
    """Epilogues, alone and in a chain, on scalars and on whole tensors; and each ending."""
    chains = [*((each,) for each in EPILOGUES),
              ("bias_bf16", "gelu_erf", "residual_bf16"),
              ("scalar", "bias_f32", "relu_maximumf", "square")]  # fmt: skip
    for (lhs, _), m, chain in itertools.product(_PAIRS, (1, _M, 1024), chains):
        program = _program(lhs, _PLAIN, epilogue=chain, m=m)
        yield _case(f"epilogue {' '.join(chain)} {lhs}xf4 M{m}", "after", program)
    for (lhs, _), whole in itertools.product(_PAIRS, ("bias_f32", "rows", "clamp", "square")):
        program = _program(lhs, _PLAIN, epilogue=(whole,), whole=True)
        yield _case(f"epilogue {whole} {lhs}xf4 on tensors", "after", program)
    for (lhs, _), m, ending in itertools.product(_PAIRS, (1, _M, 1024), ENDINGS[1:]):
        program = _program(lhs, _PLAIN, ending=ending, m=m)
        yield _case(f"result {ending} {lhs}xf4 M{m}", "after", program)
        if ending in ("bf16", "gate", "quantize") and m == _M:
            program = _program(lhs, _PLAIN, ending=ending, epilogue=("bias_f32", "silu"), m=m)
            yield _case(f"result {ending} after bias and SiLU {lhs}xf4 M{m}", "after", program)


def _foreign() -> Iterator[Case]:
    """The programs of fuzz/foreign.py. Those of its default shape get the shape of a model."""
    for each in foreign():
        program = each.program
        if (program.n, program.k) == (32, 128):
            size = _SMALL if program.rhs.constant else _N
            rows = _M if program.m == 5 else program.m
            program = replace(program, m=rows, n=size, k=size)
        yield _case(f"foreign {each.origin}: {each.name}", "foreign", program)
