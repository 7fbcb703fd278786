"""GLM-4 (0414): four norms per layer, half of each head rotated with interleaved parts.

Source: transformers' models/glm4 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer, LayerNorms

NORMS = LayerNorms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")


def glm4(c: ConfigFields) -> Decoder:
    """The model of a config."""
    c = c.completed({"eos_token_id": [151329, 151336, 151338]})
    attention = self_attention(
        c,
        depth=128,
        rope=read_rope(c, fraction=0.5, interleaved=True),
        input_bias=c.flag("attention_bias", True),
    )
    layer = Layer(attention=attention, mlp=mlp(c, fused=True), norms=NORMS)
    return decoder(c, "glm4", [layer] * c.size("num_hidden_layers"))
