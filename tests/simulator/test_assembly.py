"""Assembly text gives the same instructions, kernels and results as LLVM's machine code for it."""

import contextlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.code.instruction import Instruction
from mxc.simulator.code.text import text
from mxc.simulator.errors import AssemblyError, SimulationError
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.simulate import load_kernels, simulate
from mxc.simulator.watch.sanitizer import Sanitizer
from mxc.simulator.watch.trace import Trace

Assemble = Callable[..., CodeObjectKernel]
MIXED = """
func.func @main(%a: tensor<20x48xf16>, %b: tensor<48x24xf16>) -> tensor<20x24xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<20x24xf32>
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<20x24xf32>) -> tensor<20x24xf32>
  %p = linalg.matmul ins(%a, %b : tensor<20x48xf16>, tensor<48x24xf16>)
    outs(%c : tensor<20x24xf32>) -> tensor<20x24xf32>
  %x = math.tanh %p : tensor<20x24xf32>
  %y = arith.divf %x, %p : tensor<20x24xf32>
  return %y : tensor<20x24xf32>
}
"""


def listed(kernel: CodeObjectKernel) -> list[Instruction]:
    """Return the reachable instructions, with addresses from the start of the kernel."""
    found = TranslatedKernel(kernel).instructions
    return [replace(i, address=i.address - found[0].address) for i in found]


@pytest.fixture(scope="module", params=[(16, 16, 128), (100, 96, 2880), None], ids=str)
def both(
    request: pytest.FixtureRequest, scaled: Callable[..., Any], compiled: Callable[..., Any]
) -> tuple[CodeObjectKernel, CodeObjectKernel]:
    """Return a kernel of the stock compiler, read from its code object and from its assembly."""
    found = scaled(*request.param) if request.param else compiled(MIXED)
    name, kernel = next(iter(found.kernels.items()))
    return kernel, read_assembly(found.assembly, "stock.s")[name]


def test_text_is_the_code_object(both: tuple[CodeObjectKernel, CodeObjectKernel]) -> None:
    code, written = both
    assert listed(written) == listed(code)
    assert written.arguments == code.arguments
    assert written.workgroup == code.workgroup
    assert replace(written.descriptor, entry=code.descriptor.entry) == code.descriptor


