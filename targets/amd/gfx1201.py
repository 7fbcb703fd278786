"""gfx1201: AMD Radeon RX 9070 (RDNA4).

64 compute units are 32 work-group processors. Clock: the highest one. The memory latency is an
assumption: half of that of HBM. All rows of a group lie together in the result: RDNA4 ISA guide,
7.9.1 (layout of 16-bit A and B and of 32-bit C and D, wave32); the same in IREE's IREEGPUAttrs.cpp
(WMMAR4_F32_16x16x16_BF16). Clocks of an instruction: worked out from 195 TFLOP/s of f16 at 2.97 GHz
on 128 SIMDs. No block scales.
"""

from mxc.targets.compute_unit import ComputeUnit
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixInstruction, MatrixUnit

GFX1201 = Gpu(
    name="gfx1201",
    product="AMD Radeon RX 9070 XT",
    units=32,
    clock=2.97e9,
    memory_bandwidth=640e9,
    memory_latency=0.4e-6,
    workgroup_lds_bytes=64 * 1024,
    group_rows=((0, 16), (12, 32), (104, 64)),
    elf_machine=0x4E,
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
        run=8,
        instructions=(MatrixInstruction("v_wmma_f32_16x16x16_bf16", 16),),
        layouts=(
            "WMMAR4_F32_16x16x16_BF16",
            "WMMAR4_F32_16x16x16_F16",
            "WMMAR4_I32_16x16x16_I8",
        ),
        source="AMD RDNA4 ISA guide, 7.9",
    ),
    source="AMD RDNA4 ISA guide; RX 9070 XT product page; LLVM AMDGPUBaseInfo.cpp",
    unverified="code for gfx1201 was never executed: its kernels were, as IR, with the layouts "
    "of matrix instructions of AMD's document",
)
