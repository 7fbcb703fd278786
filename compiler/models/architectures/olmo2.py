"""OLMo 2 and OLMo 3: norms after attention and MLP, QK norms over all heads.

Sources: transformers' models/olmo2 and models/olmo3 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, layer_kinds, mlp, self_attention
from mxc.compiler.models.blocks.rope import FULL, SLIDING, Rope, read_rope, read_ropes
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import POST_NORMS, Decoder, Layer


def olmo2(c: ConfigFields) -> Decoder:
    """The model of a config: all layers have full attention."""
    kinds = (FULL,) * c.size("num_hidden_layers")
    return decoder(c, "olmo2", _layers(c, kinds, {FULL: read_rope(c)}))


def olmo3(c: ConfigFields) -> Decoder:
    """The model of a config: three of four layers slide, with an unscaled rotary embedding."""
    kinds = layer_kinds(c, period=4)
    theta = c.number("rope_theta", 5e5)
    ropes = read_ropes(c, sorted({*kinds}), theta={FULL: theta, SLIDING: theta})
    return decoder(c, "olmo3", _layers(c, kinds, ropes))


def _layers(c: ConfigFields, kinds: tuple[str, ...], ropes: dict[str, Rope]) -> list[Layer]:
    bias, dense = c.flag("attention_bias", False), mlp(c)
    return [
        Layer(
            attention=self_attention(
                c,
                shared=c.size("num_attention_heads"),
                rope=ropes[kind],
                input_bias=bias,
                output_bias=bias,
                qk_norm="all",
                window=c.size("sliding_window", 4096) if kind == SLIDING else None,
            ),
            mlp=dense,
            norms=POST_NORMS,
        )
        for kind in kinds
    ]
