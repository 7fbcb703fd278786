"""Races in global memory: kernels with a race, and similar kernels without one."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.run.launch import Binding, launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.sanitizer import Sanitizer

Words = NDArray[np.uint32]


def races(
    code: str,
    buffers: Sequence[Words | Binding],
    *,
    workgroups: int = 4,
    size: int = 64,
    together: int = 512,
    backwards: bool = False,
) -> list[str]:
    """Run a kernel; return the details of the races that the sanitizer reports.

    Asserts that it reports nothing else. `together`: waves that run in lockstep.
    """
    (kernel,) = read_assembly(code, "k.s", workgroup=(size, 1, 1), buffers=len(buffers)).values()
    sanitizer = Sanitizer()
    program = TranslatedKernel(kernel, observed=True)
    launch(
        program,
        (workgroups, 1, 1),
        buffers,
        observer=sanitizer,
        waves=together,
        backwards=backwards,
    )
    assert {finding.kind for finding in sanitizer.findings} <= {"race"}, sanitizer.findings
    return [finding.detail for finding in sanitizer.findings]


def words(count: int = 1024) -> Words:
    return np.arange(count, dtype=np.uint32) + 7


#: Each workgroup stores 64 values from 1 << `log` bytes times its number (s4) on, `shift` bytes
#: further.
ROWS = """
s_lshl_b32 s8, s4, {log}
v_lshlrev_b32 v1, {bits}, v0
v_add_u32 v1, v1, s8
v_mov_b32 v2, {value}
{before}
global_store_{width} v1, v2, s[2:3] offset:{shift}
s_endpgm
"""


@pytest.mark.parametrize("together", [512, 1])
@pytest.mark.parametrize(
    ("width", "bits", "log", "value", "race"),
    [
        ("dword", 2, 8, "s4", False),
        ("dword", 2, 7, "s4", True),
        ("dword", 2, 7, "5", False),
        ("byte", 0, 6, "s4", False),
        ("byte", 0, 5, "s4", True),
        # Each lane stores to the byte of a dword that belongs to its workgroup.
        ("byte", 2, 0, "s4", False),
        ("short", 2, 0, "s4", True),
    ],
)
def test_stores(width: str, bits: int, log: int, value: str, race: bool, together: int) -> None:
    code = ROWS.format(width=width, bits=bits, log=log, value=value, before="", shift=0)
    assert bool(races(code, [words()], together=together)) is race


@pytest.mark.parametrize("together", [512, 1])
@pytest.mark.parametrize(("shift", "race"), [(0, False), (252, True), (256, True)])
def test_a_store_to_what_another_workgroup_reads(shift: int, race: bool, together: int) -> None:
    load = "global_load_dword v3, v1, s[2:3]\ns_waitcnt vmcnt(0)\nv_add_u32 v2, v3, v2"
    code = ROWS.format(width="dword", bits=2, log=8, value="s4", before=load, shift=shift)
    found = races(code, [words()], together=together)
    assert bool(found) is race
    if race:
        told = r"byte \d+ of binding 0, which wave 0 of workgroup [0-3] (reads|writes( too)?): "
        assert re.fullmatch(told + "nothing orders the two", found[0])


@pytest.mark.parametrize("together", [512, 1])
def test_a_store_to_what_both_workgroups_read(together: int) -> None:
    """The workgroup that stores is the last one that has read."""
    code = """
v_mov_b32 v1, 0
global_load_dword v2, v1, s[2:3]
s_cmp_lg_u32 s4, 1
s_cbranch_scc1 end
s_waitcnt vmcnt(0)
v_mov_b32 v3, {value}
global_store_dword v1, v3, s[2:3]
end:
s_endpgm
"""
    assert races(code.format(value=5), [words()], workgroups=2, together=together)
    # The memory holds 7 already.
    assert not races(code.format(value=7), [words()], workgroups=2, together=together)


def test_two_buffers_may_be_the_same_memory() -> None:
    code = """
