"""Logits in float32 of models with multi-head latent attention, against transformers.

transformers makes keys and values of every head; our program never does. conftest.py has the way
of a case.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as t

#: Scores are multiplied with more than the size of a head says; most of a sequence lies beyond the
#: original context.
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "mscale": 0.8,
        "mscale_all_dim": 0.5, "original_max_position_embeddings": 16}  # fmt: skip

#: The first layer is dense, the second has experts.
LATENT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "vocab_size": 139,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}

PROJECTIONS = dict.fromkeys(("q_b_proj", "kv_a_proj_with_mqa", "o_proj"), "mxfp4")
MLP = dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mxfp4")

#: Gives what conftest.py builds of a case.
Built = Callable[[str], Any]

BATCHED = ("deepseek_v3",)

CASES: dict[str, tuple[Any, torch.dtype, dict[str, str]]] = {
    # kv_b_proj in blocks along the latent rows: half of it is decoded while it is packed.
    "deepseek_v3": (
        t.DeepseekV3Config(**LATENT, q_lora_rank=32, rope_parameters=YARN, attention_bias=True),
        torch.bfloat16,
        PROJECTIONS | MLP | {"kv_b_proj": "mxfp8e4m3"},
    ),
    "deepseek_v2": (
        t.DeepseekV2Config(
            **LATENT, q_lora_rank=None, topk_method="group_limited_greedy", rope_parameters=None
        ),
        torch.bfloat16,
        {"q_proj": "mxfp4"},
    ),
    "glm4_moe_lite": (
        t.Glm4MoeLiteConfig(
            **{key: value for key, value in LATENT.items() if key != "first_k_dense_replace"},
            mlp_layer_types=["dense", "sparse"],
            q_lora_rank=32,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        ),
        torch.bfloat16,
        PROJECTIONS | dict.fromkeys(MLP, "nvfp4"),
    ),
}

each = pytest.mark.parametrize("name", CASES)


@each
def test_prompt(name: str, built: Built) -> None:
    built(name).check_prompt()


@each
def test_decode(name: str, built: Built) -> None:
    built(name).check_decode()


@each
def test_greedy(name: str, built: Built) -> None:
    built(name).check_greedy()


@pytest.mark.parametrize("name", BATCHED)
def test_odd_cuts_and_decoded_together(name: str, built: Built) -> None:
    built(name).check_odd_cuts_and_decoded_together()


@pytest.mark.parametrize("name", BATCHED)
def test_the_cache_has_one_row_a_token(name: str, built: Built) -> None:
    """Whatever the number of heads."""
    model = built(name).model.manifest.model
    assert [page.shape for page in model.pages] == [(2, 64, 1, 64 + 16)]
    assert model.bytes_per_token == 2 * (64 + 16) * 4
