"""Parses config.json of gpt-oss to a record with checked fields.

Source of the meanings and defaults: transformers models/gpt_oss/configuration_gpt_oss.py and
modeling_rope_utils.py (5.23). A field without default there that affects the results is required.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.configs.yarn import YarnScaling, read_yarn
from mxc.errors import CheckpointError

ARCHITECTURES = ("GptOssForCausalLM",)
MODEL_TYPES = ("gpt_oss",)
ROPE_TYPES = ("yarn",)
LAYER_TYPES = ("sliding_attention", "full_attention")


@dataclass(frozen=True, kw_only=True)
class GptOssConfig:
    """The shape and the constants of a gpt-oss model. Names are those of config.json.

    `sliding_window` is 0 where no layer slides. `eos_token_ids` is empty if config.json has none.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_local_experts: int
    num_experts_per_tok: int
    vocab_size: int
    max_position_embeddings: int
    sliding_window: int
    layer_types: tuple[str, ...]
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: YarnScaling
    swiglu_limit: float
    swiglu_alpha: float
    attention_bias: bool
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None


def parse(raw: dict[str, Any], place: str) -> GptOssConfig:
    """Return the record of a parsed config.json; place: names the file in errors.

    Raises CheckpointError for another architecture or rope type (the message lists the supported
    ones), a missing field, or fields that contradict each other.
    """
    fields = ConfigFields(raw, place)
    _check_kind(raw, place)
    # experts_per_token is the name in the first published configs.
    top_k = fields.one_of("num_experts_per_tok", "experts_per_token")
    layers = fields.size("num_hidden_layers")
    layer_types = _layer_types(fields, layers)
    theta, scaling = _rope(raw, place)
    config = GptOssConfig(
        hidden_size=fields.size("hidden_size"),
        intermediate_size=fields.size("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=fields.size("num_attention_heads"),
        num_key_value_heads=fields.size("num_key_value_heads"),
        head_dim=fields.size("head_dim"),
        num_local_experts=fields.size("num_local_experts"),
        num_experts_per_tok=top_k,
        vocab_size=fields.size("vocab_size"),
        max_position_embeddings=fields.size("max_position_embeddings"),
        sliding_window=fields.size("sliding_window") if "sliding_attention" in layer_types else 0,
        layer_types=layer_types,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=theta,
        rope_scaling=scaling,
        swiglu_limit=fields.number("swiglu_limit", 7.0),
        swiglu_alpha=fields.number("swiglu_alpha", 1.702),
        attention_bias=fields.flag("attention_bias", True),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        eos_token_ids=fields.tokens("eos_token_id"),
        bos_token_id=fields.token("bos_token_id"),
        pad_token_id=fields.token("pad_token_id"),
    )
    _check_sizes(config, fields)
    return config


def _check_kind(raw: dict[str, Any], place: str) -> None:
    def known(what: str, found: object, supported: tuple[str, ...]) -> None:
        if found not in supported:
            raise CheckpointError(
                f"{place}: {what} {found!r} is not supported; supported: {', '.join(supported)}"
            )

    for architecture in raw.get("architectures") or [None]:
        known("architecture", architecture, ARCHITECTURES)
    known("model_type", raw.get("model_type"), MODEL_TYPES)
    # transformers applies its own clamped swiglu whatever hidden_act says; another name here
    # means another model.
    known("hidden_act", raw.get("hidden_act", "silu"), ("silu",))


def _layer_types(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    types = fields.raw("layer_types")
    if types is None:  # transformers' rule: alternating, sliding first
        return tuple(LAYER_TYPES[i % 2] for i in range(layers))
    if not isinstance(types, list) or len(types) != layers:
        raise fields.refuse("layer_types", f"a list of num_hidden_layers = {layers} names", types)
    for kind in types:
        if kind not in LAYER_TYPES:
            raise fields.refuse("layer_types", f"only {' and '.join(LAYER_TYPES)}", kind)
    return tuple(types)


def _rope(raw: dict[str, Any], place: str) -> tuple[float, YarnScaling]:
    # transformers 5 writes rope_parameters (theta inside); older versions write rope_scaling.
    old, new = raw.get("rope_scaling"), raw.get("rope_parameters")
    if old and new and old != new:
        raise CheckpointError(
            f"{place}: rope_scaling {old!r} and rope_parameters {new!r} disagree; keep one"
        )
    scaling = old or new
    if not isinstance(scaling, dict):
        raise CheckpointError(f"{place}: wanted rope_scaling or rope_parameters, found neither")
    fields = ConfigFields(scaling, f"{place} (rope)")
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind not in ROPE_TYPES:
        raise CheckpointError(
            f"{place}: rope type {kind!r} is not supported; supported: {', '.join(ROPE_TYPES)}"
        )
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.refuse("partial_rotary_factor", "1", scaling["partial_rotary_factor"])
    theta = fields if "rope_theta" in scaling else ConfigFields(raw, place)
    return theta.number("rope_theta"), read_yarn(fields)


def _check_sizes(config: GptOssConfig, fields: ConfigFields) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise fields.refuse(
            "num_attention_heads",
            f"a multiple of num_key_value_heads = {config.num_key_value_heads}",
            config.num_attention_heads,
        )
    if config.head_dim % 2:
        raise fields.refuse("head_dim", "an even number (rotary pairs)", config.head_dim)
    if config.num_experts_per_tok > config.num_local_experts:
        raise fields.refuse(
            "num_experts_per_tok",
            f"at most num_local_experts = {config.num_local_experts}",
            config.num_experts_per_tok,
        )
