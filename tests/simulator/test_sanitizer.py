"""The detectors of the sanitizer: each has a kernel that it reports, and a similar one that it must
not report."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.text import text
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.sanitizer import Finding, Sanitizer

Assemble = Callable[..., CodeObjectKernel]


@pytest.fixture
def assemble() -> Assemble:
    """Return a function that makes a kernel of assembly text, with 64 bytes of scratch for each
    work item."""

    def make(code: str, buffers: int = 1, workgroup: int = 64, lds: int = 1024) -> CodeObjectKernel:
        size = (workgroup, 1, 1)
        (kernel,) = read_assembly(code, "kernel.s", workgroup=size, buffers=buffers).values()
        return replace(
            kernel, descriptor=replace(kernel.descriptor, lds_bytes=lds, scratch_bytes=64)
        )

    return make


def sanitize(kernel: CodeObjectKernel, **options: bool) -> list[Finding]:
    sanitizer = Sanitizer(**options)
    data = np.arange(1024, dtype=np.uint32)
    launch(TranslatedKernel(kernel, observed=True), (2, 1, 1), [data], observer=sanitizer)
    return sanitizer.findings


def kinds(findings: list[Finding]) -> set[str]:
    return {finding.kind for finding in findings}


LOAD = """
v_lshlrev_b32 v1, 2, v0
global_load_dword v2, v1, s[2:3]
{wait}
v_add_u32 v3, v2, v2
global_store_dword v1, v3, s[2:3] offset:1024
s_endpgm
"""
SCALAR_LOAD = """
s_load_dwordx2 s[6:7], s[2:3], 0x10
{wait}
s_add_u32 s8, s6, s7
s_endpgm
"""
ORDERED = """
v_lshlrev_b32 v1, 2, v0
global_load_dword v2, v1, s[2:3]
global_load_dword v3, v1, s[2:3] offset:4
s_waitcnt vmcnt(1)
v_mov_b32 v4, {first}
s_endpgm
"""


@pytest.mark.parametrize(
    ("kernel", "early"),
    [
        (LOAD.format(wait="s_nop 0"), "v2"),
        (LOAD.format(wait="s_waitcnt lgkmcnt(0)"), "v2"),
        (LOAD.format(wait="s_waitcnt vmcnt(0)"), None),
        (SCALAR_LOAD.format(wait="s_waitcnt lgkmcnt(1)"), "s6"),
        (SCALAR_LOAD.format(wait="s_waitcnt lgkmcnt(0)"), None),
        (ORDERED.format(first="v3"), "v3"),
        (ORDERED.format(first="v2"), None),
        (LOAD.format(wait="global_load_dword v2, v1, s[2:3]\ns_waitcnt vmcnt(0)"), None),
        (LOAD.format(wait="v_mov_b32 v2, 0\ns_waitcnt vmcnt(0)"), "v2"),
        (LOAD.format(wait="ds_write_b32 v1, v0\nds_read_b32 v2, v1\ns_waitcnt 0"), "v2"),
    ],
)
def test_use_before_wait(kernel: str, early: str | None, assemble: Assemble) -> None:
    findings = sanitize(assemble(kernel))
    assert kinds(findings) == ({"wait"} if early else set())
    assert all(f"{early} is loaded" in f.detail for f in findings if early == "v2")


#: One wave loads v2 and the other one skips the load; both have a store in flight.
APART = """
v_lshlrev_b32 v1, 2, v0
v_lshrrev_b32 v3, 6, v0
global_store_dword v1, v3, s[2:3]
v_readfirstlane_b32 s6, v3
s_cmp_eq_u32 s6, {loads}
s_cbranch_scc0 past
global_load_dword v2, v1, s[2:3]
{wait}
past:
v_mov_b32 v2, 0
s_endpgm
"""


@pytest.mark.parametrize(
    ("loads", "wait", "early"),
    [
        (0, "s_waitcnt vmcnt(0)", False),
        (1, "s_waitcnt vmcnt(0)", False),
        (0, "s_nop 0", True),
        (1, "s_nop 0", True),
    ],
)
def test_a_wave_waits_for_its_own_loads(
    loads: int, wait: str, early: bool, assemble: Assemble
) -> None:
    kernel = assemble(APART.format(loads=loads, wait=wait), workgroup=128)
    assert kinds(sanitize(kernel)) == ({"wait"} if early else set())


DIRECT = """
s_mov_b32 s6, 0
s_mov_b32 m0, s6
v_lshlrev_b32 v1, 2, v0
s_mov_b32 s4, 4096
s_mov_b32 s5, 0x27000
s_mov_b64 s[8:9], s[2:3]
s_mov_b64 s[10:11], s[4:5]
buffer_load_dword v1, s[8:11], 0 offen lds
{wait}
ds_read_b32 v2, v1
s_waitcnt lgkmcnt(0)
s_endpgm
"""


@pytest.mark.parametrize(
    ("wait", "expected"), [("s_nop 0", {"dma"}), ("s_waitcnt vmcnt(0)", set())]
)
def test_loads_to_lds(wait: str, expected: set[str], assemble: Assemble) -> None:
    assert kinds(sanitize(assemble(DIRECT.format(wait=wait)))) == expected


# The upper register of a pair is read only if op_sel_hi selects it.
PAIR = """
v_mov_b32 v8, 1.0
v_pk_add_f32 v[10:11], v[8:9], v[8:9] op_sel_hi:[{upper}]
v_lshlrev_b32 v1, 3, v0
global_store_dwordx2 v1, v[10:11], s[2:3]
s_endpgm
"""
UNDEFINED = """
{define}
v_lshlrev_b32 v1, 2, v0
v_add_u32 v3, v2, v0
global_store_dword v1, v3, s[2:3]
s_endpgm
"""
MASKED = """
v_lshlrev_b32 v1, 2, v0
v_add_u32 v3, v2, v0
s_mov_b64 vcc, 0
v_cndmask_b32 v3, v3, v0, vcc
v_mov_b32 v3, v0
global_store_dword v1, v3, s[2:3]
s_endpgm
"""
READ_LDS = """
v_lshlrev_b32 v1, 2, v0
{define}
s_waitcnt lgkmcnt(0)
ds_read_b32 v2, v1
s_waitcnt lgkmcnt(0)
s_endpgm
"""


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (UNDEFINED.format(define="s_nop 0"), {"undefined"}),
        (UNDEFINED.format(define="v_mov_b32 v2, 7"), set()),
        (MASKED, set()),
        ("v_add_u32 v1, v9, v9\nds_write_b32 v1, v0\ns_endpgm", {"undefined"}),
        ("s_cmp_eq_u32 s40, 0\ns_cbranch_scc1 1f\ns_nop 0\n1:\ns_endpgm", {"undefined"}),
        (PAIR.format(upper="0,0"), set()),
        (PAIR.format(upper="0,1"), {"undefined"}),
        (READ_LDS.format(define="s_nop 0"), {"undefined"}),
        (READ_LDS.format(define="ds_write_b32 v1, v0"), set()),
    ],
)
def test_undefined_values(kernel: str, expected: set[str], assemble: Assemble) -> None:
    assert expected <= kinds(sanitize(assemble(kernel))) <= expected | {"bounds", "alignment"}


def test_bounds_and_alignment(assemble: Assemble) -> None:
    store = "v_lshlrev_b32 v1, 2, v0\nds_write_b32 v1, v0 offset:{}\ns_endpgm"
    assert not sanitize(assemble(store.format(768)))
    assert kinds(sanitize(assemble(store.format(772)))) == {"bounds"}
    assert kinds(sanitize(assemble(store.format(6)))) == {"alignment"}
    spill = "scratch_store_dword off, v0, off offset:{}\ns_endpgm"
    assert not sanitize(assemble(spill.format(60)))
    assert kinds(sanitize(assemble(spill.format(6)))) == {"alignment"}
    load = "v_lshlrev_b32 v1, 2, v0\nglobal_load_dword v2, v1, s[2:3] offset:{}\ns_endpgm"
    assert not sanitize(assemble(load.format(2)))
    assert kinds(sanitize(assemble(load.format(2)), unaligned=True)) == {"alignment"}
    assert not sanitize(assemble(load.format(4)), unaligned=True)
    with pytest.raises(SimulationError, match=r"byte 4096 of binding 0, which has 4096"):
        sanitize(
            assemble(
                "v_lshlrev_b32 v1, 2, v0\n"
                + "global_load_dword v2, v1, s[2:3] offset:3844\ns_endpgm"
            )
        )


def test_barrier_divergence(assemble: Assemble) -> None:
    kernel = """
    v_readfirstlane_b32 s6, v0
    s_cmp_eq_u32 s6, 0
    s_cbranch_scc1 1f
    s_barrier
    s_endpgm
    1:
    {first}
    s_endpgm
    """
    assert kinds(sanitize(assemble(kernel.format(first="s_barrier"), 1, 128))) == {"barrier"}
    # A barrier does not wait for a wave that has ended.
    assert not sanitize(assemble(kernel.format(first="s_nop 0"), 1, 128))


def test_a_finding_names_kernel_address_and_instruction(assemble: Assemble) -> None:
    (finding,) = sanitize(assemble(LOAD.format(wait="s_nop 0")))
    assert "kernel, 0x" in finding.place
    assert finding.place.endswith("v_add_u32 v3, v2, v2")


@pytest.mark.parametrize(("shape", "workgroups"), [((128, 256, 512), 1), ((100, 96, 2880), 3)])
def test_stock_kernels_are_clean(
    shape: tuple[int, ...], workgroups: int, scaled: Callable[..., Any]
) -> None:
    m, n, k = shape
    sizes = ((m, k // 2), (n, k // 2), (m, k // 32), (n, k // 32), (m, n * 4))
    buffers = [np.full(size, 0x66, np.uint8) for size in sizes]
    program = TranslatedKernel(scaled(*shape).kernel, observed=True)
    sanitizer = Sanitizer()
    launch(program, (workgroups, 1, 1), buffers, observer=sanitizer)
    assert not sanitizer.findings


@pytest.mark.parametrize(
    ("removed", "kind"),
    [("s_barrier", "race"), ("s_waitcnt vmcnt", "wait"), ("ds_write_b8", "undefined")],
)
def test_a_stock_kernel_with_an_instruction_removed(
    removed: str, kind: str, scaled: Callable[..., Any]
) -> None:
    """A needed instruction of a right kernel becomes s_nop."""
    m, n, k = 128, 256, 512
    kernel = scaled(m, n, k).kernel
    code = bytearray(kernel.code)
    for i in TranslatedKernel(kernel).instructions:
        if text(i).startswith(removed):
            at = i.address - kernel.address
            code[at : at + i.size] = bytes.fromhex("000080bf") * (i.size // 4)
    sizes = ((m, k // 2), (n, k // 2), (m, k // 32), (n, k // 32), (m, n * 4))
    buffers, sanitizer = [np.full(size, 0x66, np.uint8) for size in sizes], Sanitizer()
    broken = TranslatedKernel(replace(kernel, code=bytes(code)), observed=True)
    launch(broken, (1, 1, 1), buffers, observer=sanitizer)
    assert kind in kinds(sanitizer.findings)
