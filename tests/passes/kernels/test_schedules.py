"""The schedules of a product give the same bits."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxc.passes.kernels.cpu.schedule import MOST
from tests import without_tiles
from tests.passes.kernels.conftest import Kernels

#: Tiles with a rest, one row, dense, decoded to memory or not, columns that need a mask, rows that
#: are sorted, activations in integers, a number of rows that comes with the call.
CASES = (
    "mxfp4 bf16 1x13x40x320",
    "mxfp4 f32 1x7x80x320",
    "bf16 bf16 1x5x80x64",
    "mxfp8e4m3 f32 1x9x17x320",
    "mxfp4 int8 1x7x33x288 plus",
    "mxfp4 bf16 1x1x80x320",
    "mxfp4 bf16 16x1x40x64 of 3",
)


def test_schedules_give_the_same_bits(kernels: Kernels, tmp_path: Path) -> None:
    file, used = tmp_path / "schedules.json", defaultdict(set)
    first: dict[str, NDArray[np.int32]] = {}
    for number in [*range(0, MOST, 2), -1]:
        file.write_text(json.dumps([{"schedule": number}]))
        # A product on tiles has one schedule.
        program = kernels(*CASES, schedules=str(file), target=without_tiles.TARGET)
        data = program.draw(exact=False)
        loaded = program.load(data.weights)
        for matmul in program.compiled.report["matmuls"]:
            used[matmul["kernel"]].add(matmul["schedule"])
        for name in CASES:
            case = program.cases[name]
            residual = np.ones((case.rows, case.columns), np.float32) if case.plus else None
            found = np.array(loaded(name, data.activations[name], None, residual)).view(np.int32)
            np.testing.assert_array_equal(found, first.setdefault(name, found), f"{name}, {number}")
    # There was something to compare.
    assert len(used) == len(CASES)
    assert all(len(texts) > 1 for texts in used.values()), used
