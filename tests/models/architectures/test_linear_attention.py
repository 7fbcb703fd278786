"""Logits in float32 of architectures with linear attention, against transformers.

Keys and values are in one layer of two, the other one keeps a state: what a padded chunk, a fork
or a batch makes of it shows in the logits. conftest.py has the way of a case.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as t

#: Two heads of values for one of keys; rotary positions in half of a head.
HYBRID: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 139,
    "max_position_embeddings": 256,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5
    },
}  # fmt: skip

EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}

MIXERS = dict.fromkeys(
    ("q_proj", "o_proj", "in_proj_qkvz", "in_proj_qkv", "in_proj_z", "out_proj"), "mxfp4"
)
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "nvfp4")

#: Gives what conftest.py builds of a case.
Built = Callable[[str], Any]

BATCHED = ("qwen3_next", "qwen3_5")

CASES: dict[str, tuple[Any, torch.dtype, dict[str, str]]] = {
    "qwen3_next": (
        t.Qwen3NextConfig(**HYBRID, **EXPERTS, intermediate_size=96, mlp_only_layers=[1]),
        torch.bfloat16,
        MIXERS,
    ),
    "qwen3_5": (t.Qwen3_5TextConfig(**HYBRID, intermediate_size=96), torch.bfloat16, MIXERS | MLP),
    "qwen3_5_moe": (t.Qwen3_5MoeTextConfig(**HYBRID, **EXPERTS), torch.bfloat16, MLP),
}

each = pytest.mark.parametrize("name", CASES)


@each
def test_prefill(name: str, built: Built) -> None:
    built(name).check_prefill()


@each
def test_decode(name: str, built: Built) -> None:
    built(name).check_decode()


@pytest.mark.parametrize("name", BATCHED)
def test_odd_cuts_and_decoded_together(name: str, built: Built) -> None:
    built(name).check_odd_cuts_and_decoded_together()