def test_results_are_the_same_bits(scaled: Callable[..., Any], tmp_path: Path) -> None:
    m, n, k = 16, 16, 128
    found, rng = scaled(m, n, k), np.random.default_rng(4)
    sizes = ((m, k // 2), (n, k // 2), (m, k // 32), (n, k // 32))
    codes = [rng.integers(110, 140, size).astype(np.uint8) for size in sizes]
    buffers: list[Any] = [*codes, np.zeros((m, n), np.float32)]
    (tmp_path / "kernel.s").write_text(found.assembly)
    wanted = simulate(found.code[0], (1, 1, 1), buffers)[4]
    assert np.abs(wanted).max() > 0
    for given_ in (found.assembly, found.assembly.encode(), tmp_path / "kernel.s"):
        np.testing.assert_array_equal(simulate(given_, (1, 1, 1), buffers)[4], wanted)


# Forms of every encoding: LLVM assembles them, and the simulator reads them.
FORMS = """
s_mov_b32 s6, 0x3f800000
s_mov_b32 s6, -17
s_mov_b64 s[8:9], 0.5
s_mov_b64 s[8:9], 0x123456
s_add_u32 s6, s7, 64
s_and_saveexec_b64 s[8:9], vcc
s_cmp_lg_u64 s[8:9], 0
s_movk_i32 s6, 0xff80
s_cmpk_gt_u32 s6, 0xfff0
s_cselect_b64 s[10:11], -1, 0
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 5
s_getreg_b32 s6, hwreg(HW_REG_MODE)
s_load_dwordx4 s[8:11], s[2:3], 0x10
s_load_dword s6, s[2:3], s7 offset:0x20
s_load_dword s6, s[2:3], -4 glc
s_waitcnt vmcnt(3) lgkmcnt(0)
s_waitcnt lgkmcnt(2)
s_waitcnt vmcnt(40)
s_nop 3
s_setprio 1
v_mov_b32 v1, 1.5
v_mov_b32 v1, 0x3e22f983
v_mov_b64 v[2:3], s[8:9]
v_cvt_f32_f16 v1, v2
v_add_f32 v1, 2.5, v2
v_add_f32 v1, s6, v2
v_add_f32 v1, v2, s6
v_add_f32_e64 v1, -v2, |v3| clamp mul:2
v_mul_f16 v1, 0.5, v2
v_add_f16 v1, 0x1234, v2
v_fmamk_f32 v1, v2, 0x40000000, v3
v_fmaak_f32 v1, v2, v3, 0x40490fdb
v_add_co_u32 v1, vcc, v2, v3
v_addc_co_u32 v1, vcc, v2, v3, vcc
v_add_co_u32_e64 v1, s[8:9], v2, v3
v_cndmask_b32 v1, v2, v3, vcc
v_cndmask_b32 v1, v2, v3, s[8:9]
v_cmp_lt_f32 vcc, v1, v2
v_cmp_lt_f32 s[8:9], s6, v2
v_cmp_class_f32 s[8:9], v1, v2
v_readfirstlane_b32 s6, v1
v_readlane_b32 s6, v1, 3
v_writelane_b32 v1, s6, 5
v_mad_u64_u32 v[4:5], s[8:9], v1, v2, v[6:7]
v_div_scale_f32 v1, vcc, v2, v3, v2
v_div_fmas_f32 v1, v2, v3, v4
v_add_f64 v[2:3], v[4:5], -v[6:7]
v_fma_f64 v[2:3], v[4:5], 1.0, v[6:7]
v_bfe_u32 v1, v2, 4, 8
v_perm_b32 v1, v2, v3, s6
v_bitop3_b32 v1, v2, v3, v4 bitop3:0x36
v_mul_f16_e64 v1, v2, v3 clamp
v_mad_i16 v1, v2, v3, v4 op_sel:[1,0,0,1]
v_add_u32_dpp v1, v2, v3 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
v_add_f32_dpp v1, -v2, |v3| row_shr:1 row_mask:0xa bank_mask:0xf bound_ctrl:0
v_mov_b32_dpp v1, v2 row_bcast:31 row_mask:0xc bank_mask:0xf
v_or_b32_sdwa v1, v2, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_2
v_cvt_f32_i32_sdwa v1, sext(v2) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1
v_cmp_eq_u32_sdwa vcc, v1, v2 src0_sel:WORD_0 src1_sel:BYTE_3
v_or_b32_sdwa v1, v2, v3 dst_sel:BYTE_0 dst_unused:UNUSED_SEXT src0_sel:DWORD src1_sel:WORD_0
v_or_b32_sdwa v1, v2, v3 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3 src1_sel:BYTE_0
v_pk_fma_f32 v[2:3], v[4:5], v[6:7], v[8:9] op_sel_hi:[1,0,1]
v_pk_mul_f32 v[2:3], v[4:5], s[8:9] op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[1,0]
v_pk_add_f16 v1, v2, v3 neg_hi:[0,1]
v_pk_mad_u16 v1, v2, v3, v4 op_sel_hi:[0,0,0] clamp
v_dot2_f32_bf16 v1, v2, v3, v4
v_mfma_f32_16x16x32_f16 a[0:3], v[4:7], v[8:11], a[0:3]
v_mfma_f32_32x32x16_bf16 v[16:31], v[4:7], a[8:11], 0
v_mfma_f32_4x4x4_16b_f16 v[0:3], v[4:5], v[6:7], 1.0 cbsz:2 abid:3 blgp:1
v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7] neg:[1,0,1]
v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:17], v[0:3] blgp:2
v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:15], 0, v20, v21 op_sel_hi:[0,1,0] blgp:4
v_mfma_scale_f32_32x32x64_f8f6f4 a[0:15], v[4:9], v[0:5], 0, v8, v9 op_sel:[1,0,0] cbsz:2 blgp:3
v_accvgpr_write_b32 a3, v1
v_accvgpr_read_b32 v1, a3
v_cvt_scalef32_pk_f32_fp8 v[2:3], v4, v5 op_sel:[1,0,0]
v_cvt_scalef32_pk_fp8_bf16 v1, v2, v3 op_sel:[0,0,1]
v_cvt_scalef32_pk_fp4_f32 v1, v2, v3, v4 op_sel:[0,0,1,1]
ds_read_b128 v[4:7], v1 offset:64
ds_read2_b32 v[2:3], v1 offset0:1 offset1:9
ds_read2st64_b64 v[4:7], v1 offset1:1
ds_write2_b32 v1, v2, v3 offset1:4
ds_write_b64 v1, a[2:3]
ds_read_u16_d16_hi v1, v2
ds_bpermute_b32 v1, v2, v3
ds_swizzle_b32 v1, v2 offset:swizzle(BITMASK_PERM,"01pip")
ds_swizzle_b32 v1, v2 offset:swizzle(QUAD_PERM,1,0,3,2)
ds_swizzle_b32 v1, v2 offset:swizzle(BROADCAST,32,31)
ds_swizzle_b32 v1, v2 offset:swizzle(BROADCAST,2,1)
ds_swizzle_b32 v1, v2 offset:swizzle(SWAP,1)
ds_swizzle_b32 v1, v2 offset:swizzle(SWAP,16)
ds_swizzle_b32 v1, v2 offset:swizzle(REVERSE,32)
ds_swizzle_b32 v1, v2 offset:swizzle(REVERSE,8)
ds_read_b64_tr_b16 v[2:3], v1
global_load_dwordx4 v[4:7], v1, s[2:3] offset:-16 nt
global_load_dwordx3 v[2:4], v1, s[2:3]
global_load_dword a1, v[2:3], off sc0 sc1
global_store_short v1, v2, s[2:3]
global_store_dwordx2 v[2:3], v[4:5], off offset:4095
global_load_lds_dwordx4 v1, s[2:3] offset:16
flat_load_dword v1, v[2:3] offset:8
scratch_load_dwordx2 v[2:3], off, off offset:16
scratch_store_dword off, v1, s33 offset:4
scratch_load_dword v1, v2, off
buffer_load_dwordx4 v[4:7], v1, s[8:11], 0 offen offset:16
buffer_store_dword v1, off, s[8:11], s6 offset:4 sc0
buffer_load_ubyte v1, v2, s[8:11], 0 offen
buffer_load_dword v1, s[8:11], 0 offen lds
s_endpgm
"""
MOVES = ["row_bcast:15", "row_shl:1", "row_ror:15", "row_newbcast:0", "row_mirror"]
MOVES += ["row_half_mirror", "wave_shl:1", "wave_rol:1", "wave_shr:1", "wave_ror:1"]
FORMS = "\n".join(f"v_mov_b32_dpp v1, v2 {m} row_mask:0xf bank_mask:0x5" for m in MOVES) + FORMS


def test_every_form_is_what_llvm_makes_of_it(assemble: Assemble) -> None:
    lines = FORMS.strip().splitlines()
    wanted = TranslatedKernel(assemble(FORMS.replace('"', r"\22"))).instructions[-len(lines) :]
    (kernel,) = read_assembly(FORMS, "forms.s", workgroup=(64, 1, 1)).values()
    for line, ours, theirs in zip(lines, listed(kernel), wanted, strict=True):
        assert replace(ours, address=0) == replace(theirs, address=0), line


def test_what_is_printed_can_be_read(assemble: Assemble) -> None:
    lines = [text(i) for i in TranslatedKernel(assemble(FORMS.replace('"', r"\22"))).instructions]
    (kernel,) = read_assembly("\n".join(lines), "again.s", workgroup=(64, 1, 1)).values()
    assert [text(i) for i in listed(kernel)] == lines


ADD = """
// Adds two arrays of 32-bit integers.
  v_lshlrev_b32 v1, 2, v0            ; bytes
  s_lshl_b32 s12, s8, 8
  v_add_u32_e32 v1, s12, v1
  global_load_dword v2, v1, s[2:3]
  global_load_dword v3, v1, s[4:5]
  /* both are
     waited for */
  {wait}
  v_add_u32 v2, v2, v3
  v_mul_lo_u32 v2, v2, s7
loop: s_sub_u32 s6, s6, 1
  v_add_u32 v2, 1, v2
  s_cmp_lg_u32 s6, 0
  s_cbranch_scc1 loop
  global_store_dword v1, v2, s[2:3]
  s_endpgm
"""


def test_a_snippet() -> None:
    a, b = np.arange(128, dtype=np.int32), np.arange(128, dtype=np.int32) ** 2
    code = ADD.format(wait="s_waitcnt vmcnt(0)")
    found = simulate(code, (2, 1, 1), [a, b], [5, 3], workgroup=(64, 1, 1))
    np.testing.assert_array_equal(found[0], (a + b) * 3 + 5)
    with pytest.raises(AssemblyError, match=r"give it as workgroup=\(64, 1, 1\)"):
        simulate(code, (2, 1, 1), [a, b], [5, 3])


def test_findings_and_traces_say_the_line(tmp_path: Path) -> None:
    path = tmp_path / "add.s"
    path.write_text(ADD.format(wait="s_nop 0"))
    data, sanitizer, trace = np.zeros(64, np.int32), Sanitizer(), io.StringIO()
    for observer in (sanitizer, Trace(trace)):
        simulate(path, (1, 1, 1), [data, data], [1, 1], workgroup=(64, 1, 1), observer=observer)
    (finding,) = {f.place for f in sanitizer.findings if f.kind == "wait"}
    assert finding == f"kernel, 0x20 ({path}:11): v_add_u32 v2, v2, v3"
    assert f"0x20 ({path}:11): v_add_u32 v2, v2, v3 ; v2=" in trace.getvalue()
    path.write_text("global_load_dword v1, v0, s[2:3] offset:4000\ns_endpgm")
    with pytest.raises(SimulationError, match=r"add.s:1\): global_load_dword"):
        simulate(path, (1, 1, 1), [data], workgroup=(64, 1, 1))


KERNEL = """
  .set stride, 4 * (1 + 1)
  .text
  .p2align 8
scale:
  v_lshlrev_b32_e32 v1, 2, v0
  ds_write_b32 v1, v0 offset:stride
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v2, v1 offset:2*stride-8
  s_waitcnt lgkmcnt(0)
  s_load_dwordx2 s[2:3], s[0:1], 0x0
  s_load_dword s4, s[0:1], 0x8
  s_waitcnt lgkmcnt(0)
  v_mul_lo_u32 v2, v2, s4
  global_store_dword v1, v2, s[2:3]
  s_endpgm
  .amdhsa_kernel scale
    .amdhsa_group_segment_fixed_size 512 + stride
    .amdhsa_user_sgpr_kernarg_segment_ptr 1
    .amdhsa_next_free_vgpr max(totalnumvgprs(callee.num_agpr, callee.num_vgpr), 1, 0)
    .amdhsa_next_free_sgpr 8
    .amdhsa_accum_offset ((alignto(max(1, callee.num_vgpr), 4))/4)*4
  .end_amdhsa_kernel
  .set callee.num_vgpr, max(3, inner.num_vgpr)
  .set callee.num_agpr, 4
  .set inner.num_vgpr, 17
"""
METADATA = """
  .amdgpu_metadata
---
amdhsa.kernels:
  - .name: scale
    .symbol: 'scale.kd'
    .reqd_workgroup_size: [128, 1, 1]
    .args:
      - .size: 8
        .offset: 0
        .value_kind: global_buffer
      - .size: 4
        .offset: 8
        .value_kind: by_value
...
  .end_amdgpu_metadata
"""


def test_a_kernel_with_its_descriptor() -> None:
    (kernel,) = load_kernels(KERNEL, workgroup=(128, 1, 1), buffers=1, constants=1).values()
    d = kernel.descriptor
    assert (d.lds_bytes, d.first_agpr, d.vgprs, d.user_sgprs, d.mode) == (520, 20, 24, 2, 0x3C0)
    (found,) = simulate(KERNEL, (1, 1, 1), [np.zeros(128, np.int32)], [7], workgroup=(128, 1, 1))
    np.testing.assert_array_equal(found, np.arange(128) * 7)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("v_add_u33 v0, v1, v2", r"v_add_u33: no instruction of gfx950; there is v_add_u32"),
        ("v_add_u32 v0, v1", "takes 3 operands, found 2"),
        ("v_add_u32 v0, v1, v256", "v256 does not exist; v0 to v255 do"),
        ("v_add_u32 v0, v1, w2", "'w2' has no value here"),
        ("v_add_f32 v0, ||, v2", "no operand|has no value"),
        ("v_add_u32 v0, v1, @", "'@' is no operand"),
        ("s_add_u32 s0, v1, s2", "v1 is no scalar operand"),
        ("v_add_f64 v[2:3], v[4:5], v6", "v6 is 1 registers, wanted 2"),
        ("v_add_f64 v[3:4], v[4:5], v[6:7]", r"v\[3:4\] does not begin at a multiple of 2"),
        ("s_load_dwordx4 s[2:5], s[0:1], 0", r"s\[2:5\] does not begin at a multiple of 4"),
        ("v_add_u32 v0, 0x100000000, v1", "0x100000000 does not fit into 32 bits"),
        ("v_add_u32 v0, -0x80000001, v1", "-0x80000001 does not fit into 32 bits"),
        ("v_add_u32_e64 v0, v1, 0x12345", "takes no 32-bit constant, found 0x12345"),
        ("s_add_u32 s0, 0x12345, 0x23456", "takes one 32-bit constant, found two"),
        ("v_add_f32 v0, v1, v2 clamp clamp", "clamp is given twice"),
        ("v_add_f32 v0, v1, v2 sc0", "sc0 is no modifier of it"),
        ("v_add_f32 v0, v1, v2 wide", "'v2 wide'"),
        ("ds_read_b32 v0, v1 offset:65536", "offset is 65536, wanted 0 to 65535"),
        ("global_load_dword v0, v1, s[2:3] offset:4096", "wanted -4096 to 4095"),
        ("s_branch nowhere", "no label 'nowhere'"),
        ("s_waitcnt vscnt(0)", "no counter 'vscnt'"),
        ("s_waitcnt vmcnt(64)", "wanted 0 to 63"),
        ("s_movk_i32 s0, 0x10000", "does not fit into 16 bits"),
        ("v_mfma_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], 0", "is 2 registers, wanted 4"),
        ("v_mfma_f32_16x16x32_f16 v[0:3], s[4:7], v[6:9], 0", "s\\[4:7\\], wanted vector or acc"),
        ("v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[6:9], a[0:3]", "different register files"),
        ("buffer_load_dword v0, v1, s[4:7], 0", "v1 needs offen or idxen"),
        (".bundle_align_mode 4", "the directive .bundle_align_mode is not known"),
        (".amdhsa_kernel x", ".amdhsa_kernel without .end_amdhsa_kernel"),
        (".amdgpu_metadata", ".amdgpu_metadata without .end_amdgpu_metadata"),
        (".fill 1 << 40, 4", ".fill"),
        ("/* never closed", "a comment /\\* without its \\*/"),
        ("v_mov_b32 v0, 1/0", "'1/0': / by 0"),
        ("v_mov_b32 v0, " + "(" * 200 + "1", "nested deeper"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(line: str, reason: str) -> None:
    with pytest.raises(AssemblyError, match=f"^bad.s:2: .*{reason}"):
        read_assembly(f"s_nop 0\n{line}\ns_endpgm", "bad.s", workgroup=(64, 1, 1))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("callee.num_agpr, 4", "callee.num_agpr, 4 4", r"x.s:\d+: .*num_agpr' has no value"),
        ("sgpr_kernarg", "sgpr_dispatch", r"x.s:20: .*user_sgpr_dispatch_segment_ptr is no field"),
        ("scale:", "scala:", r"x.s:18: no label scale"),
        ("accum_offset ((", "accum_offset 3+((", "wanted at most 512, and a multiple of 4"),
        ("next_free_sgpr 8", "user_sgpr_flat_scratch_init 1", "flat_scratch_init .* not provide"),
        ("next_free_sgpr 8", "system_sgpr_workgroup_info 1", "simulator does not provide it"),
        ("  .set inner", "    - :\n  .set inner", "x.s:27: -: no instruction"),
    ],
)
def test_broken_kernels(old: str, new: str, reason: str) -> None:
    with pytest.raises(AssemblyError, match=reason):
        read_assembly(KERNEL.replace(old, new), "x.s", workgroup=(128, 1, 1))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (".size: 4", ".size: {}", r"metadata: .*YAML that metadata of kernels does not have"),
        (".size: 8", ".size: x", "wanted a number"),
        ("amdhsa.kernels", "amdhsa.kernel", "no 'amdhsa.kernels'"),
        ("[128, 1, 1]", "[128, 1", "a list without its end"),
        (".symbol:", "  .symbol:", "does not stand where it belongs"),
        (".symbol", ".name", "for the second time"),
    ],
)
def test_broken_metadata(old: str, new: str, reason: str) -> None:
    assert old in METADATA
    with pytest.raises(AssemblyError, match=f"^x.s:.*{reason}"):
        read_assembly(KERNEL + METADATA.replace(old, new, 1), "x.s")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_text_is_read_or_refused(data: st.DataObject) -> None:
    """Damaged forms: a character or a word of a line is another one, or is not there."""
    lines = FORMS.strip().splitlines() + KERNEL.strip().splitlines() + METADATA.splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    line = lines[at]
    place = data.draw(st.integers(0, len(line)))
    size = data.draw(st.integers(0, 4))
    new = data.draw(st.text(st.sampled_from("v[]0:19-s,()|x.a \"'%+{}~off\t"), max_size=4))
    whole = data.draw(st.booleans())
    damaged = line[:place] + new + line[place + size :]
    given_ = [*lines[:at], damaged, *lines[at + 1 :]] if whole else [damaged, "s_endpgm"]
    with contextlib.suppress(AssemblyError, SimulationError):
        for kernel in read_assembly("\n".join(given_), "f.s", workgroup=(64, 1, 1)).values():
            TranslatedKernel(kernel)
