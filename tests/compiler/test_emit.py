"""mxc compile --emit asm: a readable text for each kernel, named by what it computes."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from mxc.artifact.code_objects.metadata import resources
from mxc.compiler.cli import app
from mxc.compiler.emit import emit_assembly, write
from mxc.compiler.report import FunctionCost, Report, ReportOperation
from mxc.compiler.report.assembly import KernelCode, parse
from mxc.compiler.report.listings import KernelListing, listings
from mxc.compiler.report.loops import hot_loop
from mxc.errors import ArtifactError
from mxc.simulator.assembly.metadata import metadata_of

#: One product under the builder's name.
PROGRAM = """
func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x64xf32>
  %out = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x64xf32>) -> tensor<64x64xf32>
  %y = linalg.matmul ins(%x, %w : tensor<64x64xf32>, tensor<64x64xf32>)
    outs(%out : tensor<64x64xf32>) -> tensor<64x64xf32> loc("layers.3/up:proj")
  return %y : tensor<64x64xf32>
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("emit") / "product.mlir"
    file.write_text(PROGRAM)
    return file


@pytest.fixture(scope="module")
def gpu(program: Path) -> KernelListing:
    (found,) = emit_assembly(program, "gfx950")
    return found


def parsed(text: str) -> list[KernelCode]:
    return parse(text, None, resources(metadata_of(text, "here")))


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["compile", *map(str, words)])


def test_a_kernel_is_named_by_its_operation_and_says_what_it_needs(gpu: KernelListing) -> None:
    assert gpu.name == "main.layers.3_up_proj"
    head = gpu.text.splitlines()[:6]
    assert head[0] == "; layers.3/up:proj in @main"
    assert head[1] == f"; kernel {gpu.kernel}"
    assert head[2].startswith("; 64x64x64, f32 x f32 -> f32: v_")
    assert re.match(r"; \d+ VGPR \(of them \d+ AGPR\), \d+ SGPR, 0 spills, 0 bytes", head[3])
    assert re.match(r"; \d waves a SIMD, limited by ", head[4])


def test_the_text_of_a_gpu_kernel_is_all_that_an_assembler_needs(gpu: KernelListing) -> None:
    (kernel,) = parsed(gpu.text)
    assert kernel.name == gpu.kernel
    assert kernel.instructions["s_endpgm"] >= 1
    assert f".amdhsa_kernel {gpu.kernel}" in gpu.text


def test_the_hot_loop_is_marked_from_its_label_to_its_branch() -> None:
    body = "\ts_mov_b32 s0, 0\n.LBB0_1:   ; loop\n\tv_mfma_f32_4x4x4_16b_f16 v0\n\ts_nop 0\n"
    body += "\ts_cbranch_scc1 .LBB0_1\n\ts_endpgm\n"
    text = f'\t.amdgcn_target\t"here"\n\t.type\tk,@function\nk:\n{body}.Lfunc_end0:\n{METADATA}'
    kernels = tuple(parsed(text))
    found = listings(report(kernels, ("k", "main", "k")), [text])
    marked = found[0].text.splitlines()
    first = next(n for n, line in enumerate(marked) if "hot loop begins" in line)
    last = next(n for n, line in enumerate(marked) if "hot loop ends" in line)
    inside = [line.split(";")[0].strip() for line in marked[first + 1 : last]]
    assert inside[0] == ".LBB0_1:"
    assert inside[-1] == "s_cbranch_scc1 .LBB0_1"
    assert len(inside) == 1 + len(hot_loop(body).lines)


def test_the_hot_loop_of_a_cpu_kernel_is_marked() -> None:
    loop = ".LBB0_1:\n\tvfmadd231ps\t(%rsi), %zmm0, %zmm1\n\tjb\t.LBB0_1\n"
    text = f"\t.type\tk,@function\nk:\n\txorl\t%eax, %eax\n{loop}\tretq\n.Lfunc_end0:"
    (found,) = listings(report(tuple(parse(text)), ("k", "main", "k")), [text])
    assert "# hot loop: 1 multiply, 1 branch\n" in found.text
    marked = found.text[found.text.index("# ---- hot loop begins") : found.text.index("\tretq")]
    assert marked.splitlines()[1:-1] == loop.splitlines()
    assert marked.splitlines()[-1].startswith("# ---- hot loop ends")


