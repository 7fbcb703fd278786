"""Phi-3, Phi-3.5 and Phi-4: fused projections of queries, keys and values, and of gate and up.

Source: transformers' models/phi3 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.configs.longrope import LongropeScaling, require_pairs
from mxc.compiler.models.decoder import Decoder, Layer


def phi3(c: ConfigFields) -> Decoder:
    """The model of a config."""
    c.inert("original_max_position_embeddings", "embd_pdrop", "resid_pdrop")
    c.known("attention_bias", (False,), False)
    window = c.raw("sliding_window") and c.size("sliding_window")
    rope = read_rope(c, fraction=1.0)
    attention = self_attention(
        c, shared=c.size("num_attention_heads"), fused=True, rope=rope, window=window
    )
    if isinstance(rope.scaling, LongropeScaling):
        require_pairs(rope.scaling, rope.rotated(attention.depth) // 2, "config.json")
    layer = Layer(attention=attention, mlp=mlp(c, fused=True))
    return decoder(c, "phi3", [layer] * c.size("num_hidden_layers"))
