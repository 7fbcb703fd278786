"""Architectures at a small size: transformers' config, and the formats of their matrices.

What is special of an architecture shows in its config: windows that a sequence leaves, scaled
rotary positions most of which lie beyond the original context, routers with biases and groups,
layers of each kind. Otherwise matrices have the same sizes, so that a program has few kernels.
"""

from typing import Any

import transformers as t

from tests.models.architectures.dense_cases import (
    ATTENTION,
    DENSE,
    FOUR_EXPERTS,
    GRANITE,
    LARGE,
    LAYER,
    LINEAR,
    MLP,
    MX_LAYER,
    ONE,
    PLAIN_ROPE,
    SEES_ALL,
    SLIDES,
    TWO,
    YARN,
    YARN_OF_SCORES,
    Case,
)
from tests.models.architectures.kimi_k3 import recorded

#: Experts in groups, of which the best are kept.
_GROUPS: dict[str, Any] = {
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
}

EXPERTS: dict[str, Case] = {
    # Biases of routers; half of the groups of experts is left out; the first layer is dense.
    "dots1": Case(
        t.Dots1Config(
            **TWO,
            **_GROUPS,
            first_k_dense_replace=1,
            n_shared_experts=2,
            norm_topk_prob=False,
        ),
        LAYER,
    ),
    "ernie4_5_moe": Case(
        t.Ernie4_5_MoeConfig(
            **TWO, moe_intermediate_size=64, moe_k=2, moe_num_experts=4, moe_num_shared_experts=2
        ),
        MX_LAYER,
    ),
    "flex_olmo": Case(t.FlexOlmoConfig(**ONE, **FOUR_EXPERTS), LAYER),
    # The module has experts as [experts, in, out], gate and up in turn.
    "gpt_oss": Case(t.GptOssConfig(**TWO | LARGE, **FOUR_EXPERTS, sliding_window=8), ATTENTION),
    "granitemoe": Case(t.GraniteMoeConfig(**ONE, **FOUR_EXPERTS, **GRANITE), ATTENTION),
    "minimax_m2": Case(t.MiniMaxM2Config(**ONE | LARGE, **FOUR_EXPERTS, rotary_dim=16), ATTENTION),
    # Fewer heads of keys; the shares of the chosen experts do not add up to one.
    "olmoe": Case(t.OlmoeConfig(**ONE, **FOUR_EXPERTS, attention_bias=True), LAYER),
    # The shares of the chosen experts do not add up to one; the second layer has no experts.
    "qwen3_moe": Case(
        t.Qwen3MoeConfig(
            **TWO | LARGE,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=64,
            norm_topk_prob=False,
            mlp_only_layers=[1],
        ),
        LAYER,
    ),
    "solar_open": Case(
        t.SolarOpenConfig(
            **ONE | LARGE, **_GROUPS, attention_bias=True, rope_parameters=YARN, n_shared_experts=1
        ),
        LAYER,
    ),
}

