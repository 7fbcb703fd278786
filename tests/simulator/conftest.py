"""Programs for gfx950 and the kernels that the stock compiler makes of them."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from iree.compiler import tools

from mxc.simulator.code.code_object import CodeObjectKernel, read_kernels

FLAGS = (
    "--iree-hal-target-device=hip",
    "--iree-rocm-target=gfx950",
    "--mlir-disable-threading",
)
BITS = {"f4E2M1FN": 4, "f8E4M3FN": 8, "f8E5M2": 8}


@dataclass(frozen=True)
class Compiled:
    """A compiled program: code objects with their kernels, the assembly that the compiler printed,
    and the module."""

    code: list[bytes]
    assembly: str
    module: bytes

    @property
    def kernels(self) -> dict[str, CodeObjectKernel]:
        return {name: k for code in self.code for name, k in read_kernels(code).items()}

    @property
    def kernel(self) -> CodeObjectKernel:
        (found,) = self.kernels.values()
        return found


def compile_for_gfx950(text: str, folder: Path, *extra: str) -> Compiled:
    flags = [*FLAGS, f"--iree-hal-dump-executable-intermediates-to={folder}"]
    flags.append(f"--iree-hal-dump-executable-binaries-to={folder}")
    module = tools.compile_str(text, extra_args=[*flags, *extra])
    code = [file.read_bytes() for file in sorted(folder.glob("*.hsaco"))]
    assembly = "\n".join(file.read_text() for file in sorted(folder.glob("*.rocmasm")))
    return Compiled(code, assembly, module)


def scaled_matmul(m: int, n: int, k: int, lhs: str = "f4E2M1FN", rhs: str = "f4E2M1FN") -> str:
    """Return a program that computes (A * scales) @ (B * scales)^T. Its arguments are packed: A, B,
    scales of A, scales of B."""
    blocks = k // 32

    def unpack(name: str, rows: int, element: str) -> str:
        result = f"tensor<{rows}x{blocks}x32x{element}>"
        return f"%{name} = flow.tensor.bitcast %{name}8 : {packed(rows, element)} -> {result}"

    def packed(rows: int, element: str) -> str:
        return f"tensor<{rows}x{blocks}x{32 * BITS[element] // 8}xi8>"

    e8 = "f8E8M0FNU"
    return f"""
