"""Traces and counts of kernels for which every step is known."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.simulate import simulate
from mxc.simulator.watch.count import Counter, Counts, class_of
from mxc.simulator.watch.trace import Trace

Assemble = Callable[..., CodeObjectKernel]
STRIDED = """
v_lshlrev_b32 v1, {shift}, v0
ds_write_b32 v1, v0
s_waitcnt lgkmcnt(0)
s_endpgm
"""


def count(kernel: CodeObjectKernel, workgroups: int = 1) -> Counts:
    counter = Counter()
    launch(
        TranslatedKernel(kernel), (workgroups, 1, 1), [np.zeros(256, np.uint32)], observer=counter
    )
    return counter.counts


def test_trace_of_one_wave(assemble: Assemble) -> None:
    kernel = assemble(
        """
        v_lshlrev_b32 v1, 2, v0
        s_mov_b32 s6, 5
        s_mov_b64 exec, 3
        v_add_u32 v2, s6, v0
        s_endpgm
        """,
        1,
        128,
    )
    file = io.StringIO()
    launch(
        TranslatedKernel(kernel, observed=True),
        (2, 1, 1),
        [np.zeros(4, np.uint32)],
        observer=Trace(file, wave=3),
    )
    head, *lines = file.getvalue().splitlines()
    assert head == "# kernel, workgroup size (128, 1, 1), wave 3"
    shift = next(line for line in lines if "v_lshlrev_b32 v1, 2, v0" in line)
    values = shift.partition("v1=")[2].split()
    assert [int(v, 16) for v in values] == [4 * (64 + lane) for lane in range(64)]
    assert any(line.endswith("s_mov_b32 s6, 5 ; s6=00000005") for line in lines)
    add = next(line for line in lines if "v_add_u32" in line)
    assert add.partition("v2=")[2].split()[:2] == ["00000045", "00000046"]
    assert add.endswith("exec=0000000000000003")
    assert lines[-1].split(": ")[1].startswith("s_endpgm")


@pytest.mark.parametrize(
    ("shift", "conflicts"),
    # Each lane has a bank of its own; two lanes share a bank; all lanes have the same bank.
    [(2, 0), (3, 1), (8, 63)],
)
def test_bank_conflicts(shift: int, conflicts: int, assemble: Assemble) -> None:
    counts = count(assemble(STRIDED.format(shift=shift), 1, 64, 1 << 15))
    assert counts.bank_conflicts == conflicts
    assert counts.lds_written == 256
    assert counts.lds_cycles == 2 * (conflicts + 1)


@pytest.mark.parametrize(
    ("shift", "lanes", "requests"),
    # Lanes read consecutive words; words 16 bytes apart; words in cache lines of their own; others.
    [(2, 64, 16), (4, 64, 16), (7, 64, 64), (5, 64, 16), (6, 64, 32), (2, 5, 2), (7, 5, 5)],
)
def test_requests_of_a_load(shift: int, lanes: int, requests: int, assemble: Assemble) -> None:
    code = f"""
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_lshlrev_b32 v1, {shift}, v0
    s_mov_b64 exec, {(1 << lanes) - 1 if lanes < 64 else -1}
    s_waitcnt lgkmcnt(0)
    global_load_dword v2, v1, s[4:5]
    s_waitcnt vmcnt(0)
    s_endpgm
    """
    counter = Counter()
    program = TranslatedKernel(assemble(code, 1, 64))
    launch(program, (1, 1, 1), [np.zeros(2048, np.uint32)], observer=counter)
    assert counter.counts.requests == requests
    assert counter.counts.memory_read == 4 * lanes + 8


def test_classes_of_instructions() -> None:
    code = """
    s_mov_b32 s6, 5 // scalar
    s_load_dword s7, s[2:3], 0 // scalar memory
    s_waitcnt lgkmcnt(0) // wait
    v_mov_b32 v1, 0 // vector
    v_cvt_f32_u32 v2, v0 // conversion
    ds_read_b32 v3, v1 // lds
    global_load_dword v4, v1, s[2:3] // memory
    buffer_load_dword v4, off, s[8:11], 0 // memory
    scratch_load_dword v5, off, off // scratch
    v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[8:11], 0 // matrix
    s_barrier // barrier
    s_endpgm // control
    """
    (kernel,) = read_assembly(code, "k.s", workgroup=(64, 1, 1)).values()
    classes = [line.partition(" // ")[2] for line in code.strip().splitlines()]
    assert [class_of(i) for i in TranslatedKernel(kernel).instructions] == classes


def test_lanes_that_read_one_word_do_not_conflict(assemble: Assemble) -> None:
    counts = count(assemble("v_mov_b32 v1, 0\nds_read_b32 v2, v1\ns_endpgm"))
    assert (counts.bank_conflicts, counts.lds_read) == (0, 256)


def test_counts_of_a_scaled_product(scaled: Callable[..., Any]) -> None:
    m, n, k = 128, 256, 512
    counter = Counter()
    sizes = ((m, k // 2), (n, k // 2), (m, k // 32), (n, k // 32), (m, n * 4))
    program = TranslatedKernel(scaled(m, n, k).kernel)
    launch(program, (1, 1, 1), [np.zeros(s, np.uint8) for s in sizes], observer=counter)
    counts = counter.counts
    # Each instruction is 16x16x128, on one of four matrix cores, and takes 16 cycles for f4.
    products = m * n * k // (16 * 16 * 128)
    assert counts.instructions["matrix"] == products
    assert counts.matrix_cycles == products // 4 * 16
    assert counts.memory_written == m * n * 4
    # Every operand is read once, because there is only one workgroup.
    assert counts.memory_read == sum(a * b for a, b in sizes[:4])
    assert counts.waves == 8
    assert set(counts.to_dict()) >= {"bank_conflicts", "lds_read", "vector_cycles"}


def test_simulate_with_an_observer(scaled: Callable[..., Any]) -> None:
    (code,) = scaled(16, 16, 128).code
    sizes = ((16, 64), (16, 64), (16, 4), (16, 4), (16, 64))
    file = io.StringIO()
    simulate(code, (1, 1, 1), [np.zeros(s, np.uint8) for s in sizes], observer=Trace(file))
    assert "v_mfma_scale_f32_16x16x128_f8f6f4" in file.getvalue()
