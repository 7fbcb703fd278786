"""One layer at the shape of openai/gpt-oss-20b: 2880 wide, 32 experts of which 4, 64 heads of 64.

The weights of the experts are 400 MB packed and 3 GB in float32, so the reference is transformers'
model whose experts are dequantized, by transformers, when they are chosen.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GPT_OSS_20B, write_gpt_oss

OPTIONS = replace(GPT_OSS_20B, num_hidden_layers=1, vocab_size=512)
LENGTH, CHUNK = 20, 16


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "checkpoint"
    write_gpt_oss(folder, OPTIONS, tokenizer=False)
    return folder


class _Experts:
    """A weight [E, K, N] of which an expert exists while it is used."""

    def __init__(self, blocks: Any, scales: Any) -> None:
        self._blocks, self._scales = blocks, scales

    def __getitem__(self, expert: torch.Tensor) -> torch.Tensor:
        one = slice(int(expert), int(expert) + 1)
        return convert_moe_packed_tensors(self._blocks[one], self._scales[one])[0].float()


@pytest.fixture
def reference(checkpoint: Path) -> Iterator[GptOssForCausalLM]:
    config = GptOssConfig.from_pretrained(checkpoint)
    config._attn_implementation = config._experts_implementation = "eager"
    with torch.device("meta"):
        model = GptOssForCausalLM(config)
    model.model.rotary_emb = GptOssRotaryEmbedding(config)
    with ExitStack() as files:
        where: dict[Any, Any] = {}
        for file in checkpoint.glob("*.safetensors"):
            opened = files.enter_context(safe_open(file, "pt"))
            where |= dict.fromkeys(opened.keys(), opened)
        packed = {name for name in where if name.endswith(("_blocks", "_scales"))}
        experts = model.model.layers[0].mlp.experts
        for name in ("gate_up_proj", "down_proj"):
            parts = [f"model.layers.0.mlp.experts.{name}_{part}" for part in ("blocks", "scales")]
            packed -= set(parts)
            delattr(experts, name)
            setattr(experts, name, _Experts(*(where[part].get_slice(part) for part in parts)))
        assert not packed
        dense = {
            name: file.get_tensor(name).float()
            for name, file in where.items()
            if not name.endswith(("_blocks", "_scales"))
        }
        model.load_state_dict(dense, assign=True)
        yield model


def test_logits(checkpoint: Path, reference: GptOssForCausalLM, tmp_path: Path) -> None:
    """Two calls in float32.

    A sum of K products that is added up one after the other in float32 has an error of about
    2^-24 sqrt(K / 6) of its own size, 1.3e-6 at K = 2880; a handful of such contractions follow
    one another. transformers adds in blocks and is nearer to the true sum. Hence 1e-5 in root mean
    square, and 1e-4 for the largest of ten thousand logits.
    """
    artifact = tmp_path / "model.mxc"
    mxc.compile(
        checkpoint,
        "cpu",
        artifact,
        activations="f32",
        max_sequence_length=LENGTH,
    )
    tokens = [int(t) for t in np.random.default_rng(0).integers(0, OPTIONS.vocab_size, LENGTH)]
    with torch.no_grad():
        wanted = reference(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy()
    sequence = mxc.load(artifact).sequence()
    found = np.concatenate([sequence.feed(tokens[:CHUNK]), sequence.feed(tokens[CHUNK:])])
    error: NDArray[np.float64] = (found - wanted) / np.sqrt(np.mean(wanted**2))
    assert np.sqrt(np.mean(error**2)) <= 1e-5
    assert np.abs(error).max() <= 1e-4


def test_compiles_for_gfx950(checkpoint: Path, tmp_path: Path) -> None:
    """Without its weights; the contractions of the experts are there at their true size."""
    artifact = tmp_path / "model.mxc"
    built = mxc.compile(
        checkpoint,
        "gfx950",
        artifact,
        weights="none",
        max_sequence_length=LENGTH,
    )
    assert built.manifest.target.name == "gfx950"
    assert not built.manifest.weights_present
    report = json.loads((artifact / "report.json").read_text())
    # The norm before attention is counted with the experts of the layer before, but for the first.
    layer = [each["name"] for each in report["operations"] if ".layers.0." in each["name"]]
    assert len(layer) == 1 + 7, layer
    contractions = report["matmuls"]
    for name, n, k in (("gate_up_proj", 5760, 2880), ("down_proj", 2880, 2880)):
        found = [c for c in contractions if c["name"].endswith(f"experts.{name}")]
        assert {c["function"] for c in found} == {"step"}
        assert {(c["n"], c["k"]) for c in found} == {(n, k)}