METADATA = """
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .group_segment_fixed_size: 0
    .max_flat_workgroup_size: 64
    .name:           k
    .private_segment_fixed_size: 0
    .sgpr_count:     6
    .sgpr_spill_count: 0
    .vgpr_count:     2
    .vgpr_spill_count: 0
...
\t.end_amdgpu_metadata
"""


def report(kernels: tuple[Any, ...], *calls: tuple[str, str, str]) -> Report:
    cost = FunctionCost(name="main", dispatches=1, transient_bytes=0, dynamic_transients=0)
    return Report(
        target="gfx950",
        matmuls=(),
        kernels=kernels,
        functions=(cost,),
        operations=tuple(
            ReportOperation(
                kernel=kernel, function=function, name=name, bytes_moved=None, flops=None
            )
            for kernel, function, name in calls
        ),
    )


def test_calls_of_one_kernel_are_one_text_and_equal_names_stay_apart() -> None:
    text = "\n".join(
        f"\t.type\t{name},@function\n{name}:\n\tretq\n.Lfunc_end{n}:" for n, name in enumerate("kq")
    )
    calls = [("k", "decode", "up"), ("q", "decode", "up"), ("k", "decode", "down"), ("x", "f", "x")]
    found = listings(report(tuple(parse(text)), *calls), [text])
    assert [(each.name, each.kernel) for each in found] == [
        ("decode.up", "k"),
        ("decode.up-2", "q"),
    ]
    assert found[0].text.startswith("# up in @decode, and 1 more\n# kernel k\n")
    assert found[0].text.endswith("k:\n\tretq\n")


def test_a_file_or_a_folder(tmp_path: Path) -> None:
    two = [KernelListing("a", "ka", "; a\n"), KernelListing("b", "kb", "; b\n")]
    assert write(two, tmp_path / "one.s") == [tmp_path / "one.s"]
    assert (tmp_path / "one.s").read_text() == "; a\n\n; b\n"
    assert write(two, tmp_path / "all") == [tmp_path / "all" / "a.s", tmp_path / "all" / "b.s"]
    assert (tmp_path / "all" / "b.s").read_text() == "; b\n"
    with pytest.raises(ArtifactError, match=r"one\.s/x: cannot be written"):
        write(two, tmp_path / "one.s" / "x")


def test_on_the_command_line(program: Path, tmp_path: Path) -> None:
    result = run(program, "--target", "gfx950", "--emit", "asm", "-o", tmp_path / "asm")
    assert result.exit_code == 0, result.stderr
    file = tmp_path / "asm" / "main.layers.3_up_proj.s"
    assert result.stdout == f"wrote 1 kernels to {file}\n"
    assert file.read_text().startswith("; layers.3/up:proj in @main\n")
    printed = run(program, "--target", "cpu:znver4", "--emit", "asm")
    assert printed.exit_code == 0, printed.stderr
    assert printed.stdout.startswith("# layers.3/up:proj in @main\n")
    assert "%zmm" in printed.stdout


def test_what_cannot_be_emitted_is_refused(program: Path, tmp_path: Path) -> None:
    wrong = run(program, "--target", "cpu", "--emit", "ll")
    assert (wrong.exit_code, wrong.stderr) == (1, "error: --emit ll: not known; give asm\n")
    two = run(program, "--target", "cpu:znver4", "--target", "cpu:znver3", "--emit", "asm")
    assert "--emit asm is for one target; found cpu:znver4, cpu:znver3" in two.stderr
    empty = tmp_path / "empty.mlir"
    empty.write_text(
        "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    )
    nothing = run(empty, "--target", "gfx950", "--emit", "asm")
    assert nothing.exit_code == 1
    assert "calls no kernel" in nothing.stderr
