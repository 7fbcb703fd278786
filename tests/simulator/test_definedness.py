"""Parts of registers are defined each for itself: lanes, and halves of a 64-bit multiply-add.

The lower one does not depend on the upper half of the addend, which LLVM leaves undefined where it
wants the lower one alone.
"""

from dataclasses import replace

import numpy as np
import pytest

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import Program
from mxc.simulator.simulate import simulate
from mxc.simulator.watch.sanitizer import Sanitizer

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


#: Scalars that are spilled to lanes of a register, as LLVM does where there are too many.
SPILL = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  s_movk_i32 s8, 41
  s_mov_b32 m0, 9
  v_writelane_b32 v4, s8, 3
  v_writelane_b32 v4, s8, m0
  {between}
  s_nop 4
  v_readlane_b32 s9, {register}, {lane}
  s_nop 4
  s_add_u32 s9, s9, 1
  v_mov_b32_e32 v6, s9
  s_waitcnt vmcnt(0) lgkmcnt(0)
  global_store_dword v1, v6, s[4:5]
  s_endpgm
"""
TO_SCRATCH = """scratch_store_dword off, v4, off
  scratch_load_dword v5, off, off
  s_waitcnt vmcnt(0)"""


@pytest.mark.parametrize(
    ("between", "register", "lane", "defined"),
    [
        ("", "v4", 3, True),
        ("", "v4", 9, True),
        ("", "v4", 4, False),
        ("v_mov_b32_e32 v5, v4", "v5", 3, True),
        ("v_mov_b32_e32 v5, v4", "v5", 4, False),
        ("v_writelane_b32 v4, s20, 3", "v4", 3, False),
        ("v_writelane_b32 v4, s20, 3", "v4", 9, True),
        ("v_mov_b32_e32 v4, 41", "v4", 4, True),
        (TO_SCRATCH, "v5", 3, True),
    ],
)
def test_scalars_in_lanes(between: str, register: str, lane: int, defined: bool) -> None:
    text = SPILL.format(between=between, register=register, lane=lane)
    (kernel,) = read_assembly(text, "spill.s", workgroup=(64, 1, 1), buffers=1).values()
    kernel = replace(kernel, descriptor=replace(kernel.descriptor, scratch_bytes=16))
    sanitizer, found = Sanitizer(), np.zeros(64, np.uint32)
    launch(Program(kernel, observed=True), (1, 1, 1), [found], observer=sanitizer)
    seen = [finding.kind for finding in sanitizer.findings]
    assert seen == ([] if defined else ["undefined"]), sanitizer.findings
    if defined:
        assert set(found) == {42}


HALF = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v2, 1.0
  v_mad_mixlo_f16 v3, v2, v2, v2
  v_mad_mixhi_f16 v4, v2, v2, v2
  v_pack_b32_f16 v5, v3, v3
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, {stored}, s[4:5]
  s_endpgm
"""


@pytest.mark.parametrize(("stored", "kinds"), [("v5", []), ("v6", ["undefined"])])
def test_half_a_register_is_enough(stored: str, kinds: list[str]) -> None:
    """LLVM computes with halves of registers whose other half nobody wrote."""
    sanitizer = Sanitizer()
    found = simulate(
        HALF.format(stored=stored),
        (1, 1, 1),
        [np.zeros(64, np.uint32)],
        workgroup=(64, 1, 1),
        observer=sanitizer,
    )
    assert [finding.kind for finding in sanitizer.findings] == kinds
    if stored == "v5":
        assert (found[0].view(np.float16) == 2).all()
