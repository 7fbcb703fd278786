"""Granite 3 and 4 (dense): Llama with multipliers of embeddings, scores, residuals and logits.

Source: transformers' models/granite (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.decoder import Decoder, Layer


def granite(c: Fields) -> Decoder:
    """The model of a config."""
    bias = c.flag("attention_bias", False)
    attention = self_attention(
        c,
        shared=c.size("num_attention_heads"),
        input_bias=bias,
        output_bias=bias,
        scale=c.number("attention_multiplier", 1.0),
    )
    layer = Layer(
        attention=attention,
        mlp=mlp(c, bias=c.flag("mlp_bias", False)),
        residual=c.number("residual_multiplier", 1.0),
    )
    return decoder(
        c,
        "granite",
        [layer] * c.size("num_hidden_layers"),
        embedding_scale=c.number("embedding_multiplier", 1.0),
        logits_scale=1 / c.number("logits_scaling", 1.0),
    )
