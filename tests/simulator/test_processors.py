"""gfx942 on the simulator: instructions that only gfx950 has are refused; FNUZ floats."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mxc.errors import CodeObjectError
from mxc.simulator.code.code_object import CodeObjectKernel, read_kernels
from mxc.simulator.code.processors import refusal
from mxc.simulator.code.words import OPCODES
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.targets.amd import GFX942, GFX950

#: Opcodes of the simulator that LLVM 22's disassembler knows for gfx950 but not for gfx942, apart
#: from v_cvt_scalef32_* and ds_read_*_tr_*, all of which only gfx950 has.
OF_GFX950 = {
    "buffer_atomic_pk_add_bf16",
    "global_load_lds_dwordx3",
    "global_load_lds_dwordx4",
    "v_ashr_pk_i8_i32",
    "v_ashr_pk_u8_i32",
    "v_bitop3_b16",
    "v_bitop3_b32",
    "v_cvt_f32_bf16",
    "v_cvt_pk_bf16_f32",
    "v_cvt_pk_f16_f32",
    "v_cvt_sr_bf16_f32",
    "v_cvt_sr_f16_f32",
    "v_dot2_f32_bf16",
    "v_dot2c_f32_bf16",
    "v_maximum3_f32",
    "v_mfma_f32_16x16x128_f8f6f4",
    "v_mfma_f32_16x16x32_bf16",
    "v_mfma_f32_16x16x32_f16",
    "v_mfma_f32_32x32x16_bf16",
    "v_mfma_f32_32x32x16_f16",
    "v_mfma_f32_32x32x64_f8f6f4",
    "v_mfma_i32_16x16x64_i8",
    "v_mfma_i32_32x32x32_i8",
    "v_minimum3_f32",
    "v_permlane16_swap_b32",
    "v_permlane32_swap_b32",
    "v_pk_maximum3_f16",
    "v_pk_minimum3_f16",
    "v_prng_b32",
    "v_smfmac_f32_16x16x128_bf8_bf8",
    "v_smfmac_f32_16x16x128_bf8_fp8",
    "v_smfmac_f32_16x16x128_fp8_bf8",
    "v_smfmac_f32_16x16x128_fp8_fp8",
    "v_smfmac_f32_16x16x64_bf16",
    "v_smfmac_f32_16x16x64_f16",
    "v_smfmac_f32_32x32x32_bf16",
    "v_smfmac_f32_32x32x32_f16",
    "v_smfmac_f32_32x32x64_bf8_bf8",
    "v_smfmac_f32_32x32x64_bf8_fp8",
    "v_smfmac_f32_32x32x64_fp8_bf8",
    "v_smfmac_f32_32x32x64_fp8_fp8",
    "v_smfmac_i32_16x16x128_i8",
    "v_smfmac_i32_32x32x64_i8",
}


def test_what_gfx942_does_not_have() -> None:
    names = {name for table in OPCODES.values() for name in table.values()}
    refused = {name for name in names if "has no" in (refusal(name, GFX942) or "")}
    newer = {n for n in refused if n.startswith("v_cvt_scalef32_") or "_tr_" in n}
    assert newer
    assert refused - newer == OF_GFX950
    eight = {name for name in names - refused if refusal(name, GFX942) is not None}
    assert eight >= {"v_cvt_pk_fp8_f32", "v_smfmac_f32_16x16x64_bf8_fp8"}
    assert not eight & {"v_cvt_pk_f32_fp8", "v_mfma_f32_16x16x32_bf8_fp8"}
    assert all("fp8" in name or "bf8" in name for name in eight)
    assert not [name for name in names if refusal(name, GFX950) is not None]


def test_a_code_object_of_gfx942_ends_where_it_has_something_newer(
    scaled: Callable[..., Any],
) -> None:
    """The same bytes, called code for the other processor."""
    (code,) = scaled(16, 16, 128).code
    flags = int.from_bytes(code[48:52], "little")
    other = code[:48] + (flags & ~0xFF | 0x4C).to_bytes(4, "little") + code[52:]
    (kernel,) = read_kernels(other).values()
    assert kernel.processor is GFX942
    assert not TranslatedKernel(scaled(16, 16, 128).kernel).unmodelled
    refused = TranslatedKernel(kernel).unmodelled
    assert {each.split()[0] for each in refused} == {
        "v_bitop3_b32",
        "v_mfma_scale_f32_16x16x128_f8f6f4",
    }


def test_a_code_object_of_another_processor() -> None:
    header = b"\x7fELF\x02\x01".ljust(18, b"\0") + (224).to_bytes(2, "little")
    with pytest.raises(CodeObjectError, match=r"0x4f \(gfx950\) or 0x4c \(gfx942\), found"):
        read_kernels(header.ljust(64, b"\0"))


#: FNUZ types of gfx942, by their names in instructions.
FNUZ = {"fp8": ml_dtypes.float8_e4m3fnuz, "bf8": ml_dtypes.float8_e5m2fnuz}

WIDEN = """
  v_lshlrev_b32 v1, 2, v0
  v_lshlrev_b32 v2, 4, v0
  global_load_dword v3, v1, s[2:3]
  s_waitcnt vmcnt(0)
  v_cvt_f32_{kind} v4, v3
  v_cvt_f32_{kind}_sdwa v5, v3 src0_sel:BYTE_1
  v_cvt_pk_f32_{kind}_sdwa v[6:7], v3 src0_sel:WORD_1
  s_nop 1
  global_store_dwordx4 v2, v[4:7], s[4:5]
  s_endpgm
