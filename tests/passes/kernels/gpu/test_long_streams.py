"""Streams whose waves loop over several steps of K, on the simulator against numpy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.passes.kernels.gpu.rings import (
    E4M3,
    E4M3_F32,
    F4,
    INT4_F32,
    NVFP4,
    Case,
    compile_rings,
    require_no_scratch,
    simulate,
)

#: K is five steps for each of two waves, and part of a sixth.
LONG = Case("bf16", F4, 40, 80, 5728, (1, 1), (1, 1, 2), transport="stream")


@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
@pytest.mark.parametrize(
    "own",
    [
        {},
        {"tiles": (2, 4)},
        {"lhs": "f32", "rhs": E4M3, "tiles": (1, 2)},
        {"lhs": F4, "rhs": E4M3, "tiles": (2, 1)},
        {"lhs": NVFP4, "rhs": NVFP4, "tiles": (2, 1)},
        {"rhs": "mxint8", "tiles": (1, 2)},
        {"rhs": E4M3_F32, "k": 5760, "block": 128},
        {"rhs": INT4_F32, "block": 32, "tiles": (2, 1)},
    ],
    ids=str,
)
def test_products_over_several_steps(own: dict[str, Any], target: str) -> None:
    case = replace(LONG, **own, target=target)
    (compiled,) = compile_rings([case], target)
    require_no_scratch(compiled)
    run = simulate(case, compiled.kernel)
    assert np.abs(run.found - run.wanted).max() < 1e-6 * np.abs(run.wanted).max()
    assert not run.sanitizer.findings
