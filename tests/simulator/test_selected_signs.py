"""v_cndmask_b32 accepts negation and absolute value of its operands.

It is no instruction on floats, but the compiler uses these modifiers to change or clear a sign bit
without another instruction.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.errors import SimulationError
from mxc.simulator.simulate import simulate

SELECT = """
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_dword v2, v1, s[4:5]
  v_mov_b32_e32 v3, 7
  v_cmp_gt_u32_e32 vcc, 32, v0
  s_waitcnt vmcnt(0)
  {instruction}
  global_store_dword v1, v4, s[6:7]
  s_endpgm
"""


def run(instruction: str) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    given = np.array([-1.5, 2.0, -0.0, np.inf] * 16, np.float32).view(np.uint32)
    found = np.zeros(64, np.uint32)
    code = SELECT.format(instruction=instruction)
    found = simulate(code, (1, 1, 1), [given, found], workgroup=(64, 1, 1))[1]
    return given, found


@pytest.mark.parametrize(
    ("operand", "keep", "flip"),
    [("|v2|", 0x7FFFFFFF, 0), ("-v2", 0xFFFFFFFF, 1 << 31), ("-|v2|", 0x7FFFFFFF, 1 << 31)],
)
def test_the_sign_of_what_is_selected(operand: str, keep: int, flip: int) -> None:
    given, found = run(f"v_cndmask_b32_e64 v4, v3, {operand}, vcc")
    np.testing.assert_array_equal(found[:32], (given[:32] & keep) ^ flip)
    np.testing.assert_array_equal(found[32:], 7)


def test_other_integers_have_no_sign_to_take() -> None:
    with pytest.raises(SimulationError, match=r"v_and_b32.*sign of an operand"):
        run("v_and_b32_e64 v4, v3, |v2|")
