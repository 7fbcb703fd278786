"""Qwen3-Next, Qwen3.5 and Qwen3.6: three of four layers are gated delta nets.

Attention in the other layers has an output gate and rotates a part of each head. Every norm except
that of the delta nets multiplies by 1 + weight. Qwen3.5 and 3.6, which have the same blocks, are
published with a vision tower. Sources: transformers' models/qwen3_next, models/qwen3_5 and
models/qwen3_5_moe (5.23).
"""

from __future__ import annotations

from collections.abc import Callable

from mxc.compiler.models.architectures.family import (
    decoder,
    hybrid_kinds,
    mlp,
    plain,
    self_attention,
)
from mxc.compiler.models.architectures.qwen_experts import experts, mlps
from mxc.compiler.models.blocks.gated_delta_net import GatedDeltaNet
from mxc.compiler.models.blocks.linear_attention import LINEAR
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import FULL, read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def qwen3_next(c: ConfigFields) -> Decoder:
    """The model of a config: experts in all layers or in some."""
    mixture = experts(c, normalized=c.flag("norm_topk_prob", True))
    return _hybrid(c, "qwen3_next", mlps(c, mixture).__getitem__, fused=True)


def qwen3_5(c: ConfigFields) -> Decoder:
    """The dense model of a config."""
    c.known("mlp_only_layers", ([],), [])
    dense = mlp(c)
    return _hybrid(c, "qwen3_5", lambda number: dense, fused=False)


def qwen3_5_moe(c: ConfigFields) -> Decoder:
    """The model of a config with experts in every layer, whose shares are normalized."""
    c.known("norm_topk_prob", (True,), True)
    c.known("mlp_only_layers", ([],), [])
    # The width of layers without experts, which this model does not have.
    c.inert("intermediate_size")
    mixture = experts(c, normalized=True)
    return _hybrid(c, "qwen3_5_moe", lambda number: mixture, fused=False)


def _hybrid(
    c: ConfigFields, name: str, mlp_of: Callable[[int], Mlp | Mixture], *, fused: bool
) -> Decoder:
    """Return the model; mlp_of: the MLP of the layer with a number."""
    bias, epsilon = c.flag("attention_bias", False), c.number("rms_norm_eps", 1e-6)
    # Fixed properties of the architecture, which published configs state.
    c.known("attn_output_gate", (True,), True)
    c.known("output_gate_type", ("swish", "silu"), "swish")
    c.known("mamba_ssm_dtype", ("float32",), "float32")
    c.known("use_sliding_window", (False,), False)
    c.inert("mtp_use_dedicated_embeddings")
    attention = self_attention(
        c,
        depth=256,
        rope=read_rope(c, fraction=0.25),
        input_bias=bias,
        output_bias=bias,
        qk_norm="head",
        gated=True,
    )
    linear = GatedDeltaNet(
        hidden=c.size("hidden_size"),
        key_heads=c.size("linear_num_key_heads"),
        value_heads=c.size("linear_num_value_heads"),
        key_depth=c.size("linear_key_head_dim"),
        value_depth=c.size("linear_value_head_dim"),
        width=c.size("linear_conv_kernel_dim"),
        epsilon=epsilon,
        fused=fused,
        convolved=plain(c),
    )
    if linear.value_heads % linear.key_heads:
        wanted = f"a multiple of linear_num_key_heads = {linear.key_heads}"
        raise c.refuse("linear_num_value_heads", wanted, linear.value_heads)
    layers = [
        Layer(attention=attention, mlp=mlp_of(number))
        if kind == FULL
        else Layer(attention=linear, attention_name="linear_attn", mlp=mlp_of(number))
        for number, kind in enumerate(_kinds(c))
    ]
    return decoder(c, name, layers, norm=Norm(epsilon=epsilon, offset=1.0))


def _kinds(c: ConfigFields) -> list[str]:
    """Return FULL or LINEAR for each layer."""
    count, types = c.size("num_hidden_layers"), c.raw("layer_types")
    step = c.size("full_attention_interval", 4)
    if types is None:
        types = [LINEAR if (number + 1) % step else FULL for number in range(count)]
    return hybrid_kinds(c, types)
