"""The architectures of llama.cpp that are read from a GGUF, and what each has beside the others.

    general.architecture     fields of config.json: of metadata under another name, of tensors that
                             are there, or fixed, where llama.cpp has no key for them

Source: llama.cpp's src/models and src/llama-model.cpp (keys, defaults, rotary pairs), conversion/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One of them: its two names in transformers, `architecture` and `model_type`.

    `fields`: metadata key, without the architecture, to field. `biases`: field to the parameter of
    layer 0 whose bias says it. `defaults`: values of keys where the file has none, as llama.cpp
    takes them. `partial`: heads may be rotated in part. `period`: of the sliding layers where the
    file has no pattern: of each P layers the last is full, of 0 none is; None: a window alone does
    not say which layers slide. `by_layer`: config.json says for each layer whether it slides.
    `slides`: llama.cpp reads the window. `long`: rotary factors for long texts may be there.
    `stored_norms`: norms have what they multiply with, where transformers has that less one.
    """

    architecture: str
    model_type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False
    period: int | None = None
    by_layer: bool = False
    slides: bool = False
    long: bool = False
    stored_norms: bool = False


_ATTENTION_BIAS = {"attention_bias": "self_attn.q_proj"}
_BIASES = _ATTENTION_BIAS | {"mlp_bias": "mlp.gate_proj"}

#: `general.architecture` -> the architecture. Mistral and Mixtral call themselves llama.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "cohere2": Kind(
            architecture="Cohere2ForCausalLM",
            model_type="cohere2",
            fields={"logit_scale": "logit_scale", "attention.layer_norm_epsilon": "layer_norm_eps"},
            biases=_ATTENTION_BIAS,
            period=4,
            by_layer=True,
            slides=True,
        ),
        "ernie4_5": Kind(
            architecture="Ernie4_5ForCausalLM",
            model_type="ernie4_5",
            biases={"use_bias": "self_attn.q_proj"},
        ),
        "gemma2": Kind(
            architecture="Gemma2ForCausalLM",
            model_type="gemma2",
            fields={
                "attn_logit_softcapping": "attn_logit_softcapping",
                "final_logit_softcapping": "final_logit_softcapping",
            },
            biases=_ATTENTION_BIAS,
            defaults={
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
                "attention.sliding_window": 4096,
            },
            period=2,
            by_layer=True,
            slides=True,
            stored_norms=True,
        ),
        "gemma3": Kind(
            architecture="Gemma3ForCausalLM",
            model_type="gemma3_text",
            fields={
                "final_logit_softcapping": "final_logit_softcapping",
                "rope.freq_base_swa": "rope_local_base_freq",
            },
            biases=_ATTENTION_BIAS,
            defaults={"rope.freq_base_swa": 10000.0},
            period=6,
            by_layer=True,
            slides=True,
            stored_norms=True,
        ),
        "glm4": Kind(
            architecture="Glm4ForCausalLM",
            model_type="glm4",
            biases=_ATTENTION_BIAS,
            partial=True,
        ),
        "gpt-oss": Kind(
            architecture="GptOssForCausalLM",
            model_type="gpt_oss",
            biases=_ATTENTION_BIAS,
            period=2,
            by_layer=True,
            slides=True,
        ),
        "granite": Kind(
            architecture="GraniteForCausalLM",
            model_type="granite",
            fields={
                "attention.scale": "attention_multiplier",
                "embedding_scale": "embedding_multiplier",
                "residual_scale": "residual_multiplier",
                "logit_scale": "logits_scaling",
            },
            biases=_BIASES,
        ),
        "llama": Kind(
            architecture="LlamaForCausalLM", model_type="llama", biases=_BIASES, period=0
        ),
        "olmo2": Kind(
            architecture="Olmo2ForCausalLM", model_type="olmo2", biases=_ATTENTION_BIAS
        ),
        "phi3": Kind(
            architecture="Phi3ForCausalLM",
            model_type="phi3",
            partial=True,
            period=0,
            long=True,
        ),
        "qwen2": Kind(architecture="Qwen2ForCausalLM", model_type="qwen2"),
        "qwen3": Kind(
            architecture="Qwen3ForCausalLM", model_type="qwen3", biases=_ATTENTION_BIAS
        ),
        "qwen3moe": Kind(
            architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", biases=_ATTENTION_BIAS
        ),
        "seed_oss": Kind(
            architecture="SeedOssForCausalLM",
            model_type="seed_oss",
            biases=_BIASES | {"attention_out_bias": "self_attn.o_proj"},
        ),
        "smollm3": Kind(architecture="SmolLM3ForCausalLM", model_type="smollm3", biases=_BIASES),
        "starcoder2": Kind(
            architecture="Starcoder2ForCausalLM",
            model_type="starcoder2",
            fields={"attention.layer_norm_epsilon": "norm_epsilon"},
            biases={"use_bias": "self_attn.q_proj"},
            period=0,
        ),
    }
)  # fmt: skip

#: What llama.cpp takes Gemmas of so many layers for: scores are divided by the root of what a head
#: has of the hidden size, not of its own.
_LARGEST = {"gemma2": 46, "gemma3": 62}


def fixed(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the architecture has by itself, for a config with its sizes."""
    if kind not in _LARGEST:
        return {}
    divisor, width = config.get("head_dim"), config.get("hidden_size")
    heads, largest = config.get("num_attention_heads"), _LARGEST[kind]
    if config.get("num_hidden_layers") == largest and type(width) is type(heads) is int and heads:
        divisor = width // heads
    return {"query_pre_attn_scalar": divisor}
