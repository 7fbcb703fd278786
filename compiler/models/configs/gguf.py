"""Converts the metadata of a GGUF to the config.json that transformers would have.

The architectures then read it like any config. Every metadata key of the architecture must be known
here. Source: gguf 0.19.0 (constants.py, convert_hf_to_gguf.py) and llama.cpp's src/llama-arch.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.models.blocks.rope import part_of
from mxc.compiler.models.configs.gguf_kinds import KINDS, fixed
from mxc.compiler.models.configs.gguf_rope import (
    DIVISORS,
    FACTORS,
    llama3_scaling,
    longrope_fields,
    rope_scaling,
)
from mxc.compiler.tokenizers.splits import MORE_ENDS, NORMALIZED, NORMALIZER_KEY
from mxc.errors import CheckpointError

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
    "expert_used_count": "num_experts_per_tok",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
#: Key of the sliding layers: a flag for each layer, or the number of layers of a period.
_PATTERN = "attention.sliding_window_pattern"

#: Other known keys: read one by one below, or without effect on what the model computes.
_OTHERS = (
    "attention.sliding_window", _PATTERN, "attention.value_length",
    "expert_count", "expert_gating_func", "expert_shared_feed_forward_length",
    "expert_weights_norm", "rope.dimension_count",
    "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.finetuned",
)  # fmt: skip

#: Names of the architecture that GGUF calls llama, if it has experts.
_MIXTRAL = ("MixtralForCausalLM", "mixtral")

#: Score function of a router -> value of expert_gating_func.
SCORES = {"softmax": 1, "sigmoid": 2}

#: Upper limit of plausible numbers of layers.
_MOST_LAYERS = 1 << 16


def transformers_config(
    metadata: Mapping[str, Any], tensors: Collection[str], place: str
) -> dict[str, Any]:
    """Return config.json of the model. tensors: the names of its tensors. place: its file.

    GGUF does not state whether a model has biases, a head beside the embedding, or experts in a
    layer; this is seen from the tensors. Raises CheckpointError for an unknown architecture or key,
    and for factors of LongRoPE in an architecture that does not support it.
    """
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in KINDS:
        raise CheckpointError(
            f"{place}: general.architecture {kind!r} is not supported; supported: "
            f"{', '.join(KINDS)}"
        )
    what = KINDS[kind]
    fields = {**_FIELDS, **what.fields}
    own = {k.removeprefix(f"{kind}."): v for k, v in metadata.items() if k.startswith(f"{kind}.")}
    for key, value in own.items():
        if key not in fields and key not in _OTHERS:
            raise CheckpointError(
                f"{place}: metadata {kind}.{key} = {value!r} is not known, and might change what "
                "the model computes"
            )
        if key != _PATTERN and not isinstance(value, int | float | str):
            raise CheckpointError(
                f"{place}: metadata {kind}.{key} is an array of {len(value)}; only one value for "
                "all layers is supported"
            )
    factors = [name for name in tensors if name in FACTORS]
    if factors and not what.long:
        raise CheckpointError(
            f"{place}: tensor {factors[0]} is a rotary factor of longrope, which is not supported "
            f"of {kind}"
        )
    own = {**what.defaults, **own}
    windows = _windows(kind, own, place)
    names = what.architecture, what.model_type
    if windows and what.sliding is not None:
        names = what.sliding
    if kind == "llama" and own.get("expert_count"):
        names = _MIXTRAL
    config = {field: own[key] for key, field in fields.items() if own.get(key) is not None}
    config |= {"architectures": [names[0]], "model_type": names[1]}
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    # Defaults of llama.cpp; the architectures' own defaults differ.
    config.setdefault("rope_theta", 10000.0)
    config.setdefault("head_dim", _head_size(config))
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config |= _tokens(metadata, own, place)
    config |= _experts(kind, own, tensors, place)
    config |= windows
    if names[0] == what.architecture or kind == "olmo2":
        for field, name in what.present.items():
            config[field] = f"model.layers.0.{name}" in tensors
    if next_tokens := config.get("num_nextn_predict_layers"):
        config["num_hidden_layers"] = _layers(own) - next_tokens
    config |= fixed(kind, config)
    scaling = {} if factors else rope_scaling(own, place)
    if kind == "gpt-oss":
        # Values of the published configs; GGUF has no key for either.
        scaling["truncate"] = False
        config["quantization_config"] = {"quant_method": "mxfp4"}
    if scaling:
        config["rope_scaling"] = scaling
    _check_heads(config, own, place, partial=what.partial)
    return config


def stores_norms(metadata: Mapping[str, Any]) -> bool:
    """Whether the file stores norm weights with 1 added to transformers' weights (Gemma)."""
    kind = KINDS.get(str(metadata.get("general.architecture")))
    return kind is not None and kind.stored_norms


