"""A small random checkpoint in bfloat16, sharded, with the names of a Llama and of its experts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

Write = Callable[..., Path]


def weights(rng: np.random.Generator, dtype: Any) -> dict[str, np.ndarray]:
    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.02).astype(dtype)

    found = {"model.embed_tokens.weight": matrix(50, 64), "lm_head.weight": matrix(50, 64)}
    for layer in range(2):
        stem = f"model.layers.{layer}"
        found |= {
            f"{stem}.self_attn.q_proj.weight": matrix(96, 64),
            f"{stem}.self_attn.q_proj.bias": matrix(96),
            f"{stem}.mlp.down_proj.weight": matrix(64, 160),
            f"{stem}.mlp.gate.weight": matrix(4, 64),
            f"{stem}.input_layernorm.weight": matrix(64),
        }
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Write:
    """`checkpoint(dtype=.., extra={name: array})` writes a folder of two shards."""

    def write(dtype: Any = ml_dtypes.bfloat16, extra: dict[str, np.ndarray] | None = None) -> Path:
        folder = tmp_path / "source"
        folder.mkdir()
        tensors = weights(np.random.default_rng(6), dtype) | (extra or {})
        shards: dict[str, dict[str, np.ndarray]] = {}
        for number, (name, array) in enumerate(tensors.items()):
            shards.setdefault(f"model-{number % 2 + 1:05d}-of-00002.safetensors", {})[name] = array
        for file, inside in shards.items():
            save_file(inside, folder / file)
        weight_map = {name: file for file, inside in shards.items() for name in inside}
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        (folder / "tokenizer.json").write_text("{}")
        (folder / "pytorch_model.bin").write_bytes(b"pickle")
        return folder

    return write


@pytest.fixture
def llama(tmp_path: Path) -> Write:
    """`llama(config)` writes a whole Llama of one file in bfloat16."""

    def write(config: dict[str, Any]) -> Path:
        folder = tmp_path / "source"
        folder.mkdir()
        rng = np.random.default_rng(8)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        vocabulary = config["vocab_size"]
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (vocabulary, hidden),
            "lm_head.weight": (vocabulary, hidden),
            "model.norm.weight": (hidden,),
        }
        stem = "model.layers.0"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{stem}.self_attn.{name}.weight"] = (hidden, hidden)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{stem}.mlp.{name}.weight"] = (inner, hidden)
        shapes[f"{stem}.mlp.down_proj.weight"] = (hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{stem}.{name}.weight"] = (hidden,)
        tensors = {
            name: (rng.standard_normal(shape) * 0.05).astype(ml_dtypes.bfloat16)
            for name, shape in shapes.items()
        }
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return write
