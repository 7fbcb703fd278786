"""Mistral: Llama, of which every layer may slide. Source: transformers' models/mistral (5.23)."""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.decoder import Decoder, Layer


def mistral(c: Fields) -> Decoder:
    """The model of a config; a `sliding_window` of null is none, without the field it is 4096."""
    slides = "sliding_window" not in c.names() or c.raw("sliding_window") is not None
    window = c.size("sliding_window", 4096) if slides else None
    layer = Layer(attention=self_attention(c, window=window), mlp=mlp(c))
    return decoder(c, "mistral", [layer] * c.size("num_hidden_layers"))
