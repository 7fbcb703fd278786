"""The environment of a kernel when it starts: constants, dispatch packet, dynamic LDS, arguments,
modes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.sanitizer import Sanitizer

PROGRAM = """
#layout = #hal.pipeline.layout<bindings = [#hal.pipeline.binding<storage_buffer>]>
#target = #hal.executable.target<"rocm", "rocm-hsaco-fb", {{
  abi = "hip", iree_codegen.target_info = #iree_gpu.target<arch = "gfx950", features = "",
    wgp = <compute = fp32, storage = b32, subgroup = none, dot = none, mma = [],
      subgroup_size_choices = [64], max_workgroup_sizes = [1024, 1024, 1024],
      max_thread_count_per_workgroup = 1024, max_workgroup_memory_bytes = 65536,
      max_workgroup_counts = [2147483647, 2147483647, 2147483647]>>, ukernels = "none"}}>
hal.executable public @program {{
  hal.executable.variant public @gfx950 target(#target) {{
    hal.executable.export public @kernel ordinal(0) layout(#layout)
        count(%device: !hal.device) -> (index, index, index) {{
      %one = arith.constant 1 : index
      hal.return %one, %one, %one : index, index, index
    }}
    builtin.module {{
      {globals}
      llvm.func @kernel(%out: !llvm.ptr<1>) attributes {{
          translation_info = #iree_codegen.translation_info<
            pipeline = #iree_codegen.no_pipeline workgroup_size = [64, 1, 1]>}} {{
        %id = rocdl.workitem.id.x : i32
        {body}
        %place = llvm.getelementptr %out[%id] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
        llvm.store %value, %place : i32, !llvm.ptr<1>
        llvm.return
      }}
    }}
  }}
}}
"""
TABLE = "[" + ", ".join(str(n * n - 7) for n in range(64)) + "]"
CONSTANTS = (
    f"llvm.mlir.global internal constant @table(dense<{TABLE}> : tensor<64xi32>) "
    "{addr_space = 4 : i32} : !llvm.array<64 x i32>"
)
LOOKUP = """
%table = llvm.mlir.addressof @table : !llvm.ptr<4>
%at = llvm.getelementptr %table[%id] : (!llvm.ptr<4>, i32) -> !llvm.ptr<4>, i32
%value = llvm.load %at : !llvm.ptr<4> -> i32
"""
#: Reads a field of the dispatch packet, as work items of a workgroup or of the grid in x.
PACKET = """
%packet = llvm.call_intrinsic "llvm.amdgcn.dispatch.ptr"() : () -> !llvm.ptr<4>
%at = llvm.getelementptr %packet[{offset}] : (!llvm.ptr<4>) -> !llvm.ptr<4>, i8
%read = llvm.load %at : !llvm.ptr<4> -> {kind}
%value = {extend}
"""
#: Asks for the registers of the queue and of the dispatch id, and uses neither.
DECLARED = """
%queue = llvm.call_intrinsic "llvm.amdgcn.queue.ptr"() : () -> !llvm.ptr<4>
%number = llvm.call_intrinsic "llvm.amdgcn.dispatch.id"() : () -> i64
%none = llvm.mlir.constant(0 : i32) : i32
%never = llvm.icmp "slt" %id, %none : i32
%bits = llvm.ptrtoint %queue : !llvm.ptr<4> to i64
%both = llvm.add %bits, %number : i64
%low = llvm.trunc %both : i64 to i32
%value = llvm.select %never, %low, %id : i1, i32
"""
SHARED = "llvm.mlir.global external @shared() {addr_space = 3 : i32} : !llvm.array<0 x i32>"
#: A work item writes its number, and reads that of the work item with the mirrored number.
MIRROR = """
%shared = llvm.mlir.addressof @shared : !llvm.ptr<3>
%mine = llvm.getelementptr %shared[%id] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i32
llvm.store %id, %mine : i32, !llvm.ptr<3>
rocdl.barrier
%last = llvm.mlir.constant(63 : i32) : i32
%other = llvm.sub %last, %id : i32
%at = llvm.getelementptr %shared[%other] : (!llvm.ptr<3>, i32) -> !llvm.ptr<3>, i32
%value = llvm.load %at : !llvm.ptr<3> -> i32
"""

Compile = Callable[..., CodeObjectKernel]


@pytest.fixture(scope="module")
def built(compiled: Callable[..., Any]) -> Compile:
    def build(body: str, globals: str = "") -> CodeObjectKernel:
        program = PROGRAM.format(body=body, globals=globals)
        return compiled(program, "--compile-mode=hal-executable").kernel

    return build


def run(
    kernel: CodeObjectKernel, observer: Sanitizer | None = None, dynamic_lds: int = 0
) -> np.ndarray:
    whole = replace(kernel, dynamic_lds=dynamic_lds)
    found = np.zeros(64, np.int32)
    launch(
        TranslatedKernel(whole, observed=observer is not None),
        (1, 1, 1),
        [found],
        observer=observer,
    )
    return found


def test_constants_of_a_code_object(built: Compile) -> None:
    sanitizer = Sanitizer()
    found = run(built(LOOKUP, CONSTANTS), sanitizer)
    np.testing.assert_array_equal(found, np.arange(64) ** 2 - 7)
    assert not sanitizer.findings


def test_constants_are_not_written(built: Compile) -> None:
    cast = "%where = llvm.ptrtoint %at : !llvm.ptr<4> to i64\n"
    cast += "%there = llvm.inttoptr %where : i64 to !llvm.ptr<1>\n"
    cast += "llvm.store volatile %id, %there : i32, !llvm.ptr<1>\n"
    with pytest.raises(SimulationError, match="a store of 4 bytes to the code object"):
        run(built(LOOKUP + cast, CONSTANTS))


def test_addresses_behind_a_code_object(built: Compile) -> None:
    far = "%step = llvm.mlir.constant(4194304 : i32) : i32\n%far = llvm.mul %id, %step : i32\n"
    far += LOOKUP.replace("[%id]", "[%far]")
    with pytest.raises(SimulationError, match="outside of every buffer"):
        run(built(far, CONSTANTS))


@pytest.mark.parametrize(
    ("offset", "kind", "extend"),
    [(4, "i16", "llvm.zext %read : i16 to i32"), (12, "i32", "llvm.add %read, %read : i32")],
)
def test_the_packet_of_a_dispatch(offset: int, kind: str, extend: str, built: Compile) -> None:
    body = PACKET.format(offset=offset, kind=kind, extend=extend)
    sanitizer = Sanitizer()
    assert set(run(built(body), sanitizer)) == {64 if kind == "i16" else 128}
    assert not sanitizer.findings


def test_registers_that_are_declared_and_not_used(built: Compile) -> None:
    np.testing.assert_array_equal(run(built(DECLARED)), np.arange(64))


def test_the_queue_is_undefined(built: Compile) -> None:
    sanitizer = Sanitizer()
    run(built(DECLARED.replace('"slt"', '"sge"')), sanitizer)
    assert {f.kind for f in sanitizer.findings} == {"undefined"}


def test_dynamic_lds(built: Compile) -> None:
    code = built(MIRROR, SHARED)
    sanitizer = Sanitizer()
    np.testing.assert_array_equal(run(code, sanitizer, dynamic_lds=256), 63 - np.arange(64))
    assert not sanitizer.findings
    short = Sanitizer()
    run(code, short, dynamic_lds=128)
    assert "bounds" in {f.kind for f in short.findings}
    with pytest.raises(
        SimulationError, match="200000 bytes of dynamic LDS beside 0, together at most"
    ):
        run(code, dynamic_lds=200000)


#: Stores 16 bytes of its arguments.
ARGUMENTS = """
kernel:
  s_load_dwordx2 s[2:3], s[0:1], 0x0
  s_load_dwordx4 s[4:7], s[0:1], 0x8
  s_waitcnt lgkmcnt(0)
  v_mov_b32 v1, 0
  v_mov_b32 v2, s4
  v_mov_b32 v3, s5
  v_mov_b32 v4, s6
  v_mov_b32 v5, s7
  global_store_dwordx4 v1, v[2:5], s[2:3]
  s_endpgm
  .amdhsa_kernel kernel
    .amdhsa_user_sgpr_kernarg_segment_ptr 1
    .amdhsa_next_free_vgpr 8
    .amdhsa_next_free_sgpr 8
    .amdhsa_accum_offset 8
  .end_amdhsa_kernel
  .amdgpu_metadata