"""


def run(kernel: CodeObjectKernel, *buffers: Any) -> None:
    """Run a kernel that was assembled for gfx950 as one of gfx942; buffers change in place."""
    program = TranslatedKernel(replace(kernel, processor=GFX942))
    assert not program.unmodelled
    launch(program, (1, 1, 1), buffers)


@pytest.mark.parametrize("kind", FNUZ)
def test_every_eight_bit_float_is_fnuz(
    kind: str, assemble: Callable[..., CodeObjectKernel]
) -> None:
    codes, found = np.arange(256, dtype=np.uint8), np.zeros(256, np.float32)
    run(assemble(WIDEN.format(kind=kind), buffers=2), codes, found)
    np.testing.assert_array_equal(found, codes.view(FNUZ[kind]).astype(np.float32))


PRODUCT = """
  v_lshlrev_b32 v1, 3, v0
  v_lshlrev_b32 v2, 4, v0
  global_load_dwordx2 v[4:5], v1, s[2:3]
  global_load_dwordx2 v[6:7], v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_mfma_f32_16x16x32_{left}_{right} v[8:11], v[4:5], v[6:7], 0
  s_nop 15
  global_store_dwordx4 v2, v[8:11], s[6:7]
  s_endpgm
"""


@pytest.mark.parametrize("left", FNUZ)
@pytest.mark.parametrize("right", FNUZ)
def test_products_of_fnuz_floats(
    left: str, right: str, assemble: Callable[..., CodeObjectKernel]
) -> None:
    """Lane l holds 8 elements of row l % 16, of group l / 16 along K (CDNA3 ISA guide, 7.1.4)."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 0x60, (2, 16, 32)).astype(np.uint8)
    held = [np.ascontiguousarray(c.reshape(16, 4, 8).transpose(1, 0, 2)) for c in codes]
    found = np.zeros((4, 16, 4), np.float32)
    run(assemble(PRODUCT.format(left=left, right=right), buffers=3), *held, found)
    a, b = (c.view(FNUZ[k]).astype(np.float64) for c, k in zip(codes, (left, right), strict=True))
    # Lane l has the four rows from 4 (l / 16) on of column l % 16.
    result = found.transpose(0, 2, 1).reshape(16, 16)
    np.testing.assert_allclose(result, a @ b.T, rtol=1e-6)
