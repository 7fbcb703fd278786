"""Logits of architectures in float32, against transformers: every one that came first.

What is special of an architecture shows in its config. conftest.py has the way of a case.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from mxc.artifact.manifest import REPORT

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 139,
    "max_position_embeddings": 256,
}

#: Where rotary frequencies are stretched, most of a sequence lies beyond the original context.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0,
        "original_max_position_embeddings": 16}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}

#: Gives what conftest.py builds of a case.
Built = Callable[[str], Any]

#: Those of which sequences are decoded together: one of each kind of layers.
BATCHED = ("llama", "mixtral")

ATTENTION = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "mxfp4")
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mxfp4")

#: Name -> transformers' config, dtype of what stays plain, formats by the ends of names.
CASES: dict[str, tuple[Any, torch.dtype, dict[str, str]]] = {
    "llama": (
        transformers.LlamaConfig(
            **SMALL, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3
        ),
        torch.bfloat16,
        ATTENTION,
    ),
    "mistral": (
        transformers.MistralConfig(**SMALL, sliding_window=7, head_dim=32, rope_parameters=LINEAR),
        torch.float32,
        MLP,
    ),
    # The first layer sees everything, the second slides.
    "qwen2": (
        transformers.Qwen2Config(
            **SMALL | {"num_hidden_layers": 2},
            tie_word_embeddings=True,
            use_sliding_window=True,
            sliding_window=6,
            max_window_layers=1,
        ),
        torch.float16,
        MLP,
    ),
    "qwen3": (
        transformers.Qwen3Config(**SMALL, head_dim=32, rope_parameters=YARN),
        torch.bfloat16,
        ATTENTION,
    ),
    # The shares of the chosen experts do not add up to one; the second layer has no experts.
    "qwen3_moe": (
        transformers.Qwen3MoeConfig(
            **SMALL | {"num_hidden_layers": 2},
            head_dim=32,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            norm_topk_prob=False,
            mlp_only_layers=[1],
        ),
        torch.bfloat16,
        MLP,
    ),
    "mixtral": (
        transformers.MixtralConfig(
            **SMALL, num_local_experts=4, num_experts_per_tok=2, sliding_window=9
        ),
        torch.bfloat16,
        ATTENTION,
    ),
    # The module has experts as [experts, in, out], gate and up in turn.
    "gpt_oss": (
        transformers.GptOssConfig(
            **SMALL, head_dim=32, num_local_experts=4, num_experts_per_tok=2, sliding_window=5
        ),
        torch.bfloat16,
        ATTENTION,
    ),
    # Every matrix in its own format: gate and up are two products, and activations are prepared
    # for blocks of 32 and of 16.
    "formats": (
        transformers.LlamaConfig(**SMALL),
        torch.bfloat16,
        {
            "q_proj": "mxfp8e4m3",
            "k_proj": "mxfp6e2m3",
            "v_proj": "nvfp4",
            "o_proj": "mxfp4",
            "gate_proj": "mxfp8e4m3",
            "up_proj": "mxfp4",
            "down_proj": "nvfp4",
        },
    ),
}

each = pytest.mark.parametrize("name", CASES)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_the_library_reads_the_same_weights(name: str, built: Built) -> None:
    """compressed-tensors dequantises the checkpoint to the values of the reference."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        built(name).folder / "checkpoint",
        dtype=torch.float32,
        quantization_config=transformers.CompressedTensorsConfig(dequantize=True),
    )
    values = load_file(built(name).folder / "reference" / "model.safetensors")
    found = dict(theirs.named_parameters())
    assert values.keys() == found.keys()
    assert [key for key in values if not torch.equal(found[key], values[key])] == []


@each
def test_prompt(name: str, built: Built) -> None:
    built(name).check_prompt()


@each
def test_decode(name: str, built: Built) -> None:
    built(name).check_decode()


@pytest.mark.parametrize("name", BATCHED)
def test_odd_cuts_and_decoded_together(name: str, built: Built) -> None:
    built(name).check_odd_cuts_and_decoded_together()


@each
def test_weights_are_read_as_they_are(name: str, built: Built) -> None:
    """Each in its format, by a kernel of ours where there is one."""
    report = json.loads((built(name).folder / "model.mxc" / REPORT).read_text())
    formats = set(CASES[name][2].values())
    rows = [row for row in report["matmuls"] if "layers.0." in row["name"]]
    plain = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}[CASES[name][1]]
    wanted = formats if name == "formats" else {*formats, plain}
    assert wanted <= {row["rhs"] for row in rows}
    by_ours = [row for row in rows if row["rhs"] in formats]
    assert by_ours
    assert all(row["kernel"].startswith("mxc_") for row in by_ours)
