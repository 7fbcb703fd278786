"""Mistral: Llama with a sliding window in every layer. Ministral 3: queries with temperature.

Sources: transformers' models/mistral and models/ministral3 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.blocks.self_attention import Temperature
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer

#: Fields of Ministral 3 in rope_parameters that do not concern the rotary embedding.
BESIDE = (_GROWTH := "llama_4_scaling_beta", "max_position_embeddings")


def mistral(c: ConfigFields) -> Decoder:
    """The model of a config; `sliding_window` null means no window, an absent field 4096."""
    slides = "sliding_window" not in c.names() or c.raw("sliding_window") is not None
    window = c.size("sliding_window", 4096) if slides else None
    layer = Layer(attention=self_attention(c, window=window), mlp=mlp(c))
    return decoder(c, "mistral", [layer] * c.size("num_hidden_layers"))


def ministral3(c: ConfigFields) -> Decoder:
    """The model of a config."""
    attention = self_attention(
        c,
        depth=128,
        rope=read_rope(c, beside=BESIDE),
        window=c.raw("sliding_window") and c.size("sliding_window"),
        temperature=temperature(c),
    )
    layer = Layer(attention=attention, mlp=mlp(c))
    return decoder(c, "ministral3", [layer] * c.size("num_hidden_layers"))


def temperature(c: ConfigFields) -> Temperature:
    """Read the factor of queries, which grows from YaRN's original context on."""
    rope = c.inner("rope_parameters")
    if rope is None:
        raise c.refuse("rope_parameters", f"an object with {_GROWTH}", None)
    step = rope.size("original_max_position_embeddings")
    return Temperature(step=step, factor=rope.number(_GROWTH), first=0)
