"""The architectures of llama.cpp that are read from a GGUF, and the properties of each.

A record maps an architecture to transformers' names, and says which fields of config.json come from
metadata under another name, from the presence of tensors, or from fixed values where llama.cpp has
no key. Source: llama.cpp's src/models and src/llama-model.cpp (keys, defaults, rotary pairs),
conversion/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class GgufArchitecture:
    """An architecture, with its names in transformers, `architecture` and `model_type`.

    `fields`: metadata key, without the architecture -> field of config.json. `present`: Boolean
    field -> the parameter of layer 0 whose presence makes it true. `defaults`: llama.cpp's defaults
    of keys. `partial`: heads may be rotated in part. `period`: P where the last of every P layers
    is full and the others slide, if the file has no pattern; 0 if all slide; None if a window alone
    does not say which layers slide. `by_layer`: config.json says for each layer whether it slides.
    `needs_window`: the file must state a window. `sliding`: the names in transformers of the
    variant with a window, where they differ. `slides`: llama.cpp reads the window; a number: only
    in models with so many layers. `scores`: the score function of the router. `experts_everywhere`:
    llama.cpp requires experts in every layer of a model with experts. `long`: the file may have
    factors of LongRoPE. `stored_norms`: the file stores norm weights with 1 added to those of
    transformers.
    """

    architecture: str
    model_type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    present: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False
    period: int | None = None
    by_layer: bool = False
    needs_window: bool = False
    sliding: tuple[str, str] | None = None
    slides: bool | int = False
    scores: Literal["softmax", "sigmoid"] = "softmax"
    experts_everywhere: bool = True
    long: bool = False
    stored_norms: bool = False


_ATTENTION_BIAS = {"attention_bias": "self_attn.q_proj.bias"}
_BIASES = _ATTENTION_BIAS | {"mlp_bias": "mlp.gate_proj.bias"}
_EXPERTS = {"expert_count": "num_experts", "expert_feed_forward_length": "moe_intermediate_size"}
_LOCAL_EXPERTS = {
    "expert_count": "num_local_experts",
    "expert_feed_forward_length": "intermediate_size",
}

#: `general.architecture` -> the architecture. GGUFs of Mistral and Mixtral state llama, those of
#: OLMo 3 olmo2.
KINDS: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        "cohere2": GgufArchitecture(
            architecture="Cohere2ForCausalLM",
            model_type="cohere2",
            fields={"logit_scale": "logit_scale", "attention.layer_norm_epsilon": "layer_norm_eps"},
            present=_ATTENTION_BIAS,
            period=4,
            by_layer=True,
            needs_window=True,
            slides=True,
        ),
        "ernie4_5": GgufArchitecture(
            architecture="Ernie4_5ForCausalLM",
            model_type="ernie4_5",
            present={"use_bias": "self_attn.q_proj.bias"},
        ),
        "ernie4_5-moe": GgufArchitecture(
            architecture="Ernie4_5_MoeForCausalLM",
            model_type="ernie4_5_moe",
            fields={
                "expert_count": "moe_num_experts",
                "expert_used_count": "moe_k",
                "expert_feed_forward_length": "moe_intermediate_size",
                "expert_shared_count": "moe_num_shared_experts",
                "interleave_moe_layer_step": "moe_layer_interval",
                "leading_dense_block_count": "moe_layer_start_index",
            },
            present={"use_bias": "self_attn.q_proj.bias"},
            defaults={"interleave_moe_layer_step": 1, "leading_dense_block_count": 0},
            experts_everywhere=False,
        ),
        "exaone4": GgufArchitecture(
            architecture="Exaone4ForCausalLM",
            model_type="exaone4",
            period=4,
            by_layer=True,
            slides=64,
        ),
        "gemma2": GgufArchitecture(
            architecture="Gemma2ForCausalLM",
            model_type="gemma2",
            fields={
                "attn_logit_softcapping": "attn_logit_softcapping",
                "final_logit_softcapping": "final_logit_softcapping",
            },
            present=_ATTENTION_BIAS,
            defaults={
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
                "attention.sliding_window": 4096,
            },
            period=2,
            by_layer=True,
            needs_window=True,
            slides=True,
            stored_norms=True,
        ),
        "gemma3": GgufArchitecture(
            architecture="Gemma3ForCausalLM",
            model_type="gemma3_text",
            fields={
                "final_logit_softcapping": "final_logit_softcapping",
                "rope.freq_base_swa": "rope_local_base_freq",
            },
            present=_ATTENTION_BIAS,
            defaults={"rope.freq_base_swa": 10000.0},
            period=6,
            by_layer=True,
            needs_window=True,
            slides=True,
            stored_norms=True,
        ),
        "glm4": GgufArchitecture(
            architecture="Glm4ForCausalLM",
            model_type="glm4",
            present=_ATTENTION_BIAS,
            partial=True,
        ),
        "glm4moe": GgufArchitecture(
            architecture="Glm4MoeForCausalLM",
            model_type="glm4_moe",
            fields={
                "expert_count": "n_routed_experts",
                "expert_feed_forward_length": "moe_intermediate_size",
                "expert_group_count": "n_group",
                "expert_group_used_count": "topk_group",
                "expert_shared_count": "n_shared_experts",
                "expert_weights_norm": "norm_topk_prob",
                "expert_weights_scale": "routed_scaling_factor",
                "leading_dense_block_count": "first_k_dense_replace",
                "nextn_predict_layers": "num_nextn_predict_layers",
            },
            present=_ATTENTION_BIAS | {"use_qk_norm": "self_attn.q_norm.weight"},
            defaults={"leading_dense_block_count": 0, "expert_weights_norm": False},
            partial=True,
            scores="sigmoid",
            experts_everywhere=False,
        ),
        "gpt-oss": GgufArchitecture(
            architecture="GptOssForCausalLM",
            model_type="gpt_oss",
            fields=_LOCAL_EXPERTS,
            present=_ATTENTION_BIAS,
            period=2,
            by_layer=True,
            slides=True,
        ),
        "granite": GgufArchitecture(
            architecture="GraniteForCausalLM",
            model_type="granite",
            fields={
                "attention.scale": "attention_multiplier",
                "embedding_scale": "embedding_multiplier",
                "residual_scale": "residual_multiplier",
                "logit_scale": "logits_scaling",
            },
            present=_BIASES,
        ),
        "llama": GgufArchitecture(
            architecture="LlamaForCausalLM",
            model_type="llama",
            fields=_LOCAL_EXPERTS,
            present=_BIASES,
            period=0,
            sliding=("MistralForCausalLM", "mistral"),
        ),
        "minimax-m2": GgufArchitecture(
            architecture="MiniMaxM2ForCausalLM",
            model_type="minimax_m2",
            fields=_LOCAL_EXPERTS,
            partial=True,
            scores="sigmoid",
        ),
        "olmo2": GgufArchitecture(
            architecture="Olmo2ForCausalLM",
            model_type="olmo2",
            present=_ATTENTION_BIAS,
            period=4,
            by_layer=True,
            sliding=("Olmo3ForCausalLM", "olmo3"),
            slides=True,
        ),
        "phi3": GgufArchitecture(
            architecture="Phi3ForCausalLM",
            model_type="phi3",
            partial=True,
            period=0,
            long=True,
        ),
        "qwen2": GgufArchitecture(architecture="Qwen2ForCausalLM", model_type="qwen2"),
        "qwen2moe": GgufArchitecture(
            architecture="Qwen2MoeForCausalLM",
            model_type="qwen2_moe",
            fields=_EXPERTS
            | {
                "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
                "expert_weights_norm": "norm_topk_prob",
            },
            present={"qkv_bias": "self_attn.q_proj.bias"},
            defaults={"expert_weights_norm": False},
        ),
        "qwen3": GgufArchitecture(
            architecture="Qwen3ForCausalLM", model_type="qwen3", present=_ATTENTION_BIAS
        ),
        "qwen3moe": GgufArchitecture(
            architecture="Qwen3MoeForCausalLM",
            model_type="qwen3_moe",
            fields=_EXPERTS | {"expert_weights_norm": "norm_topk_prob"},
            present=_ATTENTION_BIAS,
            defaults={"expert_weights_norm": True},
        ),
        "seed_oss": GgufArchitecture(
            architecture="SeedOssForCausalLM",
            model_type="seed_oss",
            present=_BIASES | {"attention_out_bias": "self_attn.o_proj.bias"},
        ),
        "smollm3": GgufArchitecture(
            architecture="SmolLM3ForCausalLM", model_type="smollm3", present=_BIASES
        ),
        "starcoder2": GgufArchitecture(
            architecture="Starcoder2ForCausalLM",
            model_type="starcoder2",
            fields={"attention.layer_norm_epsilon": "norm_epsilon"},
            present={"use_bias": "self_attn.q_proj.bias"},
            period=0,
        ),
    }
)  # fmt: skip

#: Numbers of layers of the largest Gemmas, by which llama.cpp recognizes them: their scores are
#: divided by the square root of hidden_size / heads instead of the head size.
_LARGEST = {"gemma2": 46, "gemma3": 62}


def fixed(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that follow from the architecture and the sizes in `config`."""
    if kind not in _LARGEST:
        return {}
    divisor, width = config.get("head_dim"), config.get("hidden_size")
    heads, largest = config.get("num_attention_heads"), _LARGEST[kind]
    if config.get("num_hidden_layers") == largest and type(width) is type(heads) is int and heads:
        divisor = width // heads
    return {"query_pre_attn_scalar": divisor}
