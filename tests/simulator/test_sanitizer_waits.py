"""Waits that the sanitizer requires: counters of accesses that complete in any order, and hazards
between instructions."""

import numpy as np
import pytest

from mxc.simulator.simulate import simulate
from mxc.simulator.watch.sanitizer import Finding, Sanitizer


def kinds(findings: list[Finding]) -> set[str]:
    return {finding.kind for finding in findings}


FLAT = """
v_lshlrev_b32 v1, 2, v0
v_mov_b32 v3, s3
v_add_co_u32 v2, vcc, s2, v1
s_nop 0
v_addc_co_u32 v3, vcc, 0, v3, vcc
flat_load_dword v4, v[2:3]
{wait}
v_add_u32 v4, v4, v4
s_endpgm
"""
#: Scalar loads complete in any order, so that after lgkmcnt(1) either of two may be outstanding.
SCALARS = """
s_load_dword s6, s[2:3], 0x10
s_load_dword s7, s[2:3], 0x20
{wait}
s_add_u32 s8, s6, s6
s_endpgm
"""
#: With a scalar load beside two LDS reads, the access that is outstanding after lgkmcnt(1) may be
#: the second LDS read.
BESIDE = """
v_lshlrev_b32 v1, 2, v0
ds_write_b32 v1, v0
s_waitcnt lgkmcnt(0)
ds_read_b32 v2, v1
ds_read_b32 v3, v1
s_load_dword s6, s[2:3], 0x10
{wait}
v_add_u32 v4, {used}, {used}
s_endpgm
"""


def run_text(code: str) -> list[Finding]:
    sanitizer = Sanitizer()
    data = np.arange(1024, dtype=np.uint32)
    simulate(code, (1, 1, 1), [data], workgroup=(64, 1, 1), observer=sanitizer)
    return sanitizer.findings


@pytest.mark.parametrize(
    ("kernel", "wait", "early"),
    [
        (FLAT, "s_waitcnt vmcnt(0)", True),
        (FLAT, "s_waitcnt lgkmcnt(0)", True),
        (FLAT, "s_waitcnt vmcnt(0) lgkmcnt(0)", False),
        (BESIDE.replace("{used}", "v3"), "s_waitcnt lgkmcnt(1)", True),
        (BESIDE.replace("{used}", "v2"), "s_waitcnt lgkmcnt(1)", False),
        (BESIDE.replace("{used}", "v2"), "s_waitcnt lgkmcnt(2)", True),
        (BESIDE.replace("{used}", "v3"), "s_waitcnt lgkmcnt(0)", False),
        (SCALARS, "s_waitcnt lgkmcnt(1)", True),
        (SCALARS, "s_waitcnt lgkmcnt(0)", False),
    ],
)
def test_counters_without_an_order(kernel: str, wait: str, early: bool) -> None:
    findings = [f for f in run_text(kernel.format(wait=wait)) if f.kind != "hazard"]
    assert kinds(findings) == ({"wait"} if early else set())


#: A wave ends with outstanding loads and stores, for which hardware waits.
ENDS = """
v_lshlrev_b32 v1, 2, v0
s_load_dword s6, s[2:3], 0x10
global_load_dword v2, v1, s[2:3]
ds_write_b32 v1, v0
ds_read_b32 v3, v1
{last}
s_endpgm
"""


def test_the_end_of_a_wave_waits() -> None:
    assert not [f for f in run_text(ENDS.format(last="")) if f.kind == "wait"]
    used = run_text(ENDS.format(last="global_store_dword v1, v2, s[2:3]"))
    assert "wait" in kinds(used)


def test_a_hazard_is_found_where_it_executes() -> None:
    kernel = "v_exp_f32 v1, v0\n{}\nv_add_f32 v2, v1, v1\ns_endpgm"
    (finding,) = run_text(kernel.format(""))
    assert finding.kind == "hazard"
    assert finding.place == "kernel, 0x4 (<text>:3): v_add_f32 v2, v1, v1"
    assert finding.detail.endswith("0 wait states behind 0x0 v_exp_f32 v1, v0, wanted 1")
    assert not run_text(kernel.format("s_nop 0"))
