"""Phi-3, Phi-3.5 and Phi-4: fused projections of queries, keys and values, and of gate and up.

Source: transformers' models/phi3 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.configs.longrope import ORIGINAL, LongropeScaling, require_pairs
from mxc.compiler.models.decoder import Decoder, Layer


def phi3(c: ConfigFields) -> Decoder:
    """The model of a config."""
    c = _with_original(c)
    c.inert(ORIGINAL, "embd_pdrop", "resid_pdrop")
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


def _with_original(c: ConfigFields) -> ConfigFields:
    """Return the config with its original context, 4096 if only the scaling may state another."""
    scaling = c.inner("rope_parameters") or c.inner("rope_scaling") or ConfigFields({}, "")
    if c.raw(ORIGINAL) is None and (stated := scaling.raw(ORIGINAL)) not in (None, 4096):
        wanted = f"the {stated} of the scaling (transformers takes 4096 where it is left out)"
        raise c.refuse(ORIGINAL, wanted, None)
    return c.completed({ORIGINAL: 4096})
