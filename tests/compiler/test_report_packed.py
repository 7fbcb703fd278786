"""Weights that are decoded in any spelling: their products are never listed as plain ones."""

from pathlib import Path

import pytest
from iree.compiler import ir, tools

from mxc.compiler.report import Matmul, build_report
from mxc.dialects.context import new_context
from mxc.targets.target import target

N, K = 64, 128
WIDE = f"tensor<{N}x{K}xf32>"

#: Bodies that make a float of a code %c, i8, under the byte of a scale, %s.
SHIFTS = """
  %v = arith.sitofp %c : i8 to f32
  %i = arith.extui %s : i8 to i32
  %n = arith.constant 23 : i32
  %b = arith.shli %i, %n : i32
  %f = arith.bitcast %b : i32 to f32
  %y = arith.mulf %v, %f : f32"""
POWER = """
  %v = arith.sitofp %c : i8 to f32
  %i = arith.uitofp %s : i8 to f32
  %n = arith.constant 127.0 : f32
  %d = arith.subf %i, %n : f32
  %f = math.exp2 %d : f32
  %y = arith.mulf %v, %f : f32"""
TABLE = """
  %j = arith.index_castui %c : i8 to index
  %v = tensor.extract %table[%j] : tensor<16xf32>
  %i = arith.index_castui %s : i8 to index
  %f = tensor.extract %powers[%i] : tensor<256xf32>
  %y = arith.mulf %v, %f : f32"""


def decoding(codes: str, body: str) -> str:
    return f"""
  %e = tensor.empty() : {WIDE}
  %d = linalg.generic {{indexing_maps = [affine_map<(n, k) -> (n, k)>,
      affine_map<(n, k) -> (n, k floordiv 32)>, affine_map<(n, k) -> (n, k)>],
      iterator_types = ["parallel", "parallel"]}}
      ins({codes}, %scales : tensor<{N}x{K}xi8>, tensor<{N}x{K // 32}xi8>) outs(%e : {WIDE}) {{
  ^bb0(%c: i8, %s: i8, %o: f32): {body}
    linalg.yield %y : f32
  }} -> {WIDE}"""


#: Codes of two a byte, split first.
SPLIT = f"""
  %w0 = tensor.empty() : tensor<{N}x{K}xi8>
  %four = arith.constant 4 : i8
  %wide = linalg.generic {{indexing_maps = [affine_map<(n, k) -> (n, k floordiv 2)>,
      affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}}
      ins(%packed : tensor<{N}x{K // 2}xi8>) outs(%w0 : tensor<{N}x{K}xi8>) {{
  ^bb0(%c: i8, %o: i8):
    %k = linalg.index 1 : index
    %b = arith.index_cast %k : index to i8
    %u = arith.shrui %c, %four : i8
    %t = arith.xori %u, %b : i8
    linalg.yield %t : i8
  }} -> tensor<{N}x{K}xi8>"""

FORMS = {
    "shifts": decoding("%codes", SHIFTS),
    "power": decoding("%codes", POWER),
    "table": decoding("%codes", TABLE),
    "two a byte": SPLIT + decoding("%wide", SHIFTS),
}


def program(decode: str) -> str:
    """A product of %x with what `decode` makes, a dispatch of its own as IREE forms it."""
    return f"""
util.func public @main(%x: tensor<16x{K}xf32>, %codes: tensor<{N}x{K}xi8>,
    %packed: tensor<{N}x{K // 2}xi8>, %scales: tensor<{N}x{K // 32}xi8>,
    %table: tensor<16xf32>, %powers: tensor<256xf32>, %plain: {WIDE}) -> tensor<16x{N}xf32> {{
{decode}
  %z = arith.constant 0.0 : f32
  %r0 = tensor.empty() : tensor<16x{N}xf32>
  %a = linalg.fill ins(%z : f32) outs(%r0 : tensor<16x{N}xf32>) -> tensor<16x{N}xf32>
  %r = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins(%x, {"%d" if decode else "%plain"} : tensor<16x{K}xf32>, {WIDE})
      outs(%a : tensor<16x{N}xf32>) -> tensor<16x{N}xf32> loc("proj")
  util.return %r : tensor<16x{N}xf32>
}}
"""


CPU = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=x86-64-v4",
    "--iree-llvmcpu-target-triple=x86_64-unknown-linux-gnu",
)
#: For GPUs IREE decodes in the kernel of the product.
GPU = ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx950")


def reported(folder: Path, decode: str, flags: tuple[str, ...] = CPU) -> Matmul:
    """The row of the product, of the program as the stock compiler has it."""
    tools.compile_str(
        program(decode),
        output_file=str(folder / "o.vmfb"),
        extra_args=[
            "--compile-to=stream",
            "--mlir-print-debuginfo",
            f"--dump-compilation-phases-to={folder}/phases",
            *flags,
        ],
    )
    flow, stream = (next((folder / "phases").glob(f"*.{p}.mlir")) for p in ("flow", "stream"))
    name = "gfx950" if flags == GPU else "cpu:x86-64-v4"
    with new_context():
        modules = [ir.Module.parse(each.read_text()).operation for each in (flow, stream)]
    # As the worker does: in no context of its own.
    (found,) = build_report(modules[0], modules[1], {}, target(name)).matmuls
    return found


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_are_decoded_to_memory_are_a_fallback(tmp_path: Path, form: str) -> None:
    one = reported(tmp_path, FORMS[form])
    assert (one.name, one.rhs) == ("proj", "i8")
    assert one.kernels > 1
    assert one.fallback is not None
    assert one.fallback.startswith("no kernel of mxc computes it")
    assert f"writes {4 * N * K} bytes that the contraction reads back" in one.fallback


def test_weights_that_are_decoded_in_the_kernel_are_a_fallback(tmp_path: Path) -> None:
    one = reported(tmp_path, FORMS["shifts"], GPU)
    assert (one.rhs, one.kernels) == ("i8", 1)
    assert one.fallback is not None
    assert one.fallback.startswith("no kernel of mxc computes it")


def test_plain_weights_are_none_and_have_a_reason(tmp_path: Path) -> None:
    one = reported(tmp_path, "")
    assert (one.rhs, one.fallback, one.reason) == ("f32", None, "no pass has said why")