---
amdhsa.kernels:
  - .name: kernel
    .symbol: 'kernel.kd'
    .reqd_workgroup_size: [64, 2, 1]
    .args:
"""
HIDDEN = (
    ("global_buffer", 8, 0),
    ("hidden_block_count_y", 4, 8),
    ("hidden_group_size_x", 2, 12),
    ("hidden_group_size_y", 2, 14),
    ("hidden_global_offset_x", 4, 16),
    ("hidden_remainder_x", 2, 20),
    ("hidden_grid_dims", 2, 22),
    # An argument of zero bytes is not written.
    ("hidden_dynamic_lds_size", 0, 24),
)


def written(old: str = "", new: str = "") -> CodeObjectKernel:
    """Return the kernel ARGUMENTS with its hidden arguments; `old` is replaced by `new` in its
    text."""
    found = (
        f"      - .size: {size}\n        .offset: {at}\n        .value_kind: {kind}\n"
        for kind, size, at in HIDDEN
    )
    code = ARGUMENTS + "".join(found) + "...\n  .end_amdgpu_metadata\n"
    (kernel,) = read_assembly(code.replace(old, new), "k.s").values()
    return kernel


def test_hidden_arguments() -> None:
    """Offsets are zero, and so is what is left over: all workgroups are whole."""
    out = np.full(4, 9, np.uint32)
    launch(TranslatedKernel(written()), (3, 5, 1), [out])
    np.testing.assert_array_equal(out, [5, 64 | 2 << 16, 0, 3 << 16])


def test_constants_are_extended_to_64_bits() -> None:
    """With their sign where the operand has one."""
    words = """
  s_ashr_i64 s[4:5], 0x80000000, 4
  s_lshr_b64 s[6:7], 0x80000000, 4
  v_mov_b32 v1, 0