_DEPTHS = {"kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
#: The first layer is dense, the second has experts.
_LATENT: dict[str, Any] = (
    TWO
    | _GROUPS
    | {
        **_DEPTHS,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
    }
)
#: kv_b_proj in blocks along the latent rows: half of it is decoded while it is packed.
_PROJECTIONS = MLP | {
    **dict.fromkeys(("q_b_proj", "kv_a_proj_with_mqa", "o_proj", "lm_head"), "nvfp4"),
    "kv_b_proj": "mxfp8e4m3",
}

#: Multi-head latent attention. transformers makes keys and values of every head; our program never
#: does.
LATENT: dict[str, Case] = {
    # Queries grow several times within a sequence.
    "mistral4": Case(
        t.Mistral4Config(
            **_LATENT,
            attention_bias=True,
            first_k_dense_replace=1,
            q_lora_rank=32,
            rope_parameters=YARN_OF_SCORES
            | {
                "type": "yarn",
                "original_max_position_embeddings": 11,
                "llama_4_scaling_beta": 0.4,
            },
        ),
        _PROJECTIONS,
    ),
}

#: Two heads of values for one of keys; rotary positions in half of a head.
_HYBRID: dict[str, Any] = TWO | {
    "layer_types": [LINEAR, SEES_ALL],
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": PLAIN_ROPE | {"partial_rotary_factor": 0.5},
}
_SHARED_EXPERT: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
_MIXERS = dict.fromkeys(("q_proj", "o_proj", "in_proj_qkvz", "out_proj", "lm_head"), "nvfp4")

_CONVOLVED = ATTENTION | dict.fromkeys(("in_proj", "out_proj", "w1", "w2", "w3"), "nvfp4")

#: Linear attention. Keys and values are in one layer of two or three, the others keep states: what
#: a cut prompt, a fork or a batch makes of it shows in the logits.
HYBRIDS: dict[str, Case] = {
    # As many heads of keys as of values, and latent attention without rotary positions. The first
    # layer is dense; of the others half of the groups of experts is left out. One weight of
    # queries, keys and values beside gates of low rank in another format.
    "kimi_linear": Case(
        t.KimiLinearConfig(
            **ONE
            | _DEPTHS
            | {
                "num_hidden_layers": 3,
                "layer_types": [LINEAR, SEES_ALL, LINEAR],
                "num_key_value_heads": 4,
                "linear_head_dim": 32,
                "linear_num_heads": 4,
                "linear_conv_kernel_dim": 4,
                "moe_intermediate_size": 32,
                "num_experts": 8,
                "num_experts_per_token": 3,
                "num_expert_group": 4,
                "topk_group": 2,
                "num_shared_experts": 2,
                "routed_scaling_factor": 1.7,
            }
        ),
        _MIXERS
        | dict.fromkeys(("k_proj", "v_proj", "kv_a_proj_with_mqa", "w1", "w3", "w2"), "nvfp4")
        | dict.fromkeys(("g_a_proj", "g_b_proj", "f_a_proj", "kv_b_proj"), "mxfp4"),
    ),
    # Its own code is the reference: gated latent attention, experts in a latent space, attention
    # residuals in blocks of two layers, of which the last one is cut.
    "kimi_k3": Case(None, {"w1": "mxfp4"}, recorded=recorded),
    # Attention without rotary positions; a shared MLP beside the experts.
    "granitemoehybrid": Case(
        t.GraniteMoeHybridConfig(
            **TWO | {"num_hidden_layers": 3},
            **FOUR_EXPERTS,
            **GRANITE,
            layer_types=[LINEAR, SEES_ALL, LINEAR],
            shared_intermediate_size=64,
            mamba_n_heads=4,
            mamba_d_state=32,
            position_embedding_type="nope",
        ),
        ATTENTION | dict.fromkeys(("in_proj", "out_proj"), "nvfp4"),
    ),
    # Without experts. The rows of dt are a weight of their own, as they stay plain.
    "granitemoehybrid, dense": Case(
        t.GraniteMoeHybridConfig(
            **TWO,
            **GRANITE,
            num_local_experts=0,
            layer_types=[LINEAR, SEES_ALL],
            shared_intermediate_size=64,
            mamba_n_heads=4,
            mamba_d_state=32,
            position_embedding_type="rope",
        ),
        {},
        dense=dict.fromkeys((*ATTENTION, "input_linear", "output_linear", "out_proj", "lm_head"), 0)
        | {"in_proj": 4},
    ),
    # A convolution over three tokens is all that the other layers see of earlier ones.
    "lfm2": Case(
        t.Lfm2Config(**TWO, layer_types=["conv", SEES_ALL], block_multiple_of=128),
        _CONVOLVED,
    ),
    # The first layer is dense.
    "lfm2_moe": Case(
        t.Lfm2MoeConfig(
            **TWO | {"num_hidden_layers": 3},
            layer_types=["conv", SEES_ALL, "conv"],
            num_dense_layers=1,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=64,
            conv_L_cache=4,
            routed_scaling_factor=1.5,
        ),
        _CONVOLVED,
    ),
    "qwen3_next": Case(
        t.Qwen3NextConfig(**_HYBRID, **_SHARED_EXPERT, mlp_only_layers=[1]),
        dict.fromkeys(_MIXERS, "mxfp4"),
    ),
}

#: Fields of every small Gemma 4.
GEMMA4: dict[str, Any] = TWO | {
    "layer_types": [SLIDES, SEES_ALL],
    "head_dim": 32,
    "global_head_dim": 64,
    "sliding_window": 8,
    "final_logit_softcapping": 30.0,
    "rope_parameters": {
        SEES_ALL: {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1e3,
            "factor": 1.5,
        },
        SLIDES: {"rope_type": "default", "rope_theta": 1e2},
    },
}
#: Full layers have fewer heads of keys, which are their values too.
_KEYS_ARE_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
_TWO_OF_FOUR = _KEYS_ARE_VALUES | {"num_key_value_heads": 4, "num_global_key_value_heads": 2}

#: Heads, pages and norms differ by layer.
GEMMAS4: dict[str, Case] = {
    # The last two layers read the keys and values of the two before, not of the first one, and have
    # wider MLPs.
    "gemma4_text, borrows": Case(
        t.Gemma4TextConfig(
            **GEMMA4
            | {
                "num_hidden_layers": 5,
                "layer_types": [SLIDES, SLIDES, SEES_ALL, SLIDES, SEES_ALL],
                "vocab_size_per_layer_input": 150,
                "hidden_size_per_layer_input": 32,
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True,
            }
        ),
        LAYER
        | dict.fromkeys(("per_layer_input_gate", "per_layer_projection"), "nvfp4")
        | {"per_layer_model_projection": "mxfp8e4m3"},
    ),
    # Each layer has experts.
    "gemma4_text, experts": Case(
        t.Gemma4TextConfig(
            **GEMMA4 | _TWO_OF_FOUR,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=64,
            attention_bias=True,
        ),
        LAYER,
    ),
    # Heads of the published sizes.
    "gemma4_unified_text": Case(
        t.Gemma4UnifiedTextConfig(
            **GEMMA4 | _KEYS_ARE_VALUES | {"head_dim": 256, "global_head_dim": 512}
        ),
        LAYER,
    ),
}

CASES = DENSE | EXPERTS | LATENT | HYBRIDS | GEMMAS4

#: A case, and how many devices compute it (test_devices.py).
DEVICES = {
    # Attention and MLP side by side; the head is the embedding, the first layer slides.
    "cohere2": 4,
    # Two of the layers read keys and values of others; each layer gets numbers of its own.
    "gemma4_text, borrows": 2,
    # The MLP and the experts of a layer are two sums.
    "gemma4_text, experts": 2,
    # Biases everywhere, experts, sinks.
    "gpt_oss": 2,
    # The experts of a layer are summed in their latent space, and each device leaves it with a part
    # of its columns.
    "kimi_k3": 2,
    # Linear attention whose queries, keys and values are one weight; latent attention beside it, of
    # whose heads all share one row a token, which is on both devices. Half of an expert is no whole
    # block: each device has half of the experts.
    "kimi_linear": 2,
    # Convolutions: each device has a part of the columns of three projections in one.
    "lfm2_moe": 2,
    # Queries and keys are normalized over the heads of all devices.
    "minimax_m2": 2,
    # q_proj, k_proj and v_proj are one tensor, gate_proj and up_proj another one.
    "phi3": 2,
    # The head is the embedding; every weight is of another format, the second layer slides.
    "qwen2": 2,
    # Linear attention with two heads of values for one of keys, which lie head by head. An expert
    # that all tokens go through, with a gate of its own.
    "qwen3_next": 2,
}

#: Those that are compiled for one device too: of the others that test_devices.py has, published
#: checkpoints are (test_published.py), as they are of the architectures that are not here.
ALONE = [name for name in CASES if name not in DEVICES or name in ("cohere2", "kimi_k3", "qwen2")]
