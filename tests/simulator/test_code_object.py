"""Reading of code objects and host modules; damaged ones are refused with a message."""

import contextlib
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mxc.artifact.code_objects.elf import contents, read_sections
from mxc.artifact.code_objects.msgpack import unpack
from mxc.errors import CodeObjectError, RequestError
from mxc.simulator.code.code_object import Argument, read_kernels
from mxc.simulator.code.debug_lines import read_lines
from mxc.simulator.errors import SimulationError
from mxc.simulator.host.vm import Machine
from mxc.simulator.host.vm_module import Code, HostModule, read_executable, read_module
from mxc.simulator.run.launch import Binding, launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.simulate import load_kernels, simulate

SHAPE = (16, 16, 128)
FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def code(scaled: Callable[..., Any]) -> bytes:
    return scaled(*SHAPE).code[0]


@pytest.fixture(scope="module")
def module(scaled: Callable[..., Any]) -> bytes:
    return scaled(*SHAPE).module


def test_what_a_kernel_wants(code: bytes, scaled: Callable[..., Any]) -> None:
    (kernel,) = read_kernels(code).values()
    assembly = scaled(*SHAPE).assembly

    def stated(name: str) -> int:
        return int(assembly.split(f".amdhsa_{name} ")[1].split()[0])

    d = kernel.descriptor
    assert kernel.workgroup == (64, 1, 1)
    assert [a.kind for a in kernel.arguments] == ["global_buffer"] * 5
    assert d.lds_bytes == stated("group_segment_fixed_size")
    assert d.kernarg_bytes == stated("kernarg_size")
    assert d.user_sgprs == stated("user_sgpr_count")
    assert d.first_agpr == stated("accum_offset")
    assert d.preload_dwords == stated("user_sgpr_kernarg_preload_length")
    assert d.vgprs >= stated("next_free_vgpr")
    # Round to nearest even, denormals kept, DX10_CLAMP and IEEE set.
    assert d.mode == 0x3F0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: b"", "wanted a 64-bit little-endian ELF"),
        (lambda c: c[:-200], "outside of the file"),
        (lambda c: c[:48] + b"\x41" + c[49:], "for gfx950 or gfx942: .* found 0x41"),
        (lambda c: c.replace(b"AMDGPU\0", b"OTHERS\0"), "no metadata note"),
        (lambda c: c.replace(b".workgroup", b".workgruop"), None),
        (lambda c: c.replace(b"amdhsa.kernels", b"amdhsa.kernelz"), "no 'amdhsa.kernels'"),
        (lambda c: c.replace(b".reqd_workgroup_size", b".reqd_workgroup_siez"), "workgroup size"),
    ],
)
def test_broken_code_objects(
    code: bytes, change: Callable[[bytes], bytes], reason: str | None
) -> None:
    if reason is None:
        assert read_kernels(change(code))
        return
    with pytest.raises(CodeObjectError, match=reason):
        read_kernels(change(code))


def test_a_workgroup_that_metadata_does_not_state(code: bytes) -> None:
    without = code.replace(b".reqd_workgroup_size", b".reqd_workgroup_siez")
    (kernel,) = read_kernels(without, workgroup=(64, 1, 1)).values()
    assert kernel.workgroup == (64, 1, 1)
    with pytest.raises(CodeObjectError, match=r"give it as workgroup=\(x, y, z\)"):
        read_kernels(without)
    with pytest.raises(CodeObjectError, match=r"size \(32, 1, 1\), its metadata has \[64, 1, 1\]"):
        read_kernels(code, workgroup=(32, 1, 1))
    with pytest.raises(CodeObjectError, match="wanted 1 to 1024 work items"):
        read_kernels(without, workgroup=(64, 32, 1))


def test_arguments_of_other_sizes() -> None:
    kernel = """
    k:
      s_load_dwordx2 s[2:3], s[0:1], 0x0
      s_load_dwordx4 s[4:7], s[0:1], 0x8
      s_waitcnt lgkmcnt(0)
      v_mov_b32 v0, s4
      v_mov_b32 v1, s5
      v_mov_b32 v2, s6
      v_mov_b32 v3, 0
      global_store_dwordx3 v3, v[0:2], s[2:3]
      s_endpgm
    .amdhsa_kernel k
      .amdhsa_kernarg_size 24
      .amdhsa_user_sgpr_kernarg_segment_ptr 1
      .amdhsa_next_free_vgpr 8
      .amdhsa_accum_offset 8
    .end_amdhsa_kernel
    """
    (found,) = load_kernels(kernel, workgroup=(1, 1, 1)).values()
    short = [Argument("global_buffer", 0, 8), Argument("by_value", 8, 2)]
    other = replace(found, arguments=(*short, Argument("by_value", 12, 8)))
    result = np.zeros(3, np.uint32)
    launch(TranslatedKernel(other), (1, 1, 1), [result], [0x12345, 7, 8])
    np.testing.assert_array_equal(result, [0x2345, 7, 8])
    odd = replace(found, arguments=(*short, Argument("by_value", 12, 6)))
    with pytest.raises(SimulationError, match="an argument of 6 bytes"):
        launch(TranslatedKernel(odd), (1, 1, 1), [result], [1, 2])


