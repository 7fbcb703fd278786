"""Llama 1, 2, 3 and derived models. Source: transformers' models/llama (5.23)."""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def llama(c: ConfigFields) -> Decoder:
    """The model of a config."""
    bias = c.flag("attention_bias", False)
    layer = Layer(
        attention=self_attention(
            c, shared=c.size("num_attention_heads"), input_bias=bias, output_bias=bias
        ),
        mlp=mlp(c, bias=c.flag("mlp_bias", False)),
    )
    return decoder(c, "llama", [layer] * c.size("num_hidden_layers"))
