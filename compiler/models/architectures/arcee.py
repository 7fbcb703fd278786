"""Arcee (AFM): Llama with an MLP without a gate, whose activation is the square of a ReLU.

Source: transformers' models/arcee (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, plain, self_attention
from mxc.compiler.models.blocks.mlp import FeedForward
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def arcee(c: ConfigFields) -> Decoder:
    """The model of a config."""
    bias = c.flag("attention_bias", False)
    layer = Layer(
        attention=self_attention(
            c, shared=c.size("num_attention_heads"), input_bias=bias, output_bias=bias
        ),
        mlp=FeedForward(
            hidden=c.size("hidden_size"),
            width=c.size("intermediate_size"),
            activation=plain(c, default="relu2"),
            bias=c.flag("mlp_bias", False),
        ),
    )
    return decoder(c, "arcee", [layer] * c.size("num_hidden_layers"))
