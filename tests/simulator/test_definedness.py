"""The halves of a 64-bit multiply-add are defined each for itself.

The lower one does not depend on the upper half of the addend, which LLVM leaves undefined where it
wants the lower one alone.
"""

import numpy as np
import pytest

from mxc.runtime.simulator.simulate import simulate
from mxc.runtime.simulator.watch.sanitizer import Sanitizer

CODE = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v4, 7
  v_mad_u64_u32 v[2:3], s[8:9], v0, v0, v[4:5]
  v_mov_b32_e32 v6, {stored}
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v6, s[4:5]
  s_endpgm
"""


@pytest.mark.parametrize(("stored", "kinds"), [("v2", []), ("v3", ["undefined"])])
def test_halves_of_a_sum(stored: str, kinds: list[str]) -> None:
    sanitizer = Sanitizer()
    found = simulate(
        CODE.format(stored=stored),
        (1, 1, 1),
        [np.zeros(64, np.uint32)],
        workgroup=(64, 1, 1),
        observer=sanitizer,
    )
    assert [finding.kind for finding in sanitizer.findings] == kinds
    if stored == "v2":
        np.testing.assert_array_equal(found[0], np.arange(64, dtype=np.uint32) ** 2 + 7)
