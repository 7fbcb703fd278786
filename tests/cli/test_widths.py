"""Tables fit a terminal of 80 and of 100 columns: nothing is cut, nothing is wider."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app

#: Commands that print tables, and words of their output that must be there whole.
LISTS = {
    "formats": ("mxfp6e3m2", "1.5259e-05", "f8E4M3FN"),
    "recipes": ("rceil",),
    "targets": ("v_wmma_scale16_f32_16x16x128_f8f6f4", "cpu:sapphirerapids", "amx-bf16"),
    "passes": ("mxc-lower-named-operations-to-gpu-kernels",),
    "pipeline --target gfx950": ("mxc-set-gpu-schedule{matrix-rows=16}",),
}
WIDTHS = (80, 100)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_gpt_oss(folder, GptOssOptions())
    return folder


def printed(words: str, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 0, result.output
    wide = [line for line in result.output.splitlines() if len(line.rstrip()) > width]
    assert not wide
    return result.output


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", LISTS)
def test_lists(kind: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(f"list {kind}", width, monkeypatch)
    assert not [word for word in LISTS[kind] if word not in found]


@pytest.mark.parametrize("width", WIDTHS)
def test_tensors(checkpoint: Path, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(f"inspect {checkpoint}", width, monkeypatch)
    assert "model.layers.0.post_attention_layernorm.weight" in found
