"""Seed-OSS: Llama with biases of queries, keys and values.

Source: transformers' models/seed_oss (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def seed_oss(c: ConfigFields) -> Decoder:
    """The model of a config."""
    # A field of training.
    c.inert("residual_dropout")
    attention = self_attention(
        c,
        depth=128,
        input_bias=c.flag("attention_bias", True),
        output_bias=c.flag("attention_out_bias", False),
    )
    layer = Layer(attention=attention, mlp=mlp(c, bias=c.flag("mlp_bias", False)))
    return decoder(c, "seed_oss", [layer] * c.size("num_hidden_layers"))
