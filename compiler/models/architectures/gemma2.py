"""Gemma 2 and Gemma 3 (text): four norms per layer, GELU gates, scaled embeddings, soft caps.

Every norm multiplies by 1 + weight. Sources: transformers' models/gemma2 and models/gemma3 (5.23),
in float32: in bfloat16 transformers rounds the scale of the embeddings.
"""

from __future__ import annotations

from mxc.compiler.models.architectures.family import decoder, layer_kinds, mlp, self_attention
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import FULL, SLIDING, Rope, read_rope, read_ropes
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer, LayerNorms

#: Fields that configs of Google leave out, because transformers' class has these values.
_GEMMA3 = {
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 262208,
}
#: The soft caps of attention and logits in Gemma 2; null is none.
_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
#: Norms before and after both parts of a layer.
NORMS = LayerNorms(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def gemma2(c: ConfigFields) -> Decoder:
    """The model of a config: every other layer slides; attention and logits are soft-capped."""
    kinds = layer_kinds(c, period=2)
    return _gemma(c, "gemma2", kinds, dict.fromkeys(kinds, read_rope(c)), qk_norm=False)


def gemma3(c: ConfigFields) -> Decoder:
    """The model of a config: five of six layers slide, with a separate rotary embedding."""
    c = c.completed(_GEMMA3)
    kinds = layer_kinds(c, period=6)
    ropes = read_ropes(c, sorted({*kinds}), theta={FULL: 1e6, SLIDING: 1e4})
    return _gemma(c, "gemma3_text", kinds, ropes, qk_norm=True)


def _gemma(
    c: ConfigFields, name: str, kinds: tuple[str, ...], ropes: dict[str, Rope], *, qk_norm: bool
) -> Decoder:
    bias = c.flag("attention_bias", False)
    # The period from which transformers derives layer_types.
    c.inert("_sliding_window_pattern")
    c.known("use_bidirectional_attention", (False,), False)
    # Configs of the first releases also have hidden_act, which is unused; hidden_activation counts.
    if c.raw("sliding_window_size") is not None:  # those of Gemma 2 have both names
        c.known("sliding_window_size", (c.raw("sliding_window"),))
    c.known("hidden_act", ("gelu", "gelu_pytorch_tanh"), "gelu_pytorch_tanh")
    caps = [
        None if c.raw(key) is None and (qk_norm or c.is_null(key)) else c.number(key, default)
        for key, default in _CAPS.items()
    ]
    layers = [
        Layer(
            attention=self_attention(
                c,
                depth=256,
                rope=ropes[kind],
                input_bias=bias,
                output_bias=bias,
                qk_norm="head" if qk_norm else None,
                window=c.size("sliding_window", 4096) if kind == SLIDING else None,
                scale=c.number("query_pre_attn_scalar", 256) ** -0.5,
                cap=None if qk_norm else caps[0],
            ),
            mlp=mlp(c, act_field="hidden_activation", activation="gelu_pytorch_tanh"),
            norms=NORMS,
        )
        for kind in kinds
    ]
    return decoder(
        c,
        name,
        layers,
        norm=Norm(epsilon=c.number("rms_norm_eps", 1e-6), offset=1.0),
        tied=True,
        embedding_scale=c.size("hidden_size") ** 0.5,
        logits_cap=caps[1],
    )
