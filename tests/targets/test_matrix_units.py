"""Matrix units and devices: records that agree with each other, and maps written out."""

import numpy as np
import pytest

from mxc.passes.kernels.gpu.fragments import Instruction
from mxc.targets.compute_units import compute_unit, matrix_clocks
from mxc.targets.devices import DEVICES, device
from mxc.targets.matrix_units import UNITS, matrix_unit
from mxc.targets.records import target


def test_each_device_has_a_unit_and_a_target() -> None:
    assert [each.target for each in DEVICES] == [each.target for each in UNITS]
    for each in DEVICES:
        unit = compute_unit(each.target)
        assert unit is not None
        assert each.matrix.lanes == unit.wave == target(each.target).subgroup
    assert device("cpu") is None
    assert matrix_unit("gfx90a") is None


def test_clocks_are_those_of_the_table() -> None:
    for unit in UNITS:
        if unit.family != "mfma":
            continue
        for form in unit.forms:
            found = matrix_clocks(f"v_mfma_f32_{form.rows}x{form.rows}x{form.depth}_bf16", "")
            assert found == form.clocks
        for form in unit.scaled_forms:
            name = f"v_mfma_scale_f32_{form.rows}x{form.rows}x{form.depth}_f8f6f4"
            assert matrix_clocks(name, "cbsz:4 blgp:4") == form.clocks


@pytest.mark.parametrize(
    ("name", "rows", "wanted"),
    [
        # AMD CDNA3 and CDNA4 ISA guides, 7.1.4: four rows of a group, then those of the next.
        ("gfx942", 16, lambda lane, e: 4 * (lane // 16) + e),
        ("gfx942", 32, lambda lane, e: 8 * (e // 4) + 4 * (lane // 32) + e % 4),
        ("gfx950", 32, lambda lane, e: 8 * (e // 4) + 4 * (lane // 32) + e % 4),
        # RDNA4 ISA guide, 7.9: register e of lanes 0-15 is row e, of lanes 16-31 row e + 8.
        ("gfx1201", 16, lambda lane, e: e + 8 * (lane // 16)),
    ],
)
def test_rows_of_the_result(name: str, rows: int, wanted: object) -> None:
    unit = matrix_unit(name)
    assert unit is not None
    instruction = Instruction(rows, unit)
    assert callable(wanted)
    lanes = np.arange(unit.lanes)
    for e in range(instruction.totals):
        first = unit.run * (lanes // rows) + instruction.row(e // 4)
        np.testing.assert_array_equal(first + e % 4, [wanted(lane, e) for lane in lanes])


def test_an_instruction_that_there_is_not() -> None:
    unit = matrix_unit("gfx1201")
    assert unit is not None
    with pytest.raises(ValueError, match="gfx1201 has such instructions of 16 rows, not of 32"):
        Instruction(32, unit)