@FUZZ
@given(st.integers(0, 1 << 30), st.integers(0, 255), st.booleans())
def test_any_damage_is_refused_or_harmless(code: bytes, place: int, value: int, cut: bool) -> None:
    at = place % len(code)
    damaged = code[:at] if cut else code[:at] + bytes([value]) + code[at + 1 :]
    try:
        for kernel in read_kernels(damaged).values():
            TranslatedKernel(kernel)
    except (CodeObjectError, SimulationError):
        pass


@FUZZ
@given(st.integers(0, 1 << 30), st.integers(0, 255), st.booleans())
def test_any_damage_to_a_module(module: bytes, place: int, value: int, cut: bool) -> None:
    at = place % len(module)
    damaged = module[:at] if cut else module[:at] + bytes([value]) + module[at + 1 :]
    try:
        for constant in read_module(damaged).constants:
            if bytes(constant[:4]) == b"HIP1":
                read_executable(constant)
    except CodeObjectError:
        pass


@FUZZ
@given(st.binary(max_size=60))
def test_any_metadata(data: bytes) -> None:
    with contextlib.suppress(CodeObjectError):
        unpack(data)


def test_metadata_values() -> None:
    packed = b"\x83\xa1a\x92\xcc\xff\xd1\xff\xfe\xa1b\xc3\xa1c\xc0"
    assert unpack(packed) == {"a": [255, -2], "b": True, "c": None}
    with pytest.raises(CodeObjectError, match="nested deeper"):
        unpack(b"\x91" * 100)
    with pytest.raises(CodeObjectError, match="ends within a string"):
        unpack(b"\xa5ab")
    with pytest.raises(CodeObjectError, match="type 0xcb"):
        unpack(b"\xcb" + bytes(8))


DEBUG = """
#file = #llvm.di_file<"square.mlir" in "/src">
#unit = #llvm.di_compile_unit<id = distinct[0]<>, sourceLanguage = DW_LANG_C, file = #file,
  isOptimized = true, emissionKind = LineTablesOnly>
#type = #llvm.di_subroutine_type<callingConvention = DW_CC_normal>
#kernel = #llvm.di_subprogram<id = distinct[1]<>, compileUnit = #unit, scope = #file,
  name = "kernel", file = #file, line = 3, scopeLine = 3,
  subprogramFlags = "Definition|Optimized", type = #type>
"""
SQUARE = """
        %i = llvm.call_intrinsic "llvm.amdgcn.workitem.id.x"() : () -> i32
        %p = llvm.getelementptr %b0[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, i32
        %v = llvm.load %p : !llvm.ptr<1> -> i32 loc("square.mlir":60:3)
        %w = llvm.mul %v, %v : i32 loc("square.mlir":7:3)
        llvm.store %w, %p : i32, !llvm.ptr<1> loc("square.mlir":500:3)
        llvm.return loc("square.mlir":9:1)
      } loc(fused<#kernel>["square.mlir":3:1])
"""


@pytest.fixture(scope="module")
def with_lines(compiled: Callable[..., Any], assembled: Callable[..., str]) -> tuple[bytes, str]:
    """Compile a kernel with a line table; return its code object, and LLVM's assembly of it."""
    program = DEBUG + assembled("s_nop 0").replace("        llvm.return\n      }", SQUARE)
    found = compiled(program, "--compile-mode=hal-executable", "--iree-rocm-emit-debug-info")
    return found.code[0], found.assembly


def test_line_tables(with_lines: tuple[bytes, str]) -> None:
    code, assembly = with_lines
    (kernel,) = read_kernels(code).values()
    wanted, line = [], 0
    for text_line in assembly.splitlines():
        words = text_line.split()
        if words[:1] == [".loc"]:
            line = int(words[2])
        elif words and words[0].startswith(("global_load", "v_mul", "global_store", "s_endpgm")):
            wanted.append((words[0], f"square.mlir:{line}" if line else None))
    assert {place for _, place in wanted} >= {f"square.mlir:{n}" for n in (60, 7, 500, 9)}
    found = [(i.name, kernel.lines.get(i.address)) for i in TranslatedKernel(kernel).instructions]
    assert [entry for entry in found if entry[0] in dict(wanted)] == wanted
    with pytest.raises(SimulationError, match=r"0x\w+ \(square.mlir:60\): global_load_dword"):
        simulate(code, (1, 1, 1), [np.zeros(0, np.int32)])


