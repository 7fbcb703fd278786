"""Qwen3: QK norms per head; later layers may have a sliding window.

Source: transformers' models/qwen3 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention, windows
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def qwen3(c: ConfigFields) -> Decoder:
    """The model of a config."""
    bias, dense = c.flag("attention_bias", False), mlp(c)
    layers = [
        Layer(
            attention=self_attention(
                c, depth=128, input_bias=bias, output_bias=bias, qk_norm="head", window=window
            ),
            mlp=dense,
        )
        for window in windows(c)
    ]
    return decoder(c, "qwen3", layers)
