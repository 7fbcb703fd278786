"""The sanitizer knows for each part of a register whether it is defined: for each lane, and for
each half of a 64-bit multiply-add.

The lower half of the result does not depend on the upper half of the addend. LLVM leaves that
undefined if only the lower half of the result is used.
"""

from dataclasses import replace

import numpy as np
import pytest

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
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


#: Spills scalars to lanes of a vector register, as LLVM does if there are too many scalars.
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
    launch(TranslatedKernel(kernel, observed=True), (1, 1, 1), [found], observer=sanitizer)
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


#: Lanes 0 to 19 write v2; all lanes write v3.
LANES = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v3, 5
  v_cmp_gt_u32_e32 vcc, 20, v0
  s_and_saveexec_b64 s[6:7], vcc
  v_mov_b32_e32 v2, 7
  s_mov_b64 exec, s[6:7]
  s_nop 7
  {code}
  s_nop 7
  s_waitcnt lgkmcnt(0)
  v_cmp_gt_u32_e32 vcc, {stores}, v0
  s_and_saveexec_b64 s[6:7], vcc
  global_store_dword v1, {register}, s[4:5]
  s_endpgm
"""
MASKS = "row_mask:0xf bank_mask:0xf"
TWENTY, ALL = "s_mov_b64 exec, vcc\ns_nop 4\n", "s_nop 7\ns_mov_b64 exec, s[6:7]"


@pytest.mark.parametrize(
    ("code", "register", "defined"),
    [
        ("", "v2", 20),
        ("v_add_u32_e32 v2, v2, v3", "v2", 20),
        # The mask selects v2 in the lanes where it is defined, or in the lanes where it is not.
        ("v_cndmask_b32_e32 v5, v3, v2, vcc", "v5", 64),
        ("v_cndmask_b32_e32 v5, v2, v3, vcc", "v5", 20),
        (f"v_mov_b32_e32 v5, 0\nv_mov_b32_dpp v5, v2 row_shr:1 {MASKS}", "v5", 21),
        (f"v_mov_b32_e32 v5, 0\nv_add_u32_dpp v5, v2, v3 row_shr:1 {MASKS}", "v5", 21),
        (f"v_mov_b32_e32 v5, 0\nv_mov_b32_dpp v5, v2 row_shl:1 {MASKS}", "v5", 19),
        (f"v_mov_b32_dpp v5, v2 quad_perm:[0,0,0,0] {MASKS}", "v5", 20),
        (f"v_mov_b32_dpp v5, v2 quad_perm:[3,3,3,3] {MASKS}", "v5", 20),
        (f"v_mov_b32_dpp v5, v2 row_ror:4 {MASKS}", "v5", 16),
        ("ds_swizzle_b32 v5, v2 offset:0x401f", "v5", 4),
        ("v_lshlrev_b32 v6, 3, v0\nds_bpermute_b32 v5, v6, v2", "v5", 10),
        ("v_mov_b32 v5, v3\ns_nop 1\nv_permlane32_swap_b32 v5, v2", "v5", 52),
        ("v_mov_b32 v5, v3\ns_nop 1\nv_permlane32_swap_b32 v5, v2", "v2", 32),
        ("v_readlane_b32 s8, v2, 19\ns_nop 4\nv_mov_b32 v5, s8", "v5", 64),
        ("v_readlane_b32 s8, v2, 20\ns_nop 4\nv_mov_b32 v5, s8", "v5", 0),
        # v_readlane reads inactive lanes, too.
        (f"{TWENTY}v_readlane_b32 s8, v2, 19\ns_nop 4\nv_mov_b32 v5, s8\n{ALL}", "v5", 20),
        (f"{TWENTY}v_readlane_b32 s8, v2, 20\ns_nop 4\nv_mov_b32 v5, s8\n{ALL}", "v5", 0),
        (f"{TWENTY}v_mfma_f32_16x16x16_bf16 v[8:11], v[2:3], v[2:3], 0\n{ALL}", "v8", 0),
    ],
)
def test_lanes(code: str, register: str, defined: int) -> None:
    """`defined`: how many lanes may store, from the first one on."""
    for stores in {max(1, defined), min(64, defined + 1)}:
        sanitizer = Sanitizer()
        simulate(
            LANES.format(code=code, register=register, stores=stores),
            (1, 1, 1),
            [np.zeros(64, np.uint32)],
            workgroup=(64, 1, 1),
            observer=sanitizer,
        )
        seen = [finding.kind for finding in sanitizer.findings]
        assert seen == ([] if stores <= defined else ["undefined"]), (stores, sanitizer.findings)


#: A row or column of one side is undefined: that of lane 3 in each of four groups of lanes.
PRODUCT = """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v4, 0
  v_mov_b32_e32 v5, 0
  v_mov_b32_e32 v6, 0
  v_and_b32_e32 v7, 15, v0
  v_cmp_ne_u32_e32 vcc, 3, v7
  s_and_saveexec_b64 s[6:7], vcc
  v_mov_b32_e32 v8, 0
  v_mov_b32_e32 v9, 0
  s_mov_b64 exec, s[6:7]
  v_mov_b32_e32 v5, v4
  s_nop 7
  v_mfma_f32_16x16x16_bf16 v[12:15], {sides}, 0
  s_nop 7
  v_cmp_{mask}_u32_e32 vcc, {lane}, v7
  s_and_saveexec_b64 s[6:7], vcc
  s_waitcnt lgkmcnt(0)
  global_store_dword v1, v{register}, s[4:5]
  s_endpgm
"""


@pytest.mark.parametrize(
    ("sides", "register", "mask", "lane", "defined"),
    [
        # A row of the result is a register of one of four groups of lanes; a column is a lane.
        ("v[8:9], v[4:5]", 14, "gt", 16, True),
        ("v[8:9], v[4:5]", 15, "gt", 16, False),
        ("v[4:5], v[8:9]", 15, "ne", 3, True),
        ("v[4:5], v[8:9]", 15, "eq", 3, False),
    ],
)
def test_rows_and_columns_of_a_product(
    sides: str, register: int, mask: str, lane: int, defined: bool
) -> None:
    sanitizer = Sanitizer()
    simulate(
        PRODUCT.format(sides=sides, register=register, mask=mask, lane=lane),
        (1, 1, 1),
        [np.zeros(64, np.uint32)],
        workgroup=(64, 1, 1),
        observer=sanitizer,
    )
    kinds = [finding.kind for finding in sanitizer.findings]
    assert kinds == ([] if defined else ["undefined"])
