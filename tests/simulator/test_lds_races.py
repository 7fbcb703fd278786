"""Races in LDS: kernels with a race, and similar kernels without one."""

from dataclasses import replace

import pytest

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.sanitizer import Sanitizer

NEIGHBOUR = """
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x100, v1
ds_write_b32 v1, v0
{between}
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
{after}
v_add_u32 v3, v3, v0
s_endpgm
"""
READ_THEN_WRITE = """
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x100, v1
ds_write_b32 v1, v0
s_waitcnt lgkmcnt(0)
s_barrier
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
{between}
ds_write_b32 v1, v3
s_endpgm
"""
BOTH = "s_waitcnt lgkmcnt(0)\ns_barrier"
WRITE_TWICE = """
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x100, v1
ds_write_b{first} v1, v0
{between}
ds_write_b{second} v2, v0
s_endpgm
"""


#: The first wave stores 5 to a word, the second wave `other` to the same word; each reads it back.
SAME = """
v_mov_b32 v1, 0
v_mov_b32 v2, 5
v_readfirstlane_b32 s8, v0
s_cmp_eq_u32 s8, 0
s_cbranch_scc1 first
v_mov_b32 v2, {other}
first:
ds_write_b32 v1, v2
s_waitcnt lgkmcnt(0)
ds_write_b{bits} v1, v2
s_waitcnt lgkmcnt(0)
ds_read_b32 v3, v1
s_waitcnt lgkmcnt(0)
s_endpgm
"""
#: Two of three waves store the same value to a word, which the third wave reads.
SAME_READ = """
v_mov_b32 v1, 0
v_mov_b32 v2, 5
v_readfirstlane_b32 s8, v0
s_cmp_eq_u32 s8, 128
s_cbranch_scc1 third
ds_write_b32 v1, v2
s_waitcnt lgkmcnt(0)
s_endpgm
third:
ds_read_b32 v3, v1
s_waitcnt lgkmcnt(0)
s_endpgm
"""
#: Two of three waves store the same values. The first wave waits for its stores before the barrier,
#: the second only with `wait`; the third wave reads the words after the barrier.
SAME_LATE = """
v_and_b32 v1, 63, v0
v_lshlrev_b32 v1, 2, v1
v_mov_b32 v2, 7
v_readfirstlane_b32 s8, v0
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 second
ds_write_b32 v1, v2
second:
s_cmp_lg_u32 s8, 64
s_cbranch_scc1 both
ds_write_b32 v1, v2
{wait}
both:
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 third
s_waitcnt lgkmcnt(0)
third:
s_barrier
s_cmp_lg_u32 s8, 128
s_cbranch_scc1 last
ds_read_b32 v3, v1
last:
s_waitcnt lgkmcnt(0)
s_endpgm
"""
#: Stores a word, one of its bytes and one of the next word, and waits for some of the stores.
PARTS = """
v_lshlrev_b32 v1, 3, v0
v_xor_b32 v2, 0x200, v1
ds_write_b32 v1, v0
ds_write_b8 v1, v0 offset:1
ds_write_b8 v1, v0 offset:4
s_waitcnt lgkmcnt({left})
s_barrier
ds_read_{width} v3, v2 offset:{offset}
s_waitcnt lgkmcnt(0)
s_endpgm
"""
#: Stores another word to the same place, and waits for some of the stores.
TWICE = """
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x100, v1
ds_write_b32 v1, v0
ds_write_b32 v1, v1
s_waitcnt lgkmcnt({left})
s_barrier
ds_read_b32 v3, v2
s_waitcnt lgkmcnt(0)
s_endpgm
"""


@pytest.mark.parametrize(
    ("kernel", "races"),
    [
        (NEIGHBOUR.format(between="s_waitcnt lgkmcnt(0)", after=""), True),
        (NEIGHBOUR.format(between="s_barrier", after=""), True),
        (NEIGHBOUR.format(between=BOTH, after=""), False),
        (READ_THEN_WRITE.format(between=""), True),
        (READ_THEN_WRITE.format(between="s_barrier"), False),
        *(
            (WRITE_TWICE.format(first=first, between=between, second=second), not between)
            for first, second in ((32, 32), (32, 8), (8, 32), (8, 8))
            for between in ("", BOTH)
        ),
        ("v_and_b32 v1, 60, v0\nds_write_b32 v1, v0\ns_endpgm", True),
        # The same values from several waves: at once, one after the other, and read back.
        ("v_and_b32 v1, 60, v0\nds_write_b32 v1, v1\ns_endpgm", False),
        ("v_and_b32 v1, 60, v0\nds_write_b8 v1, v1\ns_endpgm", False),
        (SAME.format(other=5, bits=32), False),
        (SAME.format(other=5, bits=8), False),
        (SAME.format(other=6, bits=32), True),
        (SAME.format(other=6, bits=8), True),
        # A wave that stored nothing reads the word.
        (SAME_READ, True),
        (SAME_LATE.format(wait=""), True),
        (SAME_LATE.format(wait="s_waitcnt lgkmcnt(0)"), False),
        (PARTS.format(left=0, width="u8", offset=4), False),
        (PARTS.format(left=1, width="u8", offset=4), True),
        (PARTS.format(left=1, width="b32", offset=0), False),
        # The store of the word is complete, but not that of its byte; nor is a word defined while
        # it is stored again.
        (PARTS.format(left=2, width="u8", offset=0), False),
        (PARTS.format(left=2, width="u8", offset=1), True),
        (PARTS.format(left=2, width="b32", offset=0), True),
        (TWICE.format(left=0), False),
        (TWICE.format(left=1), True),
        ("v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v0\ns_endpgm", False),
    ],
)
def test_races_in_lds(kernel: str, races: bool) -> None:
    items = 192 if "s8, 128" in kernel else 128
    (code,) = read_assembly(kernel, "k.s", workgroup=(items, 1, 1), buffers=0).values()
    code = replace(code, descriptor=replace(code.descriptor, lds_bytes=1024))
    sanitizer = Sanitizer()
    launch(TranslatedKernel(code, observed=True), (2, 1, 1), [], observer=sanitizer)
    kinds = {finding.kind for finding in sanitizer.findings}
    # The bytes of another wave may not be stored yet. They are then undefined, without a race.
    assert ("race" in kinds) == races
    assert kinds <= {"race", "undefined"}
