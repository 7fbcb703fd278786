"""Assembly texts: a hand-written one of each dialect, checked line by line."""

import dataclasses

from mxc.artifact.code_objects.metadata import resources
from mxc.compiler.report.assembly import KernelCode, parse, parse_all
from mxc.simulator.assembly.metadata import metadata_of

GPU = """\
\t.amdgcn_target "amdgcn-amd-amdhsa--gfx950"
\t.globl\tmatmul
\t.p2align\t8
\t.type\tmatmul,@function
matmul:                                 ; @matmul
; %bb.0:
\ts_load_dwordx4 s[0:3], s[4:5], 0x0
\tv_mfma_scale_f32_16x16x128_f8f6f4 a[0:3], v[0:3], v[4:7], a[0:3], v8, v9 cbsz:4 blgp:4
.LBB0_1:                                ; =>This Inner Loop: v_mfma_f32_16x16x16_f16 is a comment
\tv_mfma_scale_f32_16x16x128_f8f6f4 a[0:3], v[0:3], v[4:7], a[0:3], v8, v9 cbsz:4 blgp:4
\t; v_fma_f32 v0, v1, v2, v3
\tv_cvt_scalef32_pk_f32_fp4 v[2:3], v4, v5
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
\t.section\t.rodata,"a",@progbits
\t.amdhsa_kernel matmul
\t\t.amdhsa_group_segment_fixed_size 999
\t.end_amdhsa_kernel
\t.text
.Lfunc_end0:
\t.size\tmatmul, .Lfunc_end0-matmul
\t.globl\tcopy
\t.type\tcopy,@function
copy:
\tbuffer_store_dword v0, v1, s[0:3], 0 offen
\ts_endpgm
.Lfunc_end1:
\t.size\tcopy, .Lfunc_end1-copy
\tv_fma_f32 v0, v1, v2, v3
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     4
    .args:
      - .address_space:  global
        .name:           a
        .size:           8
    .group_segment_fixed_size: 26112
    .max_flat_workgroup_size: 512
    .name:           matmul
    .private_segment_fixed_size: 36
    .reqd_workgroup_size:
      - 512
      - 1
      - 1
    .sgpr_count:     27
    .sgpr_spill_count: 2
    .symbol:         matmul.kd
    .vgpr_count:     127
    .vgpr_spill_count: 8
  - .args:
      - .size:           8
    .group_segment_fixed_size: 0
    .max_flat_workgroup_size: 64
    .name:           copy
    .private_segment_fixed_size: 0
    .sgpr_count:     6
    .sgpr_spill_count: 0
    .vgpr_count:     2
    .vgpr_spill_count: 0
amdhsa.target:   amdgcn-amd-amdhsa--gfx950
amdhsa.version:
  - 1
  - 2
...

\t.end_amdgpu_metadata
"""

X86 = """\
\t.text
\t.type\tmatmul,@function
matmul:
.Lfunc_begin0:
\t.cfi_startproc
\tpushq\t%rbp
\tsubq\t$192, %rsp
\tvmovups\t(%rdi), %zmm0
\tvfmadd231ps\t(%rsi){1to16}, %zmm0, %zmm1   # vfmadd132ps in a comment
\tvfmadd231ps\t%zmm0, %zmm2, %zmm1
\tvfmadd231ps\t%xmm0, %xmm2, %xmm1
\tvmovups\t%zmm1, 64(%rsp)
\tvmovaps\t%ymm1, (%rsp)
\tvmovups\t%zmm1, (%rdx)
\t{vex}\tvpdpbusd\t%ymm0, %ymm1, %ymm2
\tvzeroupper
\tretq   # kill: %zmm0
.Lfunc_end0:
\t.size\tmatmul, .Lfunc_end0-matmul
\t.type\t.Ltable,@object
.Ltable:
\t.long\t1
"""

ARM = """\
\t.type\tmatmul,@function
matmul:
\tstr\tq0, [sp, #16]
\tfmla\tv0.4s, v1.4s, v2.s[0]
\tfmla\tv0.4s, v1.4s, v2.s[1]
\tb.ne\t.LBB0_1
\tret
.Lfunc_end0:
"""


def test_gpu_kernels_have_their_registers_memory_and_instructions() -> None:
    matmul, copy = parse(GPU, None, resources(metadata_of(GPU, "here")))
    assert matmul == KernelCode(
        name="matmul",
        instructions={
            "v_mfma_scale_f32_16x16x128_f8f6f4": 2,
            "s_load_dwordx4": 1,
            "v_cvt_scalef32_pk_f32_fp4": 1,
            "s_cbranch_scc1": 1,
            "s_endpgm": 1,
        },
        spills=10,
        scratch_bytes=36,
        vgpr=127,
        agpr=4,
        sgpr=27,
        lds_bytes=26112,
        workgroup_size=512,
    )
    assert next(iter(matmul.instructions)) == "v_mfma_scale_f32_16x16x128_f8f6f4"
    assert copy.instructions == {"buffer_store_dword": 1, "s_endpgm": 1}
    assert (copy.vgpr, copy.agpr, copy.spills, copy.workgroup_size) == (2, 0, 0, 64)


def test_x86_functions_count_vector_instructions_by_width_and_their_stack() -> None:
    (matmul,) = parse(X86)
    assert matmul.instructions == {
        "vmovups zmm": 3,
        "vfmadd231ps zmm": 2,
        "pushq": 1,
        "subq": 1,
        "vfmadd231ps xmm": 1,
        "vmovaps ymm": 1,
        "vpdpbusd ymm": 1,
        "vzeroupper": 1,
        "retq": 1,
    }
    assert (matmul.spills, matmul.scratch_bytes) == (2, 192)
    assert (matmul.vgpr, matmul.lds_bytes) == (None, None)


def test_aarch64_functions_are_read_too() -> None:
    (matmul,) = parse(ARM)
    assert matmul.instructions == {"fmla": 2, "str": 1, "b.ne": 1, "ret": 1}
    assert matmul.spills == 1


def test_quoted_names_are_read_without_their_quotes() -> None:
    (kernel,) = parse(ARM.replace("matmul", '"a/b~c"'))
    assert (kernel.name, kernel.instructions["fmla"]) == ("a/b~c", 2)


def test_texts_without_functions_are_empty_and_several_files_are_one_table() -> None:
    assert parse("") == []
    assert parse("\t.text\n") == []
    taken = resources(metadata_of(GPU, "here"))
    texts = [GPU, ARM.replace("matmul", "other")]
    assert list(parse_all(texts, None, taken)) == ["matmul", "copy", "other"]
    assert list(parse_all(texts, None, {"copy": taken["copy"]})) == ["copy", "other"]
    assert list(parse_all(texts)) == ["other"]
    # The text is that of a copy of the kernel; what is loaded is the code object.
    other = dataclasses.replace(taken["copy"], vgpr=9, spills=1)
    found = parse_all(texts, None, {"copy": other})["copy"]
    assert (found.vgpr, found.spills) == (9, 1)
