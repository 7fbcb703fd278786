"""CWM (Code World Model): Llama with a sliding window in three of four layers.

Source: transformers' models/cwm (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, layer_kinds, mlp, self_attention
from mxc.compiler.models.blocks.rope import FULL, SLIDING
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer

#: The rotary embedding of a config without one.
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


def cwm(c: ConfigFields) -> Decoder:
    """The model of a config; the first of four layers is full."""
    count = c.size("num_hidden_layers")
    kinds = [FULL if number % 4 == 0 else SLIDING for number in range(count)]
    defaults: dict[str, object] = {
        "eos_token_id": [128001, 128008, 128009],
        "layer_types": kinds,
        "sliding_window": 8192,
    }
    if c.raw("rope_scaling") is None:
        defaults["rope_parameters"] = _ROPE
    c = c.completed(defaults)
    dense = mlp(c, bias=c.flag("mlp_bias", False))
    layers = [
        Layer(
            attention=self_attention(
                c,
                shared=8,
                depth=128,
                theta=1e6,
                window=c.size("sliding_window") if kind == SLIDING else None,
            ),
            mlp=dense,
        )
        for kind in layer_kinds(c, period=4)
    ]
    return decoder(c, "cwm", layers)
