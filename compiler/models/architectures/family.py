"""Shared readers of configs of Llama and its successors: attention, MLP, layer kinds, decoder."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from mxc.compiler.models.blocks.attention_residuals import AttentionResiduals
from mxc.compiler.models.blocks.gates import GATES, PLAIN, SITU, Activation, Plain, Situ
from mxc.compiler.models.blocks.layer_inputs import LayerInputs
from mxc.compiler.models.blocks.linear_attention import LINEAR
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import FULL, SLIDING, Rope, read_rope
from mxc.compiler.models.blocks.self_attention import QKNorm, SelfAttention, Temperature
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.configs.yarn import YarnScaling
from mxc.compiler.models.decoder import Decoder, Layer
from mxc.dialects.attention import Reach


def self_attention(
    c: ConfigFields,
    *,
    shared: int | None = None,
    depth: int | None = None,
    rope: Rope | Literal["config"] | None = "config",
    theta: float = 10000.0,
    input_bias: bool = False,
    output_bias: bool = False,
    fused: bool = False,
    qk_norm: QKNorm | None = None,
    window: Reach = None,
    scale: float | None = None,
    cap: float | None = None,
    gated: bool = False,
    epsilon: float = 0.0,
    temperature: Temperature | None = None,
) -> SelfAttention:
    """Read attention with grouped queries.

    shared, depth: the architecture's defaults of num_key_value_heads and head_dim; depth None, or
    null in the config, means hidden_size / num_attention_heads. rope: "config" reads the rotary
    embedding from the config, with `theta` as the architecture's default of rope_theta. Other
    arguments: see SelfAttention.
    """
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    count = c.size("num_key_value_heads", shared)
    if heads % count:
        raise c.refuse("num_attention_heads", f"a multiple of num_key_value_heads = {count}", heads)
    depth = None if c.is_null("head_dim") else depth
    if depth is None and c.raw("head_dim") is None and hidden % heads:
        raise c.refuse("hidden_size", f"a multiple of num_attention_heads = {heads}", hidden)
    size = c.size("head_dim", hidden // heads if depth is None else depth)
    if size % 2:
        raise c.refuse("head_dim", "an even number (rotary pairs)", size)
    rope = read_rope(c, theta=theta) if rope == "config" else rope
    if rope is not None and rope.rotated(size) == 0:
        wanted = f"a part that has an element of a head, of {size}"
        raise c.refuse("partial_rotary_factor", wanted, rope.fraction)
    if rope is not None and rope.spread(size) % 2 and isinstance(rope.scaling, YarnScaling):
        # transformers has another number of frequencies and of factors then, and fails.
        wanted = f"an even number of rotated elements of a head, of {size}, with yarn"
        raise c.refuse("partial_rotary_factor", wanted, f"{rope.spread(size)} ({rope.fraction})")
    return SelfAttention(
        hidden=hidden,
        heads=heads,
        shared=count,
        depth=size,
        rope=rope,
        input_bias=input_bias,
        output_bias=output_bias,
        fused=fused,
        qk_norm=qk_norm,
        window=window,
        scale=scale,
        cap=cap,
        gated=gated,
        epsilon=epsilon,
        temperature=temperature,
    )


def mlp(
    c: ConfigFields,
    *,
    bias: bool = False,
    fused: bool = False,
    act_field: str = "hidden_act",
    activation: str = "silu",
    width_field: str = "intermediate_size",
    count: int = 1,
) -> Mlp:
    """Read a dense MLP with a gate, `count` times as wide as the field `width_field`.

    act_field: the field of the gate's activation; activation: the architecture's default of it.
    """
    return Mlp(
        hidden=c.size("hidden_size"),
        width=count * c.size(width_field),
        bias=bias,
        activation=gate(c, act_field, activation),
        fused=fused,
        width_field=width_field if count == 1 else f"{count} * {width_field}",
    )


def gate(c: ConfigFields, field: str, default: str) -> Activation:
    """Read the activation that the field `field` names, and its parameters."""
    name = c.known(field, (*GATES, SITU), default)
    if name != SITU:
        return GATES[name]
    linear = "activation_situ_linear_beta"
    return Situ(
        beta=c.number("activation_situ_beta"),
        linear_beta=None if c.raw(linear) is None else c.number(linear),
    )


def plain(c: ConfigFields, field: str = "hidden_act", default: str = "silu") -> Plain:
    """Read the activation without a gate that the field `field` names."""
    return PLAIN[c.known(field, tuple(PLAIN), default)]


def layer_kinds(c: ConfigFields, *, period: int) -> tuple[str, ...]:
    """Return SLIDING or FULL for each layer: `layer_types`, or every `period`-th layer is full.

    Configs without `layer_types` may state the period in sliding_window_pattern, as a number or as
    letters: "LLLG" is three sliding (local) layers, then one full (global) layer.
    """
    layers = c.size("num_hidden_layers")
    types, pattern = c.raw("layer_types"), c.raw("sliding_window_pattern")
    if isinstance(pattern, str):
        if pattern.rstrip("G") != "L" * (len(pattern) - 1) or not pattern.endswith("G"):
            raise c.refuse("sliding_window_pattern", "a number, or letters as LLLG", pattern)
        period = len(pattern)
    elif types is None:
        period = c.size("sliding_window_pattern", period)
    if types is None:
        return tuple(SLIDING if (number + 1) % period else FULL for number in range(layers))
    if not isinstance(types, list) or len(types) != layers or not {*types} <= {SLIDING, FULL}:
        raise c.refuse("layer_types", f"a list of {layers} times {SLIDING} or {FULL}", types)
    return tuple(types)


def hybrid_kinds(c: ConfigFields, types: object, other: str = LINEAR) -> list[str]:
    """Check `types`, FULL or `other` for each layer, with at least one FULL, and return them."""
    count = c.size("num_hidden_layers")
    if not isinstance(types, list) or len(types) != count or not {*types} <= {other, FULL}:
        raise c.refuse("layer_types", f"a list of {count} times {other} or {FULL}", types)
    if FULL not in types:
        raise c.refuse("layer_types", f"one {FULL} at least, as every published model has", types)
    return types


def borrowing(c: ConfigFields, kinds: tuple[str, ...]) -> tuple[bool, ...]:
    """Return for each layer whether it reads keys and values of an earlier layer of its kind."""
    name = "num_kv_shared_layers"
    shared = c.size(name) if c.raw(name) else 0
    first = max(len(kinds) - shared, 0)
    if {*kinds[:first]} != {*kinds}:
        raise c.refuse(name, "fewer, so that of each kind a layer is before them", shared)
    return tuple(number >= first for number in range(len(kinds)))


def layer_inputs(c: ConfigFields, layers: int, width: int, activation: str) -> LayerInputs | None:
    """Read per-layer inputs, None if there are none; `width` and `activation` are defaults."""
    name = "hidden_size_per_layer_input"
    rows = c.size("vocab_size_per_layer_input", 262144)
    if c.raw(name) == 0 or (c.raw(name) is None and not width):
        return None
    if rows < c.size("vocab_size"):
        wanted = f"at least the {c.size('vocab_size')} of vocab_size"
        raise c.refuse("vocab_size_per_layer_input", wanted, rows)
    return LayerInputs(
        vocabulary=rows,
        hidden=c.size("hidden_size"),
        layers=layers,
        width=c.size(name, width),
        activation=plain(c, "hidden_activation", activation),
    )


def windows(c: ConfigFields) -> tuple[int | None, ...]:
    """Read the window of every layer in the form of Qwen2 and Qwen3; None for full layers.

    With `use_sliding_window`, the layers that `layer_types` names slide, or without it the layers
    from `max_window_layers` on.
    """
    layers, slides = c.size("num_hidden_layers"), c.flag("use_sliding_window", False)
    width, first = c.raw("sliding_window"), c.raw("max_window_layers")
    types = c.raw("layer_types")
    if slides and types is None and width is not None:
        first = c.size("max_window_layers", 28)
        types = [SLIDING if number >= first else FULL for number in range(layers)]
    if types is None:
        return (None,) * layers
    if not isinstance(types, list) or len(types) != layers or not {*types} <= {SLIDING, FULL}:
        raise c.refuse("layer_types", f"a list of {layers} times {SLIDING} or {FULL}", types)
    if SLIDING in types and (not slides or width is None):
        raise c.refuse("layer_types", f"no {SLIDING} without use_sliding_window", types)
    return tuple(c.size("sliding_window") if kind == SLIDING else None for kind in types)


def decoder(
    c: ConfigFields,
    architecture: str,
    layers: Iterable[Layer],
    *,
    norm: Norm | None = None,
    tied: bool = False,
    embedding_scale: float = 1.0,
    logits_scale: float = 1.0,
    logits_cap: float | None = None,
    inputs: LayerInputs | None = None,
    residuals: AttentionResiduals | None = None,
) -> Decoder:
    """Return the model of these layers, and read the remaining common fields.

    norm: None for the RMS norm with rms_norm_eps. tied: the architecture's default of
    tie_word_embeddings. Other arguments: see Decoder. Raises CheckpointError for fields of the
    config that were not read.
    """
    found = Decoder(
        architecture=architecture,
        vocab_size=c.size("vocab_size"),
        hidden_size=c.size("hidden_size"),
        max_position_embeddings=c.size("max_position_embeddings"),
        norm=Norm(epsilon=c.number("rms_norm_eps")) if norm is None else norm,
        layers=tuple(layers),
        tied=c.flag("tie_word_embeddings", tied),
        eos_tokens=c.tokens("eos_token_id"),
        bos_token=c.token("bos_token_id"),
        pad_token=c.token("pad_token_id"),
        next_tokens=_next_tokens(c),
        embedding_scale=embedding_scale,
        logits_scale=logits_scale,
        logits_cap=logits_cap,
        inputs=inputs,
        residuals=residuals,
    )
    c.finish()
    return found


def _next_tokens(c: ConfigFields) -> int:
    """Read the number of layers that predict tokens after the next one, from either field."""
    names = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    return max(c.size(name) if c.raw(name) else 0 for name in names)
