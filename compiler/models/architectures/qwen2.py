"""Qwen2 and Qwen2.5: biases of Q, K and V; later layers may have a sliding window.

Source: transformers' models/qwen2 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention, windows
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def qwen2(c: ConfigFields) -> Decoder:
    """The model of a config."""
    dense = mlp(c)
    layers = [
        Layer(attention=self_attention(c, input_bias=True, window=window), mlp=dense)
        for window in windows(c)
    ]
    return decoder(c, "qwen2", layers)
