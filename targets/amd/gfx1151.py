"""gfx1151: AMD Ryzen AI Max (Strix Halo; RDNA3.5).

40 compute units are 20 work-group processors; clock: the highest one; memory: LPDDR5X-8000 on 256
bits (AMD Ryzen AI Max+ 395 product page). The memory latency is an assumption: half of that of HBM.
Registers and granules: LLVM AMDGPUBaseInfo.cpp (1536 per lane, in groups of 24). Layout of 16-bit
A and B, which both halves of a wave hold alike, and of 32-bit C and D: AMD RDNA3.5 ISA guide, 7.9;
AMD GPUOpen, "How to accelerate AI applications on RDNA 3 using WMMA"; the same in IREE's
IREEGPUAttrs.cpp (WMMAR3_F32_16x16x16_BF16). Clocks of an instruction: 1024 f16 operations per clock
and work-group processor of four SIMDs, per the same article (512 per compute unit).
"""

from mxc.targets.compute_unit import ComputeUnit
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixInstruction, MatrixUnit

GFX1151 = Gpu(
    name="gfx1151",
    product="AMD Ryzen AI Max+ 395",
    units=20,
    clock=2.9e9,
    memory_bandwidth=256e9,
    memory_latency=0.4e-6,
    workgroup_lds_bytes=64 * 1024,
    group_rows=((0, 16), (12, 32), (104, 64)),
    elf_machine=0x4A,
    unit=ComputeUnit(
        wave=32,
        registers=1536,
        register_granule=24,
        waves=16,
        lds_bytes=128 * 1024,
        lds_granule=512,
    ),
    matrix=MatrixUnit(
        family="wmma",
        lanes=32,
        registers=256,
        run=1,
        replicated=True,
        instructions=(MatrixInstruction("v_wmma_f32_16x16x16_bf16", 32),),
        layouts=(
            "WMMAR3_F32_16x16x16_BF16",
            "WMMAR3_F32_16x16x16_F16",
            "WMMAR3_I32_16x16x16_I8",
        ),
        source="AMD RDNA3.5 ISA guide, 7.9",
    ),
    source="AMD RDNA3.5 ISA guide; Ryzen AI Max+ 395 product page; LLVM AMDGPUBaseInfo.cpp",
    unverified="code for gfx1151 was never executed: its kernels were, as IR, with the layouts "
    "of matrix instructions of AMD's document",
)
