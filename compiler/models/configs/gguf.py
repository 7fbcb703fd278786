"""What a GGUF's metadata says of a model, as the config.json that transformers would have.

So the architectures read it as they read any config. Whatever stands under the architecture's own
keys must be known here. Source: gguf 0.19.0 (constants.py, convert_hf_to_gguf.py) and llama.cpp's
src/llama-arch.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.dialects.errors import CheckpointError

#: Metadata key, without the architecture -> field of config.json.
_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "expert_used_count": "num_experts_per_tok",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
#: Read one by one below; those that say nothing about the numbers.
_OTHERS = (
    "attention.value_length", "expert_count", "expert_feed_forward_length", "expert_weights_norm",
    "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned",
)  # fmt: skip

#: general.architecture -> (architectures, model_type) of transformers. Mistral and Mixtral call
#: themselves llama.
_NAMES = {
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss"),
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
}
#: What each rotary frequency is divided by, a tensor: how GGUF has the scaling of Llama 3.
ROPE_DIVISORS = "rope_freqs.weight"

_MIXTRAL = ("MixtralForCausalLM", "mixtral")


def transformers_config(
    metadata: Mapping[str, Any], tensors: Collection[str], place: str
) -> dict[str, Any]:
    """config.json of the model; `tensors` are the names that it has, `place` its file.

    Whether there are biases, and a head beside the embedding, is seen from the tensors: GGUF does
    not say it. Raises CheckpointError for an architecture or a key that is not known.
    """
    kind = metadata.get("general.architecture")
    if kind not in _NAMES:
        raise CheckpointError(
            f"{place}: general.architecture {kind!r} is not supported; supported: "
            f"{', '.join(_NAMES)}"
        )
    own = {k.removeprefix(f"{kind}."): v for k, v in metadata.items() if k.startswith(f"{kind}.")}
    for key, value in own.items():
        if key not in _FIELDS and key not in _OTHERS:
            raise CheckpointError(
                f"{place}: metadata {kind}.{key} = {value!r} is not known, and might change what "
                "the model computes"
            )
    names = _MIXTRAL if kind == "llama" and own.get("expert_count") else _NAMES[kind]
    config = {field: own[key] for key, field in _FIELDS.items() if own.get(key) is not None}
    config |= {"architectures": [names[0]], "model_type": names[1]}
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config |= _tokens(metadata, own)
    config |= _experts(kind, own, place)
    if kind in ("llama", "qwen3", "qwen3moe") and names is not _MIXTRAL:
        config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
    if names[1] == "llama":
        config["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in tensors
    scaling = _scaling(own, place)
    if kind == "gpt-oss":
        # Of its published configs; GGUF has no key for either.
        scaling["truncate"] = False
        config["quantization_config"] = {"quant_method": "mxfp4"}
        config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
    if scaling:
        config["rope_scaling"] = scaling
    _check_heads(config, own, place)
    return config


def published_config(
    metadata: Mapping[str, Any], tensors: Mapping[str, CanonicalTensor], place: str
) -> tuple[dict[str, Any], dict[str, CanonicalTensor]]:
    """config.json of the model, and its tensors without those that config.json says.

    Raises CheckpointError as transformers_config, and for divisors of rotary frequencies that are
    no scaling of Llama 3.
    """
    config = transformers_config(metadata, tensors, place)
    left = {name: tensor for name, tensor in tensors.items() if name != ROPE_DIVISORS}
    if (divisors := tensors.get(ROPE_DIVISORS)) is not None:
        config["rope_scaling"] = _llama3(divisors.values().reshape(-1), config, place)
    return config, left


def _llama3(divisors: NDArray[np.float32], config: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The scaling of Llama 3 that divides frequencies so, as convert_hf_to_gguf.py does it."""
    base, width = config.get("rope_theta", 10000.0), 2 * divisors.size
    wavelengths = 2 * np.pi * base ** (np.arange(0, width, 2) / width)
    low, high, original = 1.0, 4.0, 8192
    for factor in (8.0, 32.0, 16.0, 4.0):
        smooth = (original / wavelengths - low) / (high - low)
        wanted = 1 / ((1 - smooth) / factor + smooth)
        wanted = np.where(wavelengths < original / high, 1.0, wanted)
        wanted = np.where(wavelengths > original / low, factor, wanted)
        if np.allclose(divisors, wanted, rtol=1e-5, atol=0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise CheckpointError(
        f"{place}: {ROPE_DIVISORS} divides rotary frequencies as none of Llama 3's published "
        "scalings does, and config.json has no word for it; compile the GGUF as it is"
    )


def _tokens(metadata: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    def token(name: str) -> Any:
        return metadata.get(f"tokenizer.ggml.{name}_token_id")

    ends = [token(name) for name in ("eos", "eot") if token(name) is not None]
    found: dict[str, Any] = {
        "eos_token_id": list(dict.fromkeys(ends)) or None,
        "bos_token_id": token("bos"),
        "pad_token_id": token("padding"),
    }
    words = metadata.get("tokenizer.ggml.tokens")
    if own.get("vocab_size") is None and words is not None:
        found["vocab_size"] = len(words)
    return found


def _experts(kind: str, own: Mapping[str, Any], place: str) -> dict[str, Any]:
    count, width = own.get("expert_count"), own.get("expert_feed_forward_length")
    if not count:
        return {}
    if own.get("expert_weights_norm") is False:
        raise CheckpointError(
            f"{place}: {kind}.expert_weights_norm is false; llama.cpp computes {kind} with shares "
            "that add up to one"
        )
    if kind == "qwen3moe":
        return {"num_experts": count, "moe_intermediate_size": width, "norm_topk_prob": True}
    found = {"num_local_experts": count}
    return found if width is None else found | {"intermediate_size": width}


def _scaling(own: Mapping[str, Any], place: str) -> dict[str, Any]:
    kind = own.get("rope.scaling.type", "none")
    if kind == "none":
        return {}
    if kind not in ("linear", "yarn"):
        raise CheckpointError(
            f"{place}: rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn"
        )
    fields = {
        "factor": own.get("rope.scaling.factor"),
        "original_max_position_embeddings": own.get("rope.scaling.original_context_length"),
        "attention_factor": own.get("rope.scaling.attn_factor"),
        "beta_fast": own.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": own.get("rope.scaling.yarn_beta_slow"),
    }
    wanted = fields if kind == "yarn" else {"factor": fields["factor"]}
    return {"rope_type": kind} | {k: v for k, v in wanted.items() if v is not None}


def _check_heads(config: Mapping[str, Any], own: Mapping[str, Any], place: str) -> None:
    """All dimensions of a head are rotated, and values are as wide as keys."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    size = config.get("head_dim")
    if size is None and type(width) is int and type(heads) is int and heads > 0:
        size = width // heads
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, size) != size:
            raise CheckpointError(
                f"{place}: {key} is {own[key]!r}, heads have {size!r} dimensions; wanted the same"
            )
