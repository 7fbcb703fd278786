"""What is written in each dialect, read by its own library, and by ours."""

import json
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp6.base import MXFP6PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationConfig
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.model import open_model
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.compiler.quantize.outputs import OUTPUTS
from mxc.formats.reference import dequantize, quantize
from tests.quantize.conftest import Write

DOWN = "model.layers.1.mlp.down_proj.weight"


def load(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[Any, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def plain(source: Path, name: str) -> NDArray[Any]:
    return load(source)[name].float().numpy()


@pytest.mark.parametrize(
    ("dialect", "format"),
    [(name, format) for name, output in OUTPUTS.items() for format in output.formats
     if name in ("quark", "compressed-tensors")],
)  # fmt: skip
def test_ours_reads_what_ours_wrote(
    checkpoint: Write, tmp_path: Path, dialect: str, format: str
) -> None:
    source = checkpoint()
    recipe = None if format == "nvfp4" else "rceil"
    quantize_checkpoint(source, tmp_path / "out", format, recipe=recipe, dialect=dialect)
    found = open_checkpoint(tmp_path / "out")
    assert found.dialect == dialect
    tensor = found.tensor(DOWN)
    assert tensor.format == format
    if dialect == "quark":
        assert tensor.recipe == "rceil"
    x = plain(source, DOWN)
    if format == "nvfp4":
        noise = np.square(tensor.values() - x).sum()
        assert 10 * np.log10(np.square(x).sum() / noise) > 19
    else:
        wanted = quantize(x, format, recipe=recipe)
        np.testing.assert_array_equal(tensor.values(), dequantize(wanted))
    assert found.tensor("lm_head.weight").format == "bf16"


COMPRESSORS = {
    "mxfp4": MXFP4PackedCompressor,
    "mxfp6e2m3": MXFP6PackedCompressor,
    "mxfp8e4m3": MXFP8QuantizationCompressor,
    "nvfp4": NVFP4PackedCompressor,
}


@pytest.mark.parametrize("format", COMPRESSORS)
def test_compressed_tensors_reads_it(checkpoint: Write, tmp_path: Path, format: str) -> None:
    source = checkpoint()
    quantize_checkpoint(source, tmp_path / "out", format, dialect="compressed-tensors")
    text = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(text)
    assert config.ignore is not None
    assert "lm_head" in config.ignore
    (scheme,) = config.config_groups.values()
    tensors = load(tmp_path / "out")
    stem = DOWN.removesuffix("weight")
    parts = {name.removeprefix(stem): t for name, t in tensors.items() if name.startswith(stem)}
    found = COMPRESSORS[format].decompress(parts, scheme)["weight"].float().numpy()
    ours = open_checkpoint(tmp_path / "out").tensor(DOWN).values()
    # It multiplies in bfloat16; scales of MX are powers of two, which lose nothing there.
    if format == "nvfp4":
        np.testing.assert_allclose(found, ours, rtol=2**-6)
    else:
        np.testing.assert_array_equal(found, ours)


def test_transformers_reads_gpt_oss(checkpoint: Write, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    fused = (rng.standard_normal((3, 64, 96)) * 0.05).astype(ml_dtypes.bfloat16)
    bias = np.zeros((3, 96), ml_dtypes.bfloat16)
    source = checkpoint(extra={name: fused, f"{name}_bias": bias})
    (source / "config.json").write_text(json.dumps({"model_type": "gpt_oss"}))
    result = quantize_checkpoint(
        source, tmp_path / "out", "mxfp4", recipe="even", dialect="gpt-oss"
    )
    assert set(result.losses) == {name}
    tensors = load(tmp_path / "out")
    assert tensors[f"{name}_blocks"].shape == (3, 96, 2, 16)
    assert tensors[f"{name}_scales"].shape == (3, 96, 2)
    found = convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"])
    wanted = dequantize(quantize(fused, "mxfp4", recipe="even", axis=1))
    assert found.dtype == torch.bfloat16
    np.testing.assert_array_equal(found.float().numpy(), wanted)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "mxfp4"


def test_a_plain_gpt_oss_is_a_model_before_and_after(tmp_path: Path) -> None:
    write_gpt_oss(tmp_path / "shape", GptOssOptions(num_hidden_layers=1, hidden_size=96))
    config = GptOssConfig.from_pretrained(tmp_path / "shape")
    del config.quantization_config
    GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "plain")
    assert {each.format for each in open_model(tmp_path / "plain").bound} == {"bf16"}
    quantize_checkpoint(tmp_path / "plain", tmp_path / "out", "mxfp4", dialect="gpt-oss")
    formats = {each.key: each.format for each in open_model(tmp_path / "out").bound}
    experts = "model.layers.0.mlp.experts"
    assert {key for key, format in formats.items() if format == "mxfp4"} == {
        f"{experts}.gate_up_proj",
        f"{experts}.down_proj",
    }


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 50,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def test_gguf_is_what_ggml_makes_of_the_weights(llama: Write, tmp_path: Path) -> None:
    source = llama(LLAMA)
    result = quantize_checkpoint(
        source, tmp_path / "model.gguf", "mxfp4", recipe="floor", dialect="gguf"
    )
    assert result.ties == "zero"
    assert result.bytes_written == (tmp_path / "model.gguf").stat().st_size
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    down = tensors["blk.0.ffn_down.weight"]
    assert down.tensor_type == gguf.GGMLQuantizationType.MXFP4
    x = plain(source, "model.layers.0.mlp.down_proj.weight")
    wanted = gguf.quants.quantize(x, gguf.GGMLQuantizationType.MXFP4)
    np.testing.assert_array_equal(down.data.reshape(wanted.shape), wanted)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "source"]