s_lshl_b32 s8, s6, 8
v_lshlrev_b32 v1, 2, v0
v_add_u32 v1, v1, s8
global_load_dword v3, v1, s[2:3]
s_waitcnt vmcnt(0)
v_add_u32 v3, 1, v3
global_store_dword v1, v3, s[4:5]
s_endpgm
"""
    memory = words(2048)
    apart = [Binding(memory, 0, 1024), Binding(memory, 1024, 1024)]
    assert not races(code, apart)
    assert not races(code, [Binding(memory, 0, 1024), Binding(memory, 0, 1024)])
    assert races(code, [Binding(memory, 0, 1024), Binding(memory, 64, 1024)])
    assert races(code, [Binding(memory, 64, 1024), Binding(memory, 0, 1024)])


#: Two waves, each of which accesses its own words and those of the other.
NEIGHBOUR = """
v_lshlrev_b32 v1, 2, v0
v_xor_b32 v2, 0x100, v1
{first}
s_waitcnt vmcnt(0)
{between}
{second}
s_waitcnt vmcnt(0)
s_endpgm
"""
STORE, READ = "global_store_dword v1, v0, s[2:3]", "global_load_dword v3, v2, s[2:3]"


@pytest.mark.parametrize("order", [(STORE, READ), (READ, STORE), (STORE, STORE)])
@pytest.mark.parametrize(
    ("between", "race"), [("s_barrier", False), ("s_nop 0", True), (READ, True)]
)
def test_a_barrier_orders_a_workgroup(order: tuple[str, str], between: str, race: bool) -> None:
    second = order[1].replace("v1", "v2") if order == (STORE, STORE) else order[1]
    code = NEIGHBOUR.format(first=order[0], between=between, second=second)
    assert bool(races(code, [words()], workgroups=1, size=128)) is race


def test_a_barrier_orders_no_other_workgroup() -> None:
    code = NEIGHBOUR.format(first=STORE, between="s_barrier", second=READ)
    assert races(
        code.replace("v1, v0,", "v1, v4,").replace("v_xor", "v_add_u32 v4, v0, s4\nv_xor"),
        [words()],
        workgroups=2,
        size=128,
    )


SUM = """
v_mov_b32 v1, 0
{add}
s_endpgm
"""
PLAIN = """global_load_dword v2, v1, s[2:3]
s_waitcnt vmcnt(0)
v_add_u32 v2, 1, v2
global_store_dword v1, v2, s[2:3]"""
ATOMIC = "v_mov_b32 v2, 1\nglobal_atomic_add v1, v2, s[2:3]"


@pytest.mark.parametrize(
    ("add", "race"),
    [
        (ATOMIC, False),
        (PLAIN, True),
        (f"{ATOMIC}\n{PLAIN}", True),
        # Loops of compare and swap begin with such a load.
        (f"{ATOMIC}\nglobal_load_dword v3, v1, s[2:3]", False),
        (f"{ATOMIC}\nglobal_store_dword v1, v0, s[2:3]", True),
        (f"{ATOMIC}\nglobal_store_dword v1, v0, s[2:3] sc1", False),
    ],
)
@pytest.mark.parametrize("together", [512, 1])
def test_a_sum_needs_an_atomic(add: str, race: bool, together: int) -> None:
    assert bool(races(SUM.format(add=add), [words()], together=together)) is race


RELEASE, ACQUIRE = "buffer_wbl2 sc1\ns_waitcnt vmcnt(0)", "buffer_inv sc1"
COUNT = "global_atomic_add v5, v1, v2, s[2:3] sc0"
#: Each of four workgroups stores a number, then adds one to a counter; the last one reads all
#: numbers.
LAST = """
v_mov_b32 v1, 0
v_mov_b32 v2, 1
s_lshl_b32 s8, s6, 2
v_mov_b32 v3, s8
v_mov_b32 v4, s6
s_mov_b64 exec, 1
global_store_dword v3, v4, s[4:5]
{release}
{count}
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s9, v5
s_nop 4
s_cmp_lg_u32 s9, {last}
s_cbranch_scc1 end
{acquire}
global_load_dwordx4 v[6:9], v1, s[4:5]
s_waitcnt vmcnt(0)
end:
s_endpgm
"""


@pytest.mark.parametrize("together", [512, 1])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    ("count", "race"),
    [
        (COUNT, False),
        # Each workgroup has a counter of its own.
        (
            "global_atomic_add v5, v3, v2, s[2:3] sc0\ns_waitcnt vmcnt(0)\nv_add_u32 v5, v5, v4",
            True,
        ),
        # No workgroup counts.
        ("v_add_u32 v5, 7, v4", True),
    ],
)
def test_the_last_workgroup_may_read_what_others_stored(
    count: str, race: bool, together: int, backwards: bool
) -> None:
    code = LAST.format(count=count, last=10, release=RELEASE, acquire=ACQUIRE)
    assert bool(counted(code, together, backwards)) is race


def counted(code: str, together: int, backwards: bool) -> list[str]:
    """Return the races of four workgroups whose counter begins at seven."""
    counters = np.full(16, 7, np.uint32)
    buffers = [counters, words(16)]
    return races(code, buffers, together=together, backwards=backwards)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("together", [512, 1])
@pytest.mark.parametrize(
    ("release", "acquire", "last"),
    [
        # One workgroup too early: the last one has not stored yet.
        (RELEASE, ACQUIRE, 9),
        # No fence, a fence that is not for the device, or a fence that is not waited for.
        ("s_waitcnt vmcnt(0)", ACQUIRE, 10),
        ("buffer_wbl2 sc0\ns_waitcnt vmcnt(0)", ACQUIRE, 10),
        ("buffer_wbl2 sc1", ACQUIRE, 10),
        (RELEASE, "", 10),
        (RELEASE, "buffer_inv sc0", 10),
    ],
)
def test_a_count_needs_fences_and_the_right_number(
    release: str, acquire: str, last: int, together: int, backwards: bool
) -> None:
    code = LAST.format(count=COUNT, release=release, acquire=acquire, last=last)
    assert counted(code, together, backwards)


def test_dispatches_come_one_after_the_other() -> None:
    code = ROWS.format(width="dword", bits=2, log=8, value="s4", before="", shift=0)
    (kernel,) = read_assembly(code, "k.s", workgroup=(64, 1, 1), buffers=1).values()
    sanitizer, program, memory = Sanitizer(), TranslatedKernel(kernel, observed=True), words()
    for shift in (0, 256):
        launch(program, (2, 1, 1), [Binding(memory, shift, 512)], observer=sanitizer)
    assert not sanitizer.findings


#: Rows of 60 dwords; 60 lanes of each workgroup store what they have loaded.
MASKED = """
s_mul_i32 s6, s6, 240
v_lshlrev_b32 v1, 2, v0
v_add_u32 v1, s6, v1
v_cmp_gt_u32 vcc, {loads}, v0
s_and_saveexec_b64 s[8:9], vcc
global_load_dword v2, v1, s[2:3]
s_mov_b64 exec, s[8:9]
v_cmp_gt_u32 vcc, {stores}, v0
s_and_saveexec_b64 s[8:9], vcc
s_waitcnt vmcnt(0)
v_xor_b32 v2, v1, v2
v_xor_b32 v2, s6, v2
global_store_dword v1, v2, s[4:5]
s_endpgm
"""


@pytest.mark.parametrize(
    ("loads", "stores", "kinds"),
    [(60, 60, set()), (64, 60, set()), (61, 61, {"race"}), (59, 60, {"undefined"})],
)
def test_a_mask_that_is_off_by_a_lane(loads: int, stores: int, kinds: set[str]) -> None:
    code = MASKED.format(loads=loads, stores=stores)
    (kernel,) = read_assembly(code, "k.s", workgroup=(64, 1, 1), buffers=2).values()
    sanitizer = Sanitizer()
    program, given = TranslatedKernel(kernel, observed=True), [words(), words()]
    given[0][::60] += 1
    launch(program, (4, 1, 1), given, observer=sanitizer)
    assert {finding.kind for finding in sanitizer.findings} == kinds


def test_barriers_are_those_of_a_workgroup() -> None:
    """One workgroup passes two barriers, the other six; a wave doubles what the other one wrote."""
    code = """
    v_lshlrev_b32 v1, 2, v0
    v_xor_b32 v2, 0x100, v1
    s_lshl_b32 s6, s4, 1
    v_mov_b32 v3, v0
    1:
    ds_write_b32 v1, v3
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_read_b32 v4, v2
    s_waitcnt lgkmcnt(0)
    s_barrier
    v_add_u32 v3, v4, v4
    s_sub_u32 s6, s6, 1
    s_cmp_ge_i32 s6, 0
    s_cbranch_scc1 1b
    s_lshl_b32 s8, s4, 9
    v_add_u32 v1, v1, s8
    global_store_dword v1, v3, s[2:3]
    s_endpgm
    """
    (kernel,) = read_assembly(code, "k.s", workgroup=(128, 1, 1), buffers=1).values()
    kernel = replace(kernel, descriptor=replace(kernel.descriptor, lds_bytes=512))
    sanitizer, data = Sanitizer(), np.zeros(256, np.uint32)
    launch(TranslatedKernel(kernel, observed=True), (2, 1, 1), [data], observer=sanitizer)
    assert not sanitizer.findings
    other = np.arange(128) ^ 64
    np.testing.assert_array_equal(data.reshape(2, 128), [2 * other, 8 * other])
