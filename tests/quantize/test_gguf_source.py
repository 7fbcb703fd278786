"""A GGUF is quantized as the folder that it was made from; what it has no words for is refused."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.models.configs.gguf_rope import DIVISORS
from mxc.compiler.models.model import open_model
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.errors import CheckpointError
from mxc.formats.reference import quantize

LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        max_position_embeddings=64,
        rope_parameters=LLAMA3,
    )
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(place)
    return place


def write(folder: Path, path: Path, q8: bool, **more: Any) -> Path:
    """The model as llama.cpp's converter writes it, with transformers' divisors of Llama 3."""
    convert(folder, "gguf", path.with_suffix(".plain"))
    reader = gguf.GGUFReader(path.with_suffix(".plain"))
    writer = gguf.GGUFWriter(path, "llama")
    for name, field in reader.fields.items():
        if name.startswith("llama."):
            writer.add_key_value(name, field.contents(), field.types[0])
    divisors = transformers.LlamaConfig(**json.loads((folder / "config.json").read_text()))
    scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](divisors, "cpu")
    plain = 1 / 5e5 ** (torch.arange(0, 16, 2) / 16)
    writer.add_tensor(DIVISORS, more.get("divisors", (plain / scaled).numpy()))
    kind = gguf.GGMLQuantizationType
    for tensor in (each for each in reader.tensors if each.name != DIVISORS):
        data, of = tensor.data, tensor.tensor_type
        if q8 and tensor.name == "blk.0.ffn_gate.weight":
            of, wide = kind.Q8_0, gguf.quants.dequantize(data, of)
            data = gguf.quants.quantize(wide, of)
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_as_the_folder_that_it_was_made_from(folder: Path, tmp_path: Path) -> None:
    source = write(folder, tmp_path / "m.gguf", q8=False)
    for place, out in ((source, "from-gguf"), (folder, "from-folder")):
        quantize_checkpoint(place, tmp_path / out, "mxfp4", recipe="even")
    first, second = (
        load_file(tmp_path / out / "model.safetensors") for out in ("from-gguf", "from-folder")
    )
    assert first.keys() == second.keys()
    # Norms are wider in the GGUF.
    assert [
        name for name in first if not torch.equal(first[name].float(), second[name].float())
    ] == []
    config = json.loads((tmp_path / "from-gguf" / "config.json").read_text())
    assert config["rope_scaling"] == {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    models = [open_model(tmp_path / out) for out in ("from-gguf", "from-folder")]
    assert models[0].decoder.rope.scaling == models[1].decoder.rope.scaling
    # Without what `mxc convert` keeps the GGUF has a config too.
    convert(source, "quark", tmp_path / "converted")
    again = load_file(tmp_path / "converted" / "model.safetensors")
    assert torch.equal(
        again["model.layers.0.self_attn.q_proj.weight"],
        load_file(folder / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"],
    )


def test_eight_bits_are_the_numbers_that_they_mean(folder: Path, tmp_path: Path) -> None:
    source = write(folder, tmp_path / "m.gguf", q8=True)
    quantize_checkpoint(source, tmp_path / "out", "mxfp8e4m3", recipe="even")
    name = "model.layers.0.mlp.gate_proj.weight"
    found = load_file(tmp_path / "out" / "model.safetensors")
    tensor = next(t for t in gguf.GGUFReader(source).tensors if t.name == "blk.0.ffn_gate.weight")
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    wanted = quantize(values, "mxfp8e4m3", recipe="even", negative_zero=False)
    assert np.array_equal(found[name].view(torch.uint8).numpy(), wanted.elements.reshape(96, 64))


def test_refused(folder: Path, tmp_path: Path) -> None:
    source = write(folder, tmp_path / "m.gguf", False, divisors=np.full(8, 3.0, np.float32))
    with pytest.raises(CheckpointError, match="none of Llama 3's published scalings"):
        quantize_checkpoint(source, tmp_path / "out", "mxfp4")
    quantize_checkpoint(folder, tmp_path / "q.gguf", "mxfp4", dialect="gguf")
    with pytest.raises(CheckpointError, match="is mxfp4: the file is quantized already"):
        quantize_checkpoint(tmp_path / "q.gguf", tmp_path / "out", "mxfp4")
    assert not (tmp_path / "out").exists()