func.func @main(%a8: {packed(m, lhs)}, %b8: {packed(n, rhs)},
    %p8: tensor<{m}x{blocks}xi8>, %q8: tensor<{n}x{blocks}xi8>) -> tensor<{m}x{n}xf32> {{
  {unpack("a", m, lhs)}
  {unpack("b", n, rhs)}
  %p = flow.tensor.bitcast %p8 : tensor<{m}x{blocks}xi8> -> tensor<{m}x{blocks}x{e8}>
  %q = flow.tensor.bitcast %q8 : tensor<{n}x{blocks}xi8> -> tensor<{n}x{blocks}x{e8}>
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %z = arith.constant 0.0 : f32
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %r = linalg.generic {{
    indexing_maps = [
      affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>,
      affine_map<(m, n, o, b) -> (m, o)>, affine_map<(m, n, o, b) -> (n, o)>,
      affine_map<(m, n, o, b) -> (m, n)>],
    iterator_types = ["parallel", "parallel", "reduction", "reduction"]}}
    ins(%a, %b, %p, %q : tensor<{m}x{blocks}x32x{lhs}>, tensor<{n}x{blocks}x32x{rhs}>,
        tensor<{m}x{blocks}x{e8}>, tensor<{n}x{blocks}x{e8}>)
    outs(%c : tensor<{m}x{n}xf32>) {{
  ^bb0(%x: {lhs}, %y: {rhs}, %s: {e8}, %t: {e8}, %acc: f32):
    %0 = arith.scaling_extf %x, %s : {lhs}, {e8} to f32
    %1 = arith.scaling_extf %y, %t : {rhs}, {e8} to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %acc, %2 : f32
    linalg.yield %3 : f32
  }} -> tensor<{m}x{n}xf32>
  return %r : tensor<{m}x{n}xf32>
}}
"""


def assembly_lines(assembly: str, kernel: str) -> list[str]:
    """Return the instructions that the compiler printed for a kernel, without comments."""
    found: list[str] = []
    inside = False
    for line in assembly.splitlines():
        label = re.match(r"^([\w$.]+):", line)
        if label and not label[1].startswith(".L"):
            inside = label[1] == kernel
        if line.startswith("\t.section"):
            inside = False
        words = line.split(";")[0].strip()
        if inside and re.match(r"(s|v|ds|buffer|global|scratch|flat)_", words):
            found.append(re.sub(r"\s+", " ", words))
    return found


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Compiled]:
    """Return a function that compiles a program for gfx950, once in a session."""

    @cache
    def compile_once(text: str, *flags: str) -> Compiled:
        return compile_for_gfx950(text, tmp_path_factory.mktemp("gfx950"), *flags)

    return compile_once


@pytest.fixture(scope="session")
def scaled(compiled: Callable[..., Compiled]) -> Callable[..., Compiled]:
    """Return a function that compiles a scaled product by the stock compiler; see scaled_matmul."""
    return lambda *shape: compiled(scaled_matmul(*shape))


@pytest.fixture(scope="session")
def printed() -> Callable[[str, str], list[str]]:
    return assembly_lines


ASSEMBLED = """
#layout = #hal.pipeline.layout<bindings = [{bindings}]>
#target = #hal.executable.target<"rocm", "rocm-hsaco-fb", {{
  abi = "hip", iree_codegen.target_info = #iree_gpu.target<arch = "gfx950", features = "",
    wgp = <compute = fp32, storage = b32, subgroup = none, dot = none, mma = [],
      subgroup_size_choices = [64], max_workgroup_sizes = [1024, 1024, 1024],
      max_thread_count_per_workgroup = 1024, max_workgroup_memory_bytes = 65536,
      max_workgroup_counts = [2147483647, 2147483647, 2147483647]>>, ukernels = "none"}}>
hal.executable public @assembled {{
  hal.executable.variant public @gfx950 target(#target) {{
    hal.executable.export public @kernel ordinal(0) layout(#layout)
        count(%device: !hal.device) -> (index, index, index) {{
      %one = arith.constant 1 : index
      hal.return %one, %one, %one : index, index, index
    }}
    builtin.module {{
      llvm.mlir.global internal @lds() {{addr_space = 3 : i32, alignment = 16 : i64}}
        : !llvm.array<{lds} x i8>
      llvm.func @kernel({arguments}) {{
        %lds = llvm.mlir.addressof @lds : !llvm.ptr<3>
        llvm.inline_asm has_side_effects "{text}", "s,~{{v127}},~{{a31}},~{{s96}},~{{memory}}" %lds
          : (!llvm.ptr<3>) -> ()
        llvm.return
      }}
    }}
  }}
}}
"""


def assembled_program(text: str, buffers: int = 1, lds: int = 1024) -> str:
    return ASSEMBLED.format(
        bindings=", ".join(["#hal.pipeline.binding<storage_buffer>"] * buffers),
        arguments=", ".join(f"%b{n}: !llvm.ptr<1>" for n in range(buffers)),
        lds=lds,
        text="\\0A".join(line.strip() for line in text.strip().splitlines()),
    )


@pytest.fixture(scope="session")
def assembled() -> Callable[..., str]:
    """Return a function that returns the program which `assemble` compiles."""
    return assembled_program


@pytest.fixture(scope="session")
def assemble(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CodeObjectKernel]:
    """Return a function that makes a kernel of instructions, assembled by LLVM.

    The kernel starts with the addresses of its buffers in s[2:3], s[4:5] and so on, the number of
    the workgroup in the scalar register after them, and the number of the work item in v0.
    """

    @cache
    def make(text: str, buffers: int = 1, workgroup: int = 64, lds: int = 1024) -> CodeObjectKernel:
        folder = tmp_path_factory.mktemp("assembled")
        program = assembled_program(text, buffers, lds)
        kernel = compile_for_gfx950(program, folder, "--compile-mode=hal-executable").kernel
        return replace(kernel, workgroup=(workgroup, 1, 1))

    return make