def test_line_tables_of_version_5() -> None:
    files = b"\x01\x01\x1f\x01\0\0\0\0" + b"\x02\x01\x08\x02\x0b\x02a.cl\0\0b.cl\0\0"
    program = b"\0\x09\x02" + (0x1000).to_bytes(8, "little") + b"\x03\x09\x01"
    program += b"\x02\x02\x04\0\x13" + b"\x02\x01\0\x01\x01"
    lengths = bytes((0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1))
    rest = b"\x04\x01\x01\xfb\x0e\x0d" + lengths + files
    body = b"\x05\0\x08\0" + len(rest).to_bytes(4, "little") + rest + program
    table = read_lines(len(body).to_bytes(4, "little") + body, b"/src\0", b"")
    # Special opcode 0x13 is the 6th after 13: its line is 1 more, its address the same.
    assert dict(table) == {0x1000: "b.cl:10", 0x1008: "a.cl:11"}
    places = [table.get(at) for at in range(0xFFC, 0x1010, 4)]
    assert places == [None, "b.cl:10", "b.cl:10", "a.cl:11", None]


@FUZZ
@given(st.integers(0, 1 << 30), st.binary(max_size=4), st.booleans())
def test_any_damage_to_a_line_table(
    with_lines: tuple[bytes, str], place: int, new: bytes, cut: bool
) -> None:
    code, _ = with_lines
    table = contents(code, read_sections(code), ".debug_line")
    at = place % len(table)
    damaged = table[:at] if cut else table[:at] + new + table[at + len(new) :]
    with contextlib.suppress(CodeObjectError):
        read_lines(damaged, b"", b"")


def test_arguments_that_do_not_fit(code: bytes) -> None:
    buffers = [np.zeros(1024, np.uint8) for _ in range(5)]
    with pytest.raises(SimulationError, match="takes 5 buffers, got 4"):
        simulate(code, (1, 1, 1), buffers[:4])
    with pytest.raises(SimulationError, match="takes 0 constants, got 1"):
        simulate(code, (1, 1, 1), buffers, [3])
    with pytest.raises(SimulationError, match="no kernel 'other'"):
        simulate(code, (1, 1, 1), buffers, kernel="other")
    (kernel,) = read_kernels(code).values()
    bad: list[Any] = [*buffers[:4], Binding(buffers[4], 1000, 100)]
    with pytest.raises(SimulationError, match="100 bytes at 1000 of a buffer of 1024"):
        launch(TranslatedKernel(kernel), (1, 1, 1), bad)


def test_a_buffer_that_is_too_short_is_a_fault_with_its_place(code: bytes) -> None:
    sizes = (1024, 1000, 64, 64, 1024)
    with pytest.raises(SimulationError, match=r"buffer_load_dwordx4 .*byte .* of binding 1"):
        simulate(code, (1, 1, 1), [np.zeros(size, np.uint8) for size in sizes])


def test_modules_of_another_version(module: bytes) -> None:
    with pytest.raises(CodeObjectError, match="not a module of IREE"):
        read_module(b"\x7fELF" + bytes(100))
    at = module.index(b"IREE") - 8
    length = struct.unpack_from("<I", module, at)[0]
    with pytest.raises(CodeObjectError, match="cut short"):
        read_module(module[: at + length // 2])


@pytest.mark.parametrize(
    ("bytecode", "reason"),
    [
        (b"", "leaves its bytecode at byte 0"),
        (b"\x79\x0d\x01", "leaves its bytecode at byte 2"),
        (b"\xff", "operation 0xff of the host program is not modelled"),
        (b"\x00\xff\xff\xff\x7f\0\0", "operation 0x00 of the host program, before byte"),
        (b"\x58\xff\xff\xff\xff\0\0\0\0\0", "calls import 2147483647"),
        (b"\x58\xff\xff\0\0\0\0\0\0\0", "calls function 65535"),
        (b"\x24\0\0\1\0\2\0\x25\0\0\1\0\2\0", "divides by zero"),
    ],
)
def test_host_programs_that_cannot_run(module: bytes, bytecode: bytes, reason: str) -> None:
    found = read_module(module)
    broken = HostModule([Code(memoryview(bytecode), "0v_v")], found.imports, {"f": 0}, {}, [], 0, 0)
    machine = Machine(broken, {entry.name: _refuse for entry in found.imports})
    with pytest.raises((SimulationError, RequestError), match=reason):
        machine.call("f")


def _refuse(*_: Any) -> None:
    raise SimulationError("as far as it goes")


def test_globals_that_no_module_has(module: bytes) -> None:
    found = replace(read_module(module), global_refs=1 << 31)
    with pytest.raises(CodeObjectError, match="2147483648 references of global state"):
        Machine(found, {entry.name: _refuse for entry in found.imports})


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (0, 1 << 20, "1048576 bytes of LDS, at most 163840"),
        (4, 1 << 20, "bytes of scratch, at most 131072"),
        (8, 1 << 30, "bytes of arguments, at most 65536"),
        (56, 0x7F << 16 | 8, "preloads 127 scalar registers"),
    ],
)
def test_descriptors_that_want_too_much(code: bytes, field: int, value: int, reason: str) -> None:
    sections = read_sections(code)
    at = next(s.offset for s in sections if s.name == ".rodata")
    damaged = code[: at + field] + value.to_bytes(4, "little") + code[at + field + 4 :]
    with pytest.raises(CodeObjectError, match=reason):
        read_kernels(damaged)
