"""Matrix instructions of GPUs: clocks as the table has them, and maps written out."""

import numpy as np
import pytest

from mxc.errors import PassError
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.targets.amd import GPUS, gpu, known_gpu
from mxc.targets.mfma_clocks import matrix_clocks


def test_cpus_and_unknown_gpus_have_no_record() -> None:
    assert gpu("cpu") is None
    with pytest.raises(PassError, match="is for 'gfx90a'; there are some for gfx950"):
        known_gpu("gfx90a")


def test_clocks_are_those_of_the_table() -> None:
    for each in GPUS:
        if each.matrix.family == "mfma":
            for instruction in each.matrix.instructions:
                assert matrix_clocks(instruction.mnemonic, "cbsz:4 blgp:4") == instruction.clocks


@pytest.mark.parametrize(
    ("name", "rows", "wanted"),
    [
        # AMD CDNA3 and CDNA4 ISA guides, 7.1.4: four rows of a group, then those of the next.
        ("gfx942", 16, lambda lane, e: 4 * (lane // 16) + e),
        ("gfx942", 32, lambda lane, e: 8 * (e // 4) + 4 * (lane // 32) + e % 4),
        ("gfx950", 32, lambda lane, e: 8 * (e // 4) + 4 * (lane // 32) + e % 4),
        # RDNA4 ISA guide, 7.9: register e of lanes 0-15 is row e, of lanes 16-31 row e + 8.
        ("gfx1201", 16, lambda lane, e: e + 8 * (lane // 16)),
        # RDNA3.5: row 2 e + lane / 16 of the instruction, which is given the same row of rhs.
        ("gfx1151", 16, lambda lane, e: e + 8 * (lane // 16)),
    ],
)
def test_rows_of_the_result(name: str, rows: int, wanted: object) -> None:
    unit = known_gpu(name).matrix
    instruction = TileInstruction(rows, unit)
    assert callable(wanted)
    lanes = np.arange(unit.lanes)
    for e in range(instruction.totals):
        first = instruction.run * (lanes // rows) + instruction.row(e // 4)
        np.testing.assert_array_equal(first + e % 4, [wanted(lane, e) for lane in lanes])


def test_an_instruction_that_there_is_not() -> None:
    unit = known_gpu("gfx1201").matrix
    with pytest.raises(ValueError, match="wmma has such instructions of 16 rows here, not of 32"):
        TileInstruction(32, unit)
