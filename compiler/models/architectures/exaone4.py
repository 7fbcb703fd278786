"""EXAONE 4: norms after attention and MLP; layers with full attention have no rotary embedding.

Source: transformers' models/exaone4 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, layer_kinds, mlp, self_attention
from mxc.compiler.models.blocks.rope import FULL, SLIDING, read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import POST_NORMS, Decoder, Layer


def exaone4(c: ConfigFields) -> Decoder:
    """The model of a config; without `sliding_window` all layers are full, and all rotate."""
    # What the model always does, and a field that counts in no layer; EXAONE 4.5 states both.
    c.known("reorder_qk_norm", (True,), True)
    c.inert("max_window_layers")
    slides = c.raw("sliding_window") is not None
    rope, dense = read_rope(c), mlp(c)
    stated = slides or c.raw("layer_types") is not None
    kinds = layer_kinds(c, period=4) if stated else (FULL,) * c.size("num_hidden_layers")
    layers = [
        Layer(
            attention=self_attention(
                c,
                rope=rope if kind == SLIDING or not slides else None,
                qk_norm="head",
                window=c.size("sliding_window") if kind == SLIDING else None,
            ),
            mlp=dense,
            norms=POST_NORMS,
        )
        for kind in kinds
    ]
    return decoder(c, "exaone4", layers)
