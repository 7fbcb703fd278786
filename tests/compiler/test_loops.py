"""Which loop of a kernel is the hot one, and what is counted in it."""

from mxc.compiler.report.loops import hot_loop

MFMA = "\tv_mfma_scale_f32_16x16x128_f8f6f4 a[0:3], v[0:3], v[4:7], a[0:3], v8, v9 cbsz:4 blgp:4"
LOAD = "\tbuffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen"


def kernel(*parts: str) -> str:
    return "\n".join(["; %bb.0:", "\ts_load_dwordx4 s[0:3], s[4:5], 0x0", *parts, "\ts_endpgm"])


def loop(name: str, *body: str) -> str:
    return "\n".join([f".LBB0_{name}:", *body, f"\ts_cbranch_scc1 .LBB0_{name}"])


def test_each_kind_of_instruction_is_counted() -> None:
    body = kernel(
        loop(
            "1",
            MFMA,
            MFMA,
            "\tds_read_b128 v[0:3], v4",
            "\tds_read_u8 v0, v1",
            "\tds_write_b64 v4, v[0:1]",
            "\tbuffer_load_dwordx4 v1, s[0:3], 0 offen lds",
            "\tglobal_load_lds_dwordx4 v[0:1], off",
            LOAD,
            "\tglobal_store_dwordx4 v[0:1], v[2:5], off",
            "\tscratch_load_dword v0, off, s32",
            "\tv_perm_b32 v0, v1, v2, s3",
            "\tv_cvt_scalef32_pk_bf16_fp4 v0, v1, 1.0",
            "\tv_accvgpr_read_b32 v0, a0",
            "\tv_add_u32_e32 v0, 1, v0   ; v_perm_b32 in a comment",
            "\ts_load_dword s0, s[2:3], 0x0",
            "\ts_add_i32 s2, s2, 1",
            "\ts_waitcnt vmcnt(0)",
            "\ts_barrier",
            "\ts_nop 1",
        )
    )
    found = hot_loop(body)
    assert found.is_loop
    assert found.census == {
        "matrix": 2, "ds_read": 2, "ds_write": 1, "load_to_lds": 2, "global_load": 1,
        "global_store": 1, "scratch": 1, "v_perm": 1, "convert": 1, "accvgpr": 1, "valu": 1,
        "scalar_load": 1, "salu": 1, "wait": 1, "barrier": 1, "nop": 1, "branch": 1,
    }  # fmt: skip


def test_a_branch_back_to_the_end_of_the_kernel_is_no_loop() -> None:
    """LLVM puts an early end before what follows, which branches back to it."""
    early = "\ts_cbranch_scc0 .LBB0_2\n.LBB0_1:\n\ts_nop 0\n\ts_endpgm\n.LBB0_2:"
    found = hot_loop(kernel(MFMA, early, LOAD, "\ts_cbranch_execz .LBB0_1"))
    assert not found.is_loop
    assert found.census["matrix"] == 1


def test_the_loop_with_most_matrix_instructions_is_hot() -> None:
    body = kernel(loop("1", *[LOAD] * 9), loop("2", MFMA, MFMA), loop("3", MFMA))
    assert hot_loop(body).census == {"matrix": 2, "branch": 1}


def test_of_loops_without_matrix_instructions_that_with_most_loads() -> None:
    body = kernel(loop("1", LOAD, LOAD), loop("2", *["\tv_add_u32_e32 v0, 1, v0"] * 9))
    assert hot_loop(body).census == {"global_load": 2, "branch": 1}


def test_the_innermost_of_nested_loops_is_hot_even_if_more_is_around_it() -> None:
    inner = loop("2", MFMA, LOAD)
    body = kernel(loop("1", *[MFMA] * 5, inner))
    assert hot_loop(body).census == {"matrix": 1, "global_load": 1, "branch": 1}


def test_an_inner_loop_without_the_work_does_not_hide_it() -> None:
    waiting = loop("2", "\ts_sleep 1")
    body = kernel(loop("1", MFMA, MFMA, waiting))
    assert hot_loop(body).census["matrix"] == 2


def test_several_branches_back_are_one_loop_and_forward_ones_none() -> None:
    body = kernel(
        ".LBB0_1:", MFMA, "\ts_cbranch_scc1 .LBB0_1", "\ts_cbranch_vccz .LBB0_2", MFMA,
        "\ts_branch .LBB0_1", ".LBB0_2:",
    )  # fmt: skip
    assert hot_loop(body).census == {"matrix": 2, "branch": 3}


def test_a_kernel_without_a_loop_is_taken_as_a_whole() -> None:
    forward = ("\ts_cbranch_scc1 .LBB0_2", MFMA, ".LBB0_2:")
    found = hot_loop(kernel(*forward))
    assert not found.is_loop
    assert found.census == {"matrix": 1, "scalar_load": 1, "branch": 2}
