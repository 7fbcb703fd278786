"""Programs for gfx950 and the kernels that the stock compiler makes of them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from iree.compiler import tools

from mxc.runtime.simulator.code_object import Kernel, read_kernels

FLAGS = (
    "--iree-hal-target-device=hip",
    "--iree-rocm-target=gfx950",
    "--mlir-disable-threading",
)
BITS = {"f4E2M1FN": 4, "f8E4M3FN": 8, "f8E5M2": 8}


@dataclass(frozen=True)
class Compiled:
    """Code objects with their kernels, the assembly that the compiler printed, and the module."""

    code: list[bytes]
    assembly: str
    module: bytes

    @property
    def kernels(self) -> dict[str, Kernel]:
        return {name: k for code in self.code for name, k in read_kernels(code).items()}

    @property
    def kernel(self) -> Kernel:
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
    """(A * scales) @ (B * scales)^T with packed operands: a, b, scales of a, scales of b."""
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
    """The instructions that the compiler printed for a kernel, without comments."""
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
    """Compile a program for gfx950, once in a session."""

    @cache
    def compile_once(text: str, *flags: str) -> Compiled:
        return compile_for_gfx950(text, tmp_path_factory.mktemp("gfx950"), *flags)

    return compile_once


@pytest.fixture(scope="session")
def scaled(compiled: Callable[..., Compiled]) -> Callable[..., Compiled]:
    """The stock compiler's kernel of a scaled matrix product."""
    return lambda *shape: compiled(scaled_matmul(*shape))


@pytest.fixture(scope="session")
def printed() -> Callable[[str, str], list[str]]:
    return assembly_lines
