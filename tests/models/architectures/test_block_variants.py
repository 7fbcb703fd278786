"""Logits in float32 of architectures that differ from Llama in a block, against transformers.

Each config is small and has all that is new in it: windows that a sequence leaves, scaled rotary
positions, routers with biases and groups. conftest.py has the way of a case.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as t

ONE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 139,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
TWO = ONE | {"num_hidden_layers": 2}

#: The first layer slides, the second sees everything.
SLIDING: dict[str, Any] = {
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}

ATTENTION = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "mxfp4")
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mxfp4")

#: Gives what conftest.py builds of a case.
Built = Callable[[str], Any]

BATCHED = ("gemma3_text", "glm4_moe", "llama4_text")

#: Rotary positions of each kind of layers.
BY_KIND = {
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def longrope(original: int) -> dict[str, Any]:
    """As in Phi-4-mini: six pairs of 16 dimensions are rotated, each with factors of its own."""
    return {
        "original_max_position_embeddings": original,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": original,
            "long_factor": [1.0, 1.1, 1.7, 3.5, 9.0, 20.0],
            "short_factor": [1.0, 1.0, 1.02, 1.1, 1.3, 1.5],
        },
    }


CONFIGS: dict[str, tuple[Any, dict[str, str]]] = {
    "cohere2": (t.Cohere2Config(**TWO, **SLIDING), MLP),
    "ernie4_5": (t.Ernie4_5Config(**ONE, head_dim=32), MLP),
    "ernie4_5_moe": (
        t.Ernie4_5_MoeConfig(
            **TWO, moe_intermediate_size=32, moe_k=2, moe_num_experts=4, moe_num_shared_experts=2
        ),
        MLP,
    ),
    "exaone4": (t.Exaone4Config(**TWO, **SLIDING), ATTENTION),
    "gemma2": (t.Gemma2Config(**TWO, **SLIDING, head_dim=32, query_pre_attn_scalar=24), MLP),
    "gemma3_text": (
        t.Gemma3TextConfig(
            **TWO, **SLIDING, head_dim=32, query_pre_attn_scalar=24, rope_parameters=BY_KIND
        ),
        ATTENTION,
    ),
    "glm4": (
        t.Glm4Config(**ONE, head_dim=16),
        {"gate_up_proj": "mxfp4", "down_proj": "mxfp4"},
    ),
    "glm4_moe": (
        t.Glm4MoeConfig(
            **TWO,
            head_dim=32,
            moe_intermediate_size=32,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            n_shared_experts=2,
            first_k_dense_replace=1,
            use_qk_norm=True,
            routed_scaling_factor=1.5,
        ),
        MLP,
    ),
    "granite": (
        t.GraniteConfig(
            **ONE,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
            residual_multiplier=0.7,
            attention_multiplier=0.2,
        ),
        MLP,
    ),
    "granitemoe": (
        t.GraniteMoeConfig(
            **ONE,
            num_local_experts=4,
            num_experts_per_tok=2,
            embedding_multiplier=3.0,
            logits_scaling=2.0,
            residual_multiplier=0.7,
            attention_multiplier=0.2,
        ),
        ATTENTION,
    ),
    # A sequence is in five chunks, and passes two steps of the temperature.
    "llama4_text": (
        t.Llama4TextConfig(
            **TWO,
            head_dim=32,
            intermediate_size_mlp=128,
            num_local_experts=4,
            moe_layers=[1],
            no_rope_layers=[1, 0],
            attention_chunk_size=6,
            floor_scale=11,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
        MLP | ATTENTION,
    ),
    "minimax_m2": (
        t.MiniMaxM2Config(
            **ONE, head_dim=32, rotary_dim=16, num_local_experts=4, num_experts_per_tok=2
        ),
        ATTENTION,
    ),
    # Queries grow twice within a sequence.
    "ministral3": (
        t.Ministral3Config(
            **ONE,
            head_dim=32,
            rope_parameters={
                "rope_type": "yarn",
                "type": "yarn",
                "rope_theta": 1e4,
                "factor": 16.0,
                "original_max_position_embeddings": 11,
                "llama_4_scaling_beta": 0.4,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        ),
        ATTENTION,
    ),
    "olmo2": (t.Olmo2Config(**ONE), ATTENTION),
    "olmo3": (t.Olmo3Config(**TWO, **SLIDING, rope_parameters=BY_KIND), MLP),
    "phi3": (
        t.Phi3Config(
            **ONE,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            },
        ),
        {"qkv_proj": "mxfp4", "o_proj": "mxfp4"},
    ),
    # Sequences are longer than the original context, and are not.
    "phi3_long": (t.Phi3Config(**ONE, **longrope(16)), {"qkv_proj": "mxfp4"}),
    "phi3_short": (t.Phi3Config(**ONE, **longrope(71)), {"qkv_proj": "mxfp4"}),
    "qwen2_moe": (
        t.Qwen2MoeConfig(
            **ONE,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
        ),
        MLP,
    ),
    "seed_oss": (
        t.SeedOssConfig(**ONE, head_dim=32, attention_out_bias=True, mlp_bias=True),
        ATTENTION,
    ),
    "smollm3": (t.SmolLM3Config(**TWO, no_rope_layers=[1, 0]), MLP),
    "starcoder2": (t.Starcoder2Config(**ONE), {"c_fc": "mxfp4"}),
}


CASES = {name: (config, torch.bfloat16, formats) for name, (config, formats) in CONFIGS.items()}

each = pytest.mark.parametrize("name", CASES)


@each
def test_prompt(name: str, built: Built) -> None:
    built(name).check_prompt()


@each
def test_decode(name: str, built: Built) -> None:
    built(name).check_decode()


@pytest.mark.parametrize("name", BATCHED)
def test_greedy(name: str, built: Built) -> None:
    built(name).check_greedy()


@pytest.mark.parametrize("name", BATCHED)
def test_odd_cuts_and_decoded_together(name: str, built: Built) -> None:
    built(name).check_odd_cuts_and_decoded_together()
