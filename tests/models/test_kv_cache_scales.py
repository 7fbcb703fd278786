"""Keys and values in fp8 under the scales of a checkpoint, against transformers and ml_dtypes.

What is kept is key / scale as e4m3, saturated. transformers computes the keys and values, ml_dtypes
rounds them.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

import mxc
from mxc.compiler.models.model import BoundModel, open_model

LENGTH, HEADS, DEPTH = 100, 2, 64
#: Scales of keys and of values in a layer: powers of two and others; values that saturate; one for
#: each head.
SCALES = [
    {"k": torch.tensor([0.0123]), "v": torch.tensor(0.001)},
    {"k": torch.tensor([0.25, 0.03]), "v": torch.tensor([0.05, 2.0])},
    {"k": torch.tensor([0.5], dtype=torch.bfloat16), "v": torch.tensor([1.0])},
]
#: As modelopt, compressed-tensors and Quark call them.
NAMES = ("self_attn.{0}_proj.{0}_scale", "self_attn.{0}_scale", "self_attn.{0}_proj.output_scale")


def write(folder: Path, *, scaled: bool = True, **more: Any) -> LlamaForCausalLM:
    """A random Llama with a scale of every name; what transformers reads of it."""
    config = LlamaConfig(
        vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=len(SCALES),
        num_attention_heads=4, num_key_value_heads=HEADS, head_dim=DEPTH,
        max_position_embeddings=LENGTH, attn_implementation="eager",
    )  # fmt: skip
    random, model = torch.Generator().manual_seed(1), LlamaForCausalLM(config)
    for name, weight in model.named_parameters():
        draw = torch.randn(weight.shape, generator=random)
        if weight.dim() > 1:
            weight.data = draw if "embed" in name else 1.5 * weight.shape[-1] ** -0.5 * draw
    model.float().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for layer, (name, scales) in enumerate(zip(NAMES, SCALES, strict=True)):
        for part in "kv" * scaled:
            tensors[f"model.layers.{layer}.{name.format(part)}"] = scales[part]
    save_file(tensors, folder / "model.safetensors")
    if more:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    return model


def codes(values: torch.Tensor, layer: int, part: str) -> NDArray[Any]:
    """e4m3 of keys or values [.., heads, tokens, D] over the scales of a layer."""
    scale = SCALES[layer][part].float().numpy().reshape(-1, 1, 1)
    return np.clip(values.numpy() / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn)


def rounded(values: torch.Tensor, layer: int, part: str) -> torch.Tensor:
    scale = SCALES[layer][part].float().reshape(-1, 1, 1)
    return torch.from_numpy(codes(values, layer, part).astype(np.float32)) * scale


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    folder = tmp_path_factory.mktemp("scales")
    model = write(folder / "checkpoint")
    mxc.compile(
        folder / "checkpoint", "cpu", folder / "model.mxc", activations="f32", kv_cache="fp8",
        strict=True,
    )  # fmt: skip
    return model, folder / "model.mxc"


def test_logits_and_pages(
    made: tuple[LlamaForCausalLM, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, place = made
    plain = modeling_llama.eager_attention_forward
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, 500, LENGTH)]

    def attention(module: Any, query: Any, key: Any, value: Any, *given: Any, **named: Any) -> Any:
        parts = (rounded(x, module.layer_idx, part) for x, part in ((key, "k"), (value, "v")))
        return plain(module, query, *parts, *given, **named)

    with torch.no_grad():
        exact = model(torch.tensor([tokens])).logits[0].double().numpy()
        monkeypatch.setattr(modeling_llama, "eager_attention_forward", attention)
        answer = model(torch.tensor([tokens]), use_cache=True)
    wanted = answer.logits[0].double().numpy()
    sequence = mxc.load(place).sequence()
    found = np.concatenate([sequence.feed(part) for part in (tokens[:70], tokens[70:])])
    size = np.sqrt(np.mean(wanted**2))
    error, cost = (np.sqrt(np.mean((each - wanted) ** 2)) / size for each in (found, exact))
    print(f"rms {error:.2e}; what the format costs {cost:.2e}")
    assert error < 1e-3
    assert cost > 1e-1
    pages = sequence.pages().view(ml_dtypes.float8_e4m3fn)
    assert pages.shape[1:] == (2 * len(SCALES), 64, HEADS, DEPTH)
    for layer, kept in enumerate(answer.past_key_values.layers):
        for entry, (part, values) in enumerate((("k", kept.keys), ("v", kept.values))):
            mine = pages[:, 2 * layer + entry].reshape(-1, HEADS, DEPTH)[:LENGTH]
            theirs = np.moveaxis(codes(values[0], layer, part), 0, 1)
            other = (mine != theirs).mean()
            # Sums in another order: an element may be rounded otherwise.
            assert other < (1e-3 if not layer else 2e-2), (layer, part)
            if (layer, part) == (0, "v"):
                assert (np.abs(mine.astype(np.float32)) == 448).mean() > 0.1
            assert np.isfinite(mine.astype(np.float32)).all()


def test_two_devices(made: tuple[LlamaForCausalLM, Path], tmp_path: Path) -> None:
    """Each has the scales of its head. Sums in another order: a code may be rounded otherwise."""
    folder = made[1].with_name("checkpoint")
    mxc.compile(folder, "cpu", tmp_path / "two.mxc", activations="f32", kv_cache="fp8", devices=2)
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, 500, LENGTH)]
    two = mxc.load(tmp_path / "two.mxc")
    one, found = (
        np.concatenate([sequence.feed(part) for part in (tokens[:70], tokens[70:])])
        for sequence in (mxc.load(made[1]).sequence(), two.sequence())
    )
    assert np.sqrt(np.mean((found - one) ** 2)) < 1e-3 * np.sqrt(np.mean(one**2))
    for device in range(2):
        record = two.manifest.weights[f"device.{device}.model.layers.1.self_attn.k_scale"]
        assert (record.shape, record.source) == ((1,), "model.layers.1.self_attn.k_scale")


def test_scales_are_parameters(made: tuple[LlamaForCausalLM, Path]) -> None:
    manifest = mxc.load(made[1]).manifest
    for layer, name in enumerate(NAMES):
        for part in "kv":
            record = manifest.weights[f"model.layers.{layer}.self_attn.{part}_scale"]
            assert record.shape == (HEADS,)
            assert record.format == "f32"
            assert record.source == f"model.layers.{layer}.{name.format(part)}"
    assert any(
        "kept in fp8 (e4m3) with the checkpoint's scales, from 0.001 to 2 for 3 layers of 3" in note
        for note in manifest.notes
    )


def said(model: BoundModel, text: str) -> bool:
    return any(text in note for note in model.notes)


def test_what_is_said_of_other_caches(tmp_path: Path) -> None:
    """Scales that are unused, that are another format's, and none."""
    write(tmp_path / "scaled")
    model = open_model(tmp_path / "scaled")
    assert not model.cache_scales
    assert said(model, "from 0.001 to 2 for 3 layers of 3: they are not used, the cache of this")
    assert said(model, "--kv-cache fp8 follows the checkpoint")
    write(tmp_path / "plain", scaled=False)
    assert not said(open_model(tmp_path / "plain"), "fp8")
    model = open_model(tmp_path / "plain", kv_cache="fp8")
    assert not model.cache_scales
    assert said(model, "with scales of 1: the checkpoint has no scales of its key/value cache")


def test_scales_of_some_layers(tmp_path: Path) -> None:
    write(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for part in "kv":
        del tensors[f"model.layers.1.{NAMES[1].format(part)}"]
    save_file(tensors, tmp_path / "model.safetensors")
    model = open_model(tmp_path, kv_cache="fp8")
    assert {key.split(".")[2] for key in model.cache_scales} == {"0", "2"}
    assert said(model, "for 2 layers of 3; in the others they are 1")
