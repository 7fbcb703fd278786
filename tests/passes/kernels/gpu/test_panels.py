"""Kernels that read weights in panels, on the simulator with its sanitizer, against numpy.

Adjacent lanes read adjacent bytes, so that loads make fewer requests, which the simulator counts.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.passes.kernels.gpu.rings import (
    ACROSS,
    E4M3,
    F4,
    NVFP4,
    SQUARE,
    Case,
    Compiled,
    compiler,
    simulate,
)

_STREAM = Case(F4, F4, 20, 100, 1056, waves=(1, 1, 2), transport="stream", panels=True)
_FLOATS = Case("bf16", F4, 70, 100, 1088, waves=SQUARE, k_steps=1, stages=3, panels=True)
_DECODED = replace(_FLOATS, lhs=NVFP4, rhs=NVFP4, k=768, stages=2, transport="decoded")
#: Every kind of kernel, with elements of 4 and 8 bits; columns that do not fill panels; experts,
#: each of which begins with a panel of its own; splits of K.
CASES = [
    _STREAM,
    replace(_STREAM, lhs=E4M3, rhs=E4M3, n=33, k=544),
    replace(_STREAM, lhs="bf16", rhs=F4, m=3, n=36),
    replace(_STREAM, lhs="bf16", rhs="mxint8", m=4, k=544),
    replace(_STREAM, m=12, n=36, groups=3, experts=2, share=4),
    # Rings, with weights straight to registers and through LDS.
    Case(F4, F4, 128, 100, 544, tiles=(1, 2), panels=True),
    Case(F4, F4, 70, 200, 544, tiles=(2, 1), waves=ACROSS, panels=True),
    Case(E4M3, E4M3, 40, 68, 1184, waves=ACROSS, panels=True),
    Case("mxfp6e2m3", F4, 64, 68, 768, stages=3, panels=True),
    Case(F4, E4M3, 64, 64, 1024, stages=3, panels=True),
    Case(F4, F4, 68, 36, 512, groups=3, experts=2, share=4, panels=True),
    Case(F4, F4, 260, 100, 2048, tiles=(1, 2), splits=4, panels=True),
    Case(E4M3, E4M3, 64, 68, 2048, waves=ACROSS, splits=2, panels=True),
    _FLOATS,
    replace(_FLOATS, rhs=E4M3, tiles=(2, 1), splits=2),
    _DECODED,
    replace(_DECODED, lhs="bf16", rhs="mxint8", k=1024, splits=2),
]
OF_GFX942 = [
    replace(_STREAM, lhs="bf16", target="gfx942"),
    replace(_STREAM, lhs=E4M3, rhs=E4M3, n=52, target="gfx942"),
    replace(_DECODED, lhs="bf16", rhs=F4, target="gfx942"),
    replace(_DECODED, lhs=E4M3, rhs=E4M3, n=68, tiles=(2, 1), target="gfx942", splits=2),
]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Case], Compiled]:
    """Return a function that compiles the kernel of a case once."""
    first = compiler(CASES)
    second = compiler(OF_GFX942, "gfx942")
    return lambda case: (second if case in OF_GFX942 else first)(case)


@pytest.mark.parametrize("case", [*CASES, *OF_GFX942], ids=str)
def test_as_numpy_and_clean(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    run = simulate(case, compiled(case).kernel)
    error = np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max()
    assert error < (5e-6 if case.lhs == "bf16" else 1e-6)
    assert not run.sanitizer.findings
    if case.transport == "ring":
        assert run.counter.counts.bank_conflicts == 0


@pytest.mark.parametrize(
    ("panels", "most"),
    [
        # With one row, its own load is one request for four lanes, too; scales are in rows.
        (replace(_STREAM, m=1, n=64, k=2048, waves=(1, 1, 4)), 0.4),
        (replace(_STREAM, lhs="bf16", m=1, n=64, k=2048, waves=(1, 1, 4)), 0.5),
        (Case(F4, F4, 128, 128, 1024, tiles=(4, 2), waves=ACROSS, panels=True), 0.6),
    ],
    ids=["f4 x f4", "bf16 x f4", "ring"],
)
def test_requests_are_fewer(
    panels: Case, most: float, compiled: Callable[[Case], Compiled]
) -> None:
    rows = replace(panels, panels=False)
    runs = [simulate(case, compiled(case).kernel) for case in (panels, rows)]
    few, many = (run.counter.counts for run in runs)
    assert few.memory_read == many.memory_read
    assert few.requests < most * many.requests