"""
    out = np.full(4, 9, np.uint32)
    launch(TranslatedKernel(written("  v_mov_b32 v1, 0\n", words)), (1, 1, 1), [out])
    np.testing.assert_array_equal(out, [0xF8000000, 0xFFFFFFFF, 0x08000000, 0])


@pytest.mark.parametrize(("field", "bits"), [("ieee_mode 0", 1 << 9), ("fp16_overflow 1", 1 << 23)])
def test_modes_of_a_kernel(field: str, bits: int) -> None:
    """Bits of the MODE register."""
    there = "    .amdhsa_accum_offset 8\n"
    changed = written(there, f"{there}    .amdhsa_{field}\n").descriptor.mode
    assert changed ^ written().descriptor.mode == bits


def test_a_mode_is_that_of_the_waves_that_set_it() -> None:
    """The second of three workgroups saturates what it converts; all go on together."""
    begin, rest = ARGUMENTS.split("kernel:\n", 1)[1].split("  v_mov_b32 v2, s4\n")
    words = f"""  v_mov_b32 v6, s2
{begin}  v_readfirstlane_b32 s4, v6
  s_cmp_lg_u32 s4, 1
  s_cbranch_scc1 others
  s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
others:
  v_mov_b32 v7, 0x49742400
  v_cvt_f16_f32 v7, v7
  v_lshlrev_b32 v1, 2, v6
  global_store_dword v1, v7, s[2:3]
  s_endpgm
"""
    assert rest
    out = np.zeros(4, np.uint32)
    launch(TranslatedKernel(written(begin, words)), (3, 1, 1), [out])
    # 1e6 becomes infinity in f16, or the largest number with saturation.
    np.testing.assert_array_equal(out, [0x7C00, 0x7BFF, 0x7C00, 0])
