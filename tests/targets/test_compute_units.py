"""Registers, LDS and matrix clocks of compute units, against LLVM and AMD's tables."""

import pytest

from mxc.targets.amd import known_gpu
from mxc.targets.compute_unit import ComputeUnit
from mxc.targets.mfma_clocks import matrix_clocks

#: Waves a SIMD by registers a lane: what LLVM 22's llc prints as "Occupancy" of a kernel that uses
#: the last of them.
CDNA = {8: 8, 64: 8, 65: 7, 72: 7, 73: 6, 80: 6, 81: 5, 97: 4, 128: 4, 129: 3, 168: 3, 169: 2,
        256: 2, 257: 1, 512: 1}  # fmt: skip
RDNA4 = {8: 16, 96: 16, 97: 12, 128: 10, 168: 9, 169: 8, 192: 8, 193: 7, 256: 5}
GFX1250 = {64: 16, 65: 12, 80: 12, 81: 10, 97: 9, 128: 8, 129: 7, 168: 5, 193: 4, 256: 4}
#: The same by bytes of LDS of a workgroup of 256.
LDS = {
    "gfx950": {1: 8, 16384: 8, 26112: 6, 34816: 4, 53248: 3, 81920: 2, 104448: 1, 163840: 1},
    "gfx942": {1: 8, 16384: 4, 20000: 3, 26112: 2, 34816: 1, 65536: 1},
    "gfx1201": {1: 16, 16384: 16, 20000: 12, 26112: 10, 34816: 6, 65536: 4},
    "gfx1250": {1: 16, 40960: 16, 53248: 12, 65536: 10, 104448: 6, 163840: 4, 327680: 2},
}


def unit(target: str) -> ComputeUnit:
    return known_gpu(target).unit


@pytest.mark.parametrize(
    ("target", "waves"),
    [
        ("gfx950", CDNA),
        ("gfx942", CDNA),
        ("gfx1151", RDNA4),
        ("gfx1201", RDNA4),
        ("gfx1250", GFX1250),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_registers_limit_waves_as_llvm_says(target: str, waves: dict[int, int]) -> None:
    one = unit(target)
    held = [one.occupancy(registers=r, lds_bytes=0, workgroup_size=one.wave) for r in waves]
    assert [each.waves_per_simd for each in held] == list(waves.values())


@pytest.mark.parametrize("target", LDS)
def test_lds_limits_waves_as_llvm_says(target: str) -> None:
    held = [
        unit(target).occupancy(registers=8, lds_bytes=size, workgroup_size=256)
        for size in LDS[target]
    ]
    assert [each.waves_per_simd for each in held] == list(LDS[target].values())


def test_what_limits_a_kernel_is_named_and_half_a_workgroup_does_not_run() -> None:
    large = unit("gfx950").occupancy(registers=215, lds_bytes=34816, workgroup_size=512)
    assert (large.waves_per_simd, large.workgroups, large.limited_by) == (2, 1, "registers")
    # 3 waves a SIMD have registers: 12 in all, of which one workgroup of 8 leaves 4 unused.
    odd = unit("gfx950").occupancy(registers=136, lds_bytes=0, workgroup_size=512)
    assert (odd.waves_per_simd, odd.workgroups) == (2, 1)
    shared = unit("gfx950").occupancy(registers=32, lds_bytes=60000, workgroup_size=256)
    assert (shared.workgroups, shared.limited_by) == (2, "LDS")
    small = unit("gfx950").occupancy(registers=32, lds_bytes=0, workgroup_size=256)
    assert (small.workgroups, small.limited_by) == (8, "waves")


#: CDNA4 ISA guide, table 28 (cycles) and 7.1.5; sparse ones: table 33.
CLOCKS = {
    ("v_mfma_f32_32x32x1_2b_f32", ""): 64,
    ("v_mfma_f32_16x16x4_f32", ""): 32,
    ("v_mfma_f32_16x16x4_4b_f16", ""): 32,
    ("v_mfma_f32_4x4x4_16b_f16", ""): 8,
    ("v_mfma_f32_32x32x8_f16", ""): 32,
    ("v_mfma_f32_16x16x16_bf16", ""): 16,
    ("v_mfma_f32_16x16x32_bf16", ""): 16,
    ("v_mfma_f32_32x32x16_f16", ""): 32,
    ("v_mfma_i32_16x16x64_i8", ""): 16,
    ("v_mfma_i32_32x32x16_i8", ""): 32,
    ("v_mfma_f64_16x16x4_f64", ""): 64,
    ("v_mfma_f64_4x4x4_4b_f64", ""): 32,
    ("v_mfma_f32_16x16x32_fp8_bf8", ""): 16,
    ("v_smfmac_f32_16x16x64_f16", "v[0:3], v[4:5]"): 16,
    ("v_mfma_scale_f32_16x16x128_f8f6f4", "cbsz:4 blgp:4"): 16,
    ("v_mfma_scale_f32_16x16x128_f8f6f4", "op_sel_hi:[0,0,0] cbsz:4"): 32,
    ("v_mfma_scale_f32_16x16x128_f8f6f4", "cbsz:1 blgp:2"): 32,
    ("v_mfma_f32_16x16x128_f8f6f4", "cbsz:2 blgp:3"): 16,
    ("v_mfma_scale_f32_32x32x64_f8f6f4", "cbsz:4 blgp:3"): 32,
    ("v_mfma_scale_f32_32x32x64_f8f6f4", ""): 64,
}


def test_matrix_instructions_take_the_clocks_of_amds_tables() -> None:
    assert {form: matrix_clocks(*form) for form in CLOCKS} == CLOCKS
    assert matrix_clocks("v_fma_f32", "v0, v1, v2, v3") is None


def test_an_unknown_matrix_instruction_is_not_given_a_figure() -> None:
    with pytest.raises(KeyError):
        matrix_clocks("v_mfma_f32_64x64x64_f8f6f4", "")
