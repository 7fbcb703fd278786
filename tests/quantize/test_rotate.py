"""`--rotate`: transformers computes the same with rotated weights, which have fewer outliers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from mxc.compiler.checkpoints.synthetic.decoder import write_decoder
from mxc.compiler.cli import app
from mxc.compiler.models.model import open_model
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.compiler.quantize.hadamard import Hadamard
from mxc.compiler.quantize.rotate import write_rotated
from mxc.errors import CheckpointError
from tests.models.architectures import kimi_k3
from tests.models.architectures.built import random_model
from tests.models.architectures.cases import CASES

SIZES = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 120,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}


def config(architecture: str, model_type: str, **more: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **SIZES, **more}


#: With norms of queries and keys; biases and a head that is the embedding; experts.
MODELS = {
    "qwen3": config("Qwen3ForCausalLM", "qwen3"),
    "qwen2": config("Qwen2ForCausalLM", "qwen2", head_dim=24, tie_word_embeddings=True),
    "mixtral": config("MixtralForCausalLM", "mixtral", num_local_experts=4, num_experts_per_tok=2),
}


def logits(folder: Path) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.arange(40)[None] * 3).logits[0].numpy()


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_same_model(tmp_path: Path, name: str) -> None:
    write_decoder(tmp_path / "plain", MODELS[name], dtype="F32")
    write_rotated(tmp_path / "plain", tmp_path / "rotated")
    one, other = logits(tmp_path / "plain"), logits(tmp_path / "rotated")
    assert np.abs(one - other).max() < 2e-5 * np.abs(one).max()
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("plain", "rotated"))
    stem = "model.layers.1"
    norm = after[f"{stem}.input_layernorm.weight"]
    assert (norm == 1).all()
    for part in ("q_proj", "v_proj", "o_proj"):
        weight = f"{stem}.self_attn.{part}.weight"
        assert not torch.allclose(before[weight], after[weight], atol=0.02)


@pytest.mark.parametrize("name", ["lfm2", "lfm2_moe", "kimi_linear"])
def test_names_of_files_may_be_others_than_those_of_the_model(tmp_path: Path, name: str) -> None:
    model = random_model(CASES[name].config, torch.float32)
    model.save_pretrained(tmp_path / "plain")
    write_rotated(tmp_path / "plain", tmp_path / "rotated")
    one, other = logits(tmp_path / "plain"), logits(tmp_path / "rotated")
    assert np.abs(one - other).max() < 1e-5 * np.abs(one).max()
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("plain", "rotated"))
    assert before.keys() - after.keys() == set()
    ends = (".self_attn.o_proj.weight", ".self_attn.out_proj.weight")
    key = next(key for key in before if key.endswith(ends))
    assert (before[key] - after[key]).abs().max() > 0.1 * before[key].abs().max()


def test_a_head_of_lfm2_that_is_the_embedding(tmp_path: Path) -> None:
    random_model(CASES["lfm2"].config, torch.float32).save_pretrained(tmp_path / "plain")
    place = tmp_path / "plain" / "config.json"
    raw = json.loads(place.read_text())
    assert raw["tie_word_embeddings"]
    place.write_text(json.dumps(raw | {"tie_embedding": True}))
    include = ["re:.*feed_forward.*"]
    quantize_checkpoint(
        tmp_path / "plain", tmp_path / "out", "mxfp8e4m3", include=include, rotate=True
    )
    assert not open_model(tmp_path / "out").decoder.tied


@pytest.mark.parametrize("width", [32, 96, 4096])
def test_matrices_are_those_of_sylvester(width: int) -> None:
    """Entry (i, j) is negative where i and j have an odd number of bits in common."""
    found = Hadamard.of(width)
    assert found.size == {32: 32, 96: 32, 4096: 4096}[width]
    rows = np.random.default_rng(3).standard_normal((3, 2 * width)).astype(np.float32)
    numbers = np.arange(found.size)
    signs = 1 - 2 * (np.bitwise_count(numbers[:, None] & numbers) % 2).astype(np.int8)
    blocks = np.kron(np.eye(width // found.size), signs)
    matrix = found.signs[:, None] * blocks / np.sqrt(found.size)
    wanted = (rows.reshape(-1, width) @ matrix).reshape(rows.shape)
    np.testing.assert_allclose(found.rotate(rows), wanted, atol=2e-5)
    assert 0.3 < (found.signs > 0).mean() < 0.7


def test_outliers_are_spread(tmp_path: Path) -> None:
    """Channels of hidden states that are large: their weights are small, and lost beside others."""
    write_decoder(tmp_path / "plain", MODELS["qwen3"], dtype="F32")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    for weight in tensors.values():
        if weight.shape[-1] == SIZES["hidden_size"] and weight.ndim == 2:
            weight[:, ::13] *= 12
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "plain" / "model.safetensors")
    found: dict[bool, Any] = {}
    for rotate in (False, True):
        output = tmp_path / f"out-{rotate}"
        result = quantize_checkpoint(tmp_path / "plain", output, "mxfp4", rotate=rotate)
        found[rotate] = result.losses["model.layers.0.self_attn.q_proj.weight"].sqnr
        with safe_open(output / "model.safetensors", "np") as opened:
            said = json.loads(opened.metadata()["mxc.quantize"])
        assert said.get("rotation") == ("hadamard 32" if rotate else None)
        assert result.rotation == said.get("rotation")
        assert {each.format for each in open_model(output).bound} >= {"mxfp4", "f32"}
    assert found[True] > found[False] + 1


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (config("Olmo2ForCausalLM", "olmo2"), "it has norms behind attention or MLP"),
        (
            {
                key: value
                for key, value in config("Starcoder2ForCausalLM", "starcoder2").items()
                if key != "rms_norm_eps"
            },
            "its norms subtract the mean",
        ),
    ],
)
def test_what_is_not_exact_is_refused(tmp_path: Path, case: dict[str, Any], said: str) -> None:
    write_decoder(tmp_path / "plain", case, dtype="F32")
    with pytest.raises(CheckpointError, match=said):
        quantize_checkpoint(tmp_path / "plain", tmp_path / "out", "mxfp4", rotate=True)
    assert not (tmp_path / "out").exists()


def test_attention_residuals_are_refused(tmp_path: Path) -> None:
    kimi_k3.write(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="kimi_k3 cannot be rotated exactly: its layers read"):
        write_rotated(tmp_path / "plain", tmp_path / "out")


def test_tensors_beside_the_model_are_refused(tmp_path: Path) -> None:
    write_decoder(tmp_path / "plain", MODELS["qwen3"], dtype="F32")
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    tensors["visual.proj.weight"] = torch.zeros(96, 96)
    from safetensors.torch import save_file

    save_file(tensors, tmp_path / "plain" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"visual\.proj\.weight"):
        write_rotated(tmp_path / "plain", tmp_path / "out")


@pytest.mark.parametrize(
    ("format", "said"), [("nvfp4", True), ("mxfp4", False)], ids=["nvfp4", "mxfp4"]
)
def test_a_note_says_that_rotated_nvfp4_loses(tmp_path: Path, format: str, said: bool) -> None:
    write_decoder(tmp_path / "plain", MODELS["qwen3"])
    words = [tmp_path / "plain", "--output", tmp_path / "out", "--format", format, "--rotate"]
    result = CliRunner().invoke(app, ["quantize", *map(str, words)])
    assert result.exit_code == 0, result.output
    assert ("note: --rotate usually makes nvfp4 less accurate" in result.stdout) is said
