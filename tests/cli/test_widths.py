"""Tables fit their terminal, and 100 columns in a file: nothing is wider, no word is broken."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.compiler.cli.report_table import render
from mxc.compiler.cli.terminal import print_notes, shortened
from mxc.compiler.report import Matmul, Report

#: Commands that print tables, and words of their output that must be there whole.
LISTS = {
    "formats": ("mxfp6e3m2", "1.5259e-05", "f8E4M3FN", "largest", "element"),
    "recipes": ("rceil",),
    "targets": ("v_wmma_scale16_f32_16x16x128_f8f6f4", "cpu:sapphirerapids", "amx-bf16"),
    "passes": ("mxc-lower-named-operations-to-gpu-kernels",),
    "pipeline --target gfx950": ("mxc-set-gpu-schedule{matrix-rows=16}",),
}
#: Widths of terminals; None is a file.
WIDTHS = (80, 100, None)
#: Longer than a table of 80 or 100 columns has room for.
LONG = "model.language_model.decoder.layers.0.mlp.experts.shared_expert.gate_up_proj"
WHOLE = f"{LONG}.and.more.of.a.name.that.is.longer.than.any"
PROGRAM = f"""
func.func @main(%x: tensor<4x64xf32>, %w: tensor<64x64xf32>) -> tensor<4x64xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x64xf32>) -> tensor<4x64xf32>
  %y = linalg.matmul ins(%x, %w : tensor<4x64xf32>, tensor<64x64xf32>)
      outs(%start : tensor<4x64xf32>) -> tensor<4x64xf32> loc("{WHOLE}")
  return %y : tensor<4x64xf32>
}}
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_gpt_oss(folder, GptOssOptions())
    return folder


@pytest.fixture(scope="module", params=["cpu:znver4", "gfx950"])
def artifact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifact")
    (folder / "p.mlir").write_text(PROGRAM)
    arguments = ["compile", folder / "p.mlir", "--target", request.param, "-o", folder / "p.mxc"]
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return folder / "p.mxc"


def printed(words: str, width: int | None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    if width is None:
        monkeypatch.delenv("COLUMNS")
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output
    wide = [line for line in result.output.splitlines() if len(line.rstrip()) > (width or 100)]
    assert not wide
    return result.output


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", LISTS)
def test_lists(kind: str, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(f"list {kind}", width, monkeypatch)
    assert not [word for word in LISTS[kind] if word not in found]


@pytest.mark.parametrize("width", WIDTHS)
def test_tensors(checkpoint: Path, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(f"inspect {checkpoint}", width, monkeypatch)
    assert "model.layers.0.post_attention_layernorm.weight" in found


@pytest.mark.parametrize("width", WIDTHS)
def test_reports(artifact: Path, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(f"report {artifact} --kernels", width, monkeypatch)
    shown = [name for name in re.findall(r"\S*model\.l\S*", found) if "…" in name]
    assert shown
    assert all(name.endswith("than.any") for name in shown), "the end tells names apart"


def test_wide_shortens_and_wraps_nothing(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    result = CliRunner().invoke(app, ["report", str(artifact), "--wide"])
    assert WHOLE in result.output
    assert "…" not in result.output
    assert max(map(len, result.output.splitlines())) > 100


def test_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "iree-base-compiler" in printed("doctor", None, monkeypatch)


def test_a_name_loses_its_middle() -> None:
    assert shortened("gate_up_proj", 12) == "gate_up_proj"
    assert shortened("gate_up_proj", 9) == "gate…proj"


def test_notes_are_wrapped_at_words() -> None:
    written = io.StringIO()
    print_notes(Console(width=30, file=written), ["a default was taken, because none was given"])
    assert written.getvalue().splitlines() == [
        "note: a default was taken,",
        "  because none was given",
    ]


@pytest.mark.parametrize("width", [72, 80, 120, 160, 200])
def test_the_table_keeps_to_the_width(width: int) -> None:
    matmul = Matmul(
        name="model.layers.0.mlp.experts.gate_up_proj", function="prefill", batch=23, m=16,
        n=5760, k=2880, lhs="bf16", rhs="mxfp4", out="f32", kernel="k", kernels=2,
        lowering="v_cvt_scalef32_pk_f32_fp4 + v_fmac_f32_e32", bytes_moved=1 << 30,
        bytes_minimum=1 << 29, fallback="a reason",
    )  # fmt: skip
    report = Report(target="gfx950", matmuls=(matmul,) * 2, kernels=(), functions=())
    written = io.StringIO()
    console = Console(width=width, file=written)
    console.print(render(report, console))
    text = written.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    whole = "model.layers.*.mlp.experts.gate_up_proj"
    assert whole in text or (width < 100 and re.search(r"model\.l\S*…\S*up_proj ", text))
    for wanted in ("bf16 x mxfp4 -> f32", "2.00", "[1]", "[1] a reason", "prefill", "16x5760x2880"):
        assert wanted in text
