"""gfx950: AMD Instinct MI350 and MI355X (CDNA4).

Compute units (32 on each of eight dies), clock and bandwidth: AMD Instinct MI355X data sheet. The
memory latency is an assumption, twice that of a unit's loads; it was not measured on this device.
Registers, granules and LDS: CDNA4 ISA guide, 2.2.1, 3.6.4 and 12 (512 registers per lane with the
accumulation ones, in groups of 8; 160 KiB of LDS); LLVM AMDGPUBaseInfo.cpp. Matrix instructions:
CDNA4 ISA guide, 7.1.3 to 7.1.5 (one scale per 32 elements along K) and table 28 (clocks).
"""

from mxc.targets.amd.cdna import CDNA
from mxc.targets.compute_unit import ComputeUnit
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixInstruction, MatrixUnit, scaled

GFX950 = Gpu(
    name="gfx950",
    product="AMD Instinct MI355X",
    units=256,
    clock=2.4e9,
    memory_bandwidth=8e12,
    memory_latency=0.8e-6,
    workgroup_lds_bytes=160 * 1024,
    group_rows=((0, 16), (20, 32), (88, 64)),
    elf_machine=0x4F,
    decoders=("v_cvt_scalef32_",),
    extends_f8=True,
    unit=ComputeUnit(
        wave=64,
        registers=512,
        register_granule=8,
        waves=8,
        lds_bytes=160 * 1024,
        lds_granule=1280,
        rates=CDNA,
    ),
    matrix=MatrixUnit(
        family="mfma",
        lanes=64,
        registers=512,
        run=4,
        instructions=(
            MatrixInstruction("v_mfma_f32_16x16x32_bf16", 16),
            MatrixInstruction("v_mfma_f32_32x32x16_bf16", 32),
            scaled("v_mfma_scale_f32_16x16x128_f8f6f4", 16, selected=True),
            scaled("v_mfma_scale_f32_32x32x64_f8f6f4", 32, selected=True),
        ),
        scaled_bits=(4, 6, 8),
        converts=True,
        rounds=True,
        swaps=True,
        dma=16,
        layouts=(
            "MFMA_F32_16x16x32_BF16",
            "MFMA_F32_16x16x32_F16",
            "MFMA_F32_16x16x4_F32",
            "MFMA_I32_16x16x64_I8",
            "MFMA_F32_16x16x32_F8E4M3FN",
            "MFMA_F32_16x16x32_F8E5M2",
        ),
        source="AMD CDNA4 ISA guide, 7.1",
    ),
    source="AMD CDNA4 ISA guide; AMD Instinct MI355X data sheet; LLVM AMDGPUBaseInfo.cpp",
)
