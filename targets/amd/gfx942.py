"""gfx942: AMD Instinct MI300 (CDNA3).

Compute units (38 on each of eight dies), clock and bandwidth: AMD Instinct MI300X data sheet. The
memory latency is assumed as for gfx950. Matrix instructions have the layouts of CDNA4 (CDNA3 ISA
guide, 7.1.3 and 7.1.4; AMD's Matrix Instruction Calculator, `--architecture cdna3`), half the depth
along K, and no scales. Its fp8 types are FNUZ, so no MX type is native.
"""

from mxc.targets.amd.cdna import CDNA
from mxc.targets.compute_unit import ComputeUnit
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixInstruction, MatrixUnit

GFX942 = Gpu(
    name="gfx942",
    product="AMD Instinct MI300X",
    units=304,
    clock=2.1e9,
    memory_bandwidth=5.3e12,
    memory_latency=0.8e-6,
    workgroup_lds_bytes=64 * 1024,
    group_rows=((0, 16), (12, 64), (72, 128)),
    elf_machine=0x4C,
    unit=ComputeUnit(
        wave=64,
        registers=512,
        register_granule=8,
        waves=8,
        lds_bytes=64 * 1024,
        lds_granule=512,
        rates=CDNA,
    ),
    matrix=MatrixUnit(
        family="mfma",
        lanes=64,
        registers=512,
        run=4,
        instructions=(
            MatrixInstruction("v_mfma_f32_16x16x16_bf16", 16),
            MatrixInstruction("v_mfma_f32_32x32x8_bf16", 32),
        ),
        extends_fnuz=True,
        dma=4,
        layouts=(
            "MFMA_F32_16x16x16_BF16",
            "MFMA_F32_16x16x16_F16",
            "MFMA_F32_16x16x4_F32",
            "MFMA_I32_16x16x32_I8",
            "MFMA_F32_16x16x32_F8E4M3FNUZ",
            "MFMA_F32_16x16x32_F8E5M2FNUZ",
        ),
        source="AMD CDNA3 ISA guide, 7.1 and table 28",
    ),
    source="AMD CDNA3 ISA guide; AMD Instinct MI300X data sheet; LLVM AMDGPUBaseInfo.cpp",
)
