"""All schedules of a product give the same bits."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.passes.kernels.cpu.schedule import MOST
from tests import without_tiles
from tests.passes.kernels.conftest import Kernels

#: Tiles with a rest, one row, dense weights, weights decoded to memory or not, columns that need a
#: mask, sorted rows, integer activations, and a number of rows that comes with the call.
CASES = (
    "mxfp4 bf16 1x13x40x320",
    "mxfp4 f32 1x7x80x320",
    "bf16 bf16 1x5x80x64",
    "mxfp8e4m3 f32 1x9x17x320",
    "mxfp4 int8 1x7x33x288 plus",
    "mxfp4 bf16 1x1x80x320",
    "mxfp4 bf16 16x1x40x64 of 3",
)


#: Cases on tiles: more rows than a workgroup has, accumulators that stay in tiles along K, planes,
#: and sorted rows, of which an expert may have one.
ON_TILES = (
    "mxfp4 bf16 1x150x40x544",
    "mxfp8e4m3 bf16 1x20x33x544",
    "mxfp4 f32 1x37x80x544",
    "mxfp4 bf16 40x1x40x288 of 3",
)


@pytest.mark.parametrize(
    ("target", "cases"),
    # If this CPU has no tiles, both are on vector registers.
    [(without_tiles.TARGET, CASES), ("cpu", ON_TILES)],
    ids=["vectors", "tiles"],
)
def test_schedules_give_the_same_bits(
    target: str, cases: tuple[str, ...], kernels: Kernels, tmp_path: Path
) -> None:
    file, used = tmp_path / "schedules.json", defaultdict(set)
    first: dict[str, NDArray[np.int32]] = {}
    for number in [*range(0, MOST, 2), -1]:
        file.write_text(json.dumps([{"schedule": number}]))
        program = kernels(*cases, schedules=str(file), target=target)
        data = program.draw(exact=False)
        loaded = program.load(data.weights)
        for matmul in program.compiled.report["matmuls"]:
            used[matmul["kernel"]].add(matmul["schedule"])
        for name in cases:
            case = program.cases[name]
            residual = np.ones((case.rows, case.columns), np.float32) if case.plus else None
            found = np.array(loaded(name, data.activations[name], None, residual)).view(np.int32)
            np.testing.assert_array_equal(found, first.setdefault(name, found), f"{name}, {number}")
    # Each case has several schedules to compare.
    assert len(used) == len(cases)
    assert all(len(texts) > 1 for texts in used.values()), used
