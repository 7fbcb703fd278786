"""Kimi Linear: Kimi Delta Attention in three of four layers, latent attention without rotation.

The experts are those of DeepSeek-V3 under other names. Source: transformers' models/kimi_linear
(5.23).
"""

from __future__ import annotations

from dataclasses import replace

from mxc.compiler.models.architectures.deepseek import latent_attention, mlps
from mxc.compiler.models.architectures.family import decoder, hybrid_kinds
from mxc.compiler.models.architectures.glm4_moe import sigmoid_experts
from mxc.compiler.models.blocks.expert_tensors import MIXTRAL, PROJECTIONS, ExpertTensors
from mxc.compiler.models.blocks.kimi_delta_attention import KimiDeltaAttention
from mxc.compiler.models.blocks.latent_attention import LatentAttention
from mxc.compiler.models.blocks.linear_attention import LINEAR
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.rope import FULL
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer

#: Usual name of a field -> its name in this config.
NAMES = {
    "n_group": "num_expert_group",
    "n_routed_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
    "num_experts_per_tok": "num_experts_per_token",
}
#: A part of a tensor name in checkpoints, and the name used here.
ALIASES = ((".block_sparse_moe.", ".mlp."),)

#: Fields of `linear_attn_config` -> transformers' names outside of it.
_SIZES = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
#: Lists of layer numbers in `linear_attn_config`, counted from 1.
_LISTS = {"kda_layers": LINEAR, "full_attn_layers": FULL}


def kimi_linear(c: ConfigFields) -> Decoder:
    """The model of a config, as published or as written by transformers."""
    c = c.called(NAMES | {"max_position_embeddings": "model_max_length"})
    c.known("hidden_act", ("silu",), "silu")
    # Sums of other fields, and a rotary embedding that the model does not have.
    c.inert("head_dim", "qk_head_dim", "rope_theta")
    inner = c.inner("linear_attn_config") or ConfigFields({}, "")
    linear, attention = delta_attention(c, inner), latent_attention(c, rope=None)
    layers = hybrid(c, inner, linear, attention, sigmoid_experts(c))
    return replace(decoder(c, "kimi_linear", layers), aliases=ALIASES)


def delta_attention(c: ConfigFields, inner: ConfigFields) -> KimiDeltaAttention:
    """Read Kimi Delta Attention; `inner`: linear_attn_config."""
    depth, heads, width = (_size(c, inner, theirs, ours) for theirs, ours in _SIZES.items())
    return KimiDeltaAttention(
        hidden=c.size("hidden_size"),
        key_heads=heads,
        value_heads=heads,
        key_depth=depth,
        value_depth=depth,
        width=width,
        epsilon=c.number("rms_norm_eps"),
    )


def hybrid(
    c: ConfigFields,
    inner: ConfigFields,
    linear: KimiDeltaAttention,
    attention: LatentAttention,
    experts: Mixture,
) -> list[Layer]:
    """Return the layers, each with one of both kinds of attention; `inner`: linear_attn_config."""
    # Fixed properties of the architecture, which published configs state.
    c.known("mla_use_nope", (True,), True)
    c.known("moe_layer_freq", (1,), 1)
    c.known("moe_router_activation_func", ("sigmoid",), "sigmoid")
    c.known("use_grouped_topk", (True,), True)
    # Required: transformers' default is 2.446, not the usual 1.
    c.number("routed_scaling_factor")
    tensors = ExpertTensors(projections=(MIXTRAL, PROJECTIONS))
    experts = replace(experts, tensors=tensors, count_field="num_experts")
    kinds = _kinds(c, inner)
    inner.finish()
    return [
        Layer(attention=attention if kind == FULL else linear, mlp=mlp)
        for kind, mlp in zip(kinds, mlps(c, experts, 1), strict=True)
    ]


def _size(c: ConfigFields, inner: ConfigFields, theirs: str, ours: str) -> int:
    """Read a size under either name, or under both if they agree."""
    named = ((inner, theirs), (c, ours))
    found = {fields.size(key) for fields, key in named if fields.raw(key) is not None}
    if len(found) != 1:
        wanted = f"one size, here or as {theirs} in linear_attn_config"
        raise c.refuse(ours, wanted, sorted(found) or None)
    return found.pop()


def _kinds(c: ConfigFields, inner: ConfigFields) -> list[str]:
    """Return FULL or LINEAR for each layer, from layer_types, linear_attn_config, or both."""
    types, found = c.raw("layer_types"), []
    for key, kind in _LISTS.items():
        places = inner.raw(key) or []
        if not isinstance(places, list) or not all(type(place) is int for place in places):
            raise inner.refuse(key, "a list of layers, from one on", places)
        found += [(place, kind) for place in places]
    listed = [kind for _, kind in sorted(found)]
    if found and (
        sorted(place for place, _ in found) != list(range(1, len(found) + 1))
        or types not in (None, listed)
    ):
        raise c.refuse("layer_types", f"each layer once in {' or '.join(_LISTS)}", types or listed)
    return hybrid_kinds(c, listed if found else types)