def published_config(
    metadata: Mapping[str, Any], tensors: Mapping[str, CanonicalTensor], place: str
) -> tuple[dict[str, Any], dict[str, CanonicalTensor]]:
    """Return config.json of the model, and its tensors without those that config.json expresses.

    Raises CheckpointError as transformers_config does, for rotary divisors that are not a scaling
    of Llama 3, and for norms that are stored differently from transformers.
    """
    if stores_norms(metadata):
        raise CheckpointError(
            f"{place}: norms of {metadata['general.architecture']} have one added in a GGUF, which "
            "rounds them: they cannot become those of transformers; compile the GGUF as it is"
        )
    config = transformers_config(metadata, tensors, place)
    left = {name: t for name, t in tensors.items() if name not in (DIVISORS, *FACTORS)}
    if factors := {n: t.values().reshape(-1) for n, t in tensors.items() if n in FACTORS}:
        config |= longrope_fields(factors, metadata, place)
    if (divisors := tensors.get(DIVISORS)) is not None:
        config["rope_scaling"] = llama3_scaling(divisors.values().reshape(-1), config, place)
    return config, left


def unstated(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes on properties that the file does not state and that are assumed."""
    kind = metadata.get("general.architecture")
    notes = []
    if kind == "gpt-oss":
        notes.append(
            "the GGUF does not say truncate (of YaRN), swiglu_limit and swiglu_alpha: taken as in "
            "the published gpt-oss, false, 7 and 1.702"
        )
    if kind in ("gemma2", "gemma3"):
        notes.append(
            "the GGUF does not say query_pre_attn_scalar: it is that of llama.cpp, by the number "
            "of layers"
        )
    if kind == "qwen3moe" and metadata.get("qwen3moe.expert_weights_norm") is None:
        notes.append(
            "the GGUF does not say whether the shares of the chosen experts add up to one: they "
            "do, as llama.cpp computes qwen3moe"
        )
    forms = NORMALIZED.get(str(metadata.get("tokenizer.ggml.pre")))
    if forms is not None and metadata.get(NORMALIZER_KEY) is None:
        notes.append(
            f"the GGUF does not say that text is brought to {' and '.join(forms)} first: it is, as "
            f"the tokenizer of {metadata['tokenizer.ggml.pre']} does; llama.cpp does not"
        )
    if metadata.get(f"{kind}.rope.scaling.yarn_attn_factor") is not None and (
        metadata.get(f"{kind}.rope.scaling.attn_factor") is None
    ):
        notes.append(
            "rope.scaling.yarn_attn_factor is the attention factor of YaRN, as "
            "convert_hf_to_gguf.py writes it; llama.cpp does not read it"
        )
    return tuple(notes)


def _tokens(metadata: Mapping[str, Any], own: Mapping[str, Any], place: str) -> dict[str, Any]:
    def token(name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        value = metadata.get(key)
        if value is not None and type(value) is not int:
            raise CheckpointError(f"{place}: wanted a number for {key}, found {value!r}")
        return value

    ends = [token(name) for name in ("eos", *MORE_ENDS) if token(name) is not None]
    found: dict[str, Any] = {
        "eos_token_id": list(dict.fromkeys(ends)) or None,
        "bos_token_id": token("bos"),
        "pad_token_id": token("padding"),
    }
    words = metadata.get("tokenizer.ggml.tokens")
    if own.get("vocab_size") is None and isinstance(words, list):
        found["vocab_size"] = len(words)
    return found


def _windows(kind: str, own: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the fields of config.json for sliding windows; empty where no layer slides."""
    width, layers = own.get("attention.sliding_window"), _layers(own)
    if not width:
        if KINDS[kind].needs_window:
            raise CheckpointError(
                f"{place}: {kind}.attention.sliding_window is missing; fetch the file again"
            )
        return {}
    pattern = own.get(_PATTERN, KINDS[kind].period)
    if pattern is None:
        raise CheckpointError(
            f"{place}: {kind}.attention.sliding_window is {width} and no sliding_window_pattern "
            "says which layers slide; llama.cpp computes all of them without a window: remove the "
            "key if that is meant, or add the pattern"
        )
    if type(pattern) is int:
        slides = [not pattern or layer % pattern < pattern - 1 for layer in range(layers)]
    else:
        slides = [bool(each) for each in np.atleast_1d(pattern)]
    if len(slides) != layers:
        raise CheckpointError(
            f"{place}: {kind}.{_PATTERN} has {len(slides)} entries, wanted "
            f"one for each of {layers} layers; the file is damaged: fetch it again"
        )
    types = ["sliding_attention" if each else "full_attention" for each in slides]
    if KINDS[kind].by_layer:
        return {"sliding_window": width, "layer_types": types}
    if not any(slides):
        return {}
    if kind in ("qwen2", "qwen3"):
        return {"use_sliding_window": True, "sliding_window": width, "layer_types": types}
    if not all(slides):
        raise CheckpointError(
            f"{place}: {kind}.{_PATTERN} says that some layers slide and "
            f"some do not, which is not supported of {kind}"
        )
    if kind == "qwen3moe":
        return {"use_sliding_window": True, "sliding_window": width}
    return {"sliding_window": width}


def _layers(own: Mapping[str, Any]) -> int:
    """Return the number of layers; 0 for an invalid value, which the architecture refuses."""
    layers = own.get("block_count")
    return layers if type(layers) is int and 0 < layers <= _MOST_LAYERS else 0


def _experts(
    kind: str, own: Mapping[str, Any], tensors: Collection[str], place: str
) -> dict[str, Any]:
    if not own.get("expert_count"):
        return {}
    number = SCORES[KINDS[kind].scores]
    if own.get("expert_gating_func", number) not in (0, number):
        raise CheckpointError(
            f"{place}: {kind}.expert_gating_func is {own['expert_gating_func']!r}; wanted "
            f"{number}, the {KINDS[kind].scores} of {kind}"
        )
    if kind in ("qwen2moe", "qwen3moe"):
        name = "model.layers.{}.mlp.gate_proj.weight"
        return {"mlp_only_layers": [n for n in range(_layers(own)) if name.format(n) in tensors]}
    if kind != "glm4moe" and own.get("expert_weights_norm") is False:
        raise CheckpointError(
            f"{place}: {kind}.expert_weights_norm is false; shares of the experts of {kind} add up "
            "to one"
        )
    return {}


def _head_size(config: Mapping[str, Any]) -> Any:
    """Return the head size; None for invalid values, which the architecture refuses."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if config.get("head_dim") is not None:
        return config["head_dim"]
    return width // heads if type(width) is type(heads) is int and heads > 0 else None


def _check_heads(
    config: dict[str, Any], own: Mapping[str, Any], place: str, *, partial: bool
) -> None:
    """Check that values are as wide as keys, and that all dimensions of a head are rotated.

    With `partial`, fewer rotated dimensions become partial_rotary_factor of the config. Raises
    CheckpointError otherwise.
    """
    size = _head_size(config)
    rotated = own.get("rope.dimension_count", size)
    if partial and type(rotated) is type(size) is int and 0 < rotated <= size:
        if rotated % 2:
            raise CheckpointError(
                f"{place}: rope.dimension_count is {rotated}; wanted an even number, as pairs of "
                "dimensions are rotated"
            )
        config["partial_rotary_factor"] = part_of(rotated, size)
        own = {**own, "rope.dimension_count": size}
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.get(key, size) != size:
            raise CheckpointError(
                f"{place}: {key} is {own[key]!r}, heads have {size!r} dimensions; wanted the same"
            )
