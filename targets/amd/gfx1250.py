"""gfx1250: AMD Instinct MI400 series.

Bandwidth: AMD's announcement of the series (HBM4, 19.6 TB/s). Nothing else is published: units,
clock and latency are those of the MI355X, for ranking schedules. Instructions: LLVM
VOP3PInstructions.td ("scale" has blocks of 32, "scale16" of 16); clocks: LLVM SISchedule.td,
GFX1250SpeedModel (XDL of two passes). Layouts of elements and scales: Triton's
LinearLayoutConversions.cpp, wmmaDotOperandToLinearLayout and AMDWmmaEncodingAttr (version 3), and
its tests. These have no 6-bit layouts, and no other source of them was found: 6-bit elements are
decoded. Registers of a lane: LLVM GCNSubtarget.h, has1024AddressableVGPRs.
"""

from mxc.targets.compute_unit import ComputeUnit
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixInstruction, MatrixUnit, scaled

_F4 = ("f4E2M1FN",)

GFX1250 = Gpu(
    name="gfx1250",
    product="AMD Instinct MI400 series",
    units=256,
    clock=2.4e9,
    memory_bandwidth=19.6e12,
    memory_latency=0.8e-6,
    workgroup_lds_bytes=320 * 1024,
    group_rows=((0, 16), (12, 32), (28, 64)),
    elf_machine=0x49,
    decoders=("v_cvt_scale_",),
    unit=ComputeUnit(
        wave=32,
        registers=1024,
        register_granule=16,
        waves=16,
        lds_bytes=320 * 1024,
        lds_granule=1024,
    ),
    matrix=MatrixUnit(
        family="wmma",
        lanes=32,
        registers=1024,
        run=8,
        instructions=(
            MatrixInstruction("v_wmma_f32_16x16x32_bf16", 8),
            scaled("v_wmma_scale_f32_16x16x128_f8f6f4", 8),
            scaled("v_wmma_scale_f32_32x16x128_f4", elements=_F4),
            scaled("v_wmma_scale16_f32_16x16x128_f8f6f4", block=16),
            scaled("v_wmma_scale16_f32_32x16x128_f4", block=16, elements=_F4),
        ),
        scaled_bits=(4, 8),
        rounds=True,
        layouts=(
            "WMMA_F32_16x16x32_BF16",
            "WMMA_F32_16x16x32_F16",
            "WMMA_F32_16x16x4_F32",
            "WMMA_I32_16x16x64_I8",
        ),
        source="Triton, LinearLayoutConversions.cpp; LLVM VOP3PInstructions.td",
    ),
    source="LLVM AMDGPU VOP3PInstructions.td, AMDGPUBaseInfo.cpp; IREE KnownTargets.cpp (gfx1250)",
    unverified="code for gfx1250 was never executed: its kernels were, as IR, with the layouts "
    "of matrix instructions that Triton has; no document of AMD's was found",
)
