"""What the configs of Llama and of those who came after it have in common."""

from __future__ import annotations

from collections.abc import Iterable

from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.decoder import Decoder, Layer

#: Names of the two kinds of layers in `layer_types`.
SLIDING, FULL = "sliding_attention", "full_attention"


def self_attention(
    c: Fields,
    *,
    shared: int | None = None,
    depth: int | None = None,
    input_bias: bool = False,
    output_bias: bool = False,
    head_norms: bool = False,
    window: int | None = None,
) -> SelfAttention:
    """Attention with grouped queries.

    `shared` and `depth` are the architecture's defaults of num_key_value_heads and head_dim; of
    the latter, None means hidden_size / num_attention_heads.
    """
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    count = c.size("num_key_value_heads", shared)
    if heads % count:
        raise c.refuse("num_attention_heads", f"a multiple of num_key_value_heads = {count}", heads)
    if depth is None and c.raw("head_dim") is None and hidden % heads:
        raise c.refuse("hidden_size", f"a multiple of num_attention_heads = {heads}", hidden)
    size = c.size("head_dim", hidden // heads if depth is None else depth)
    if size % 2:
        raise c.refuse("head_dim", "an even number (rotary pairs)", size)
    return SelfAttention(
        hidden=hidden,
        heads=heads,
        shared=count,
        depth=size,
        input_bias=input_bias,
        output_bias=output_bias,
        head_norms=head_norms,
        window=window,
    )


def mlp(c: Fields, *, bias: bool = False) -> Mlp:
    """The dense MLP with a gate of SiLU, the only activation that is known."""
    c.known("hidden_act", ("silu",), "silu")
    return Mlp(hidden=c.size("hidden_size"), width=c.size("intermediate_size"), bias=bias)


def windows(c: Fields) -> tuple[int | None, ...]:
    """The window of every layer, as Qwen2 and Qwen3 say it.

    The layers from `max_window_layers` on slide where `use_sliding_window`, or those that
    `layer_types` names.
    """
    layers, slides = c.size("num_hidden_layers"), c.flag("use_sliding_window", False)
    width, first = c.raw("sliding_window"), c.raw("max_window_layers")
    types = c.raw("layer_types")
    if slides and types is None and width is not None:
        first = c.size("max_window_layers", 28)
        types = [SLIDING if number >= first else FULL for number in range(layers)]
    if types is None:
        return (None,) * layers
    if not isinstance(types, list) or len(types) != layers or not {*types} <= {SLIDING, FULL}:
        raise c.refuse("layer_types", f"a list of {layers} times {SLIDING} or {FULL}", types)
    if SLIDING in types and (not slides or width is None):
        raise c.refuse("layer_types", f"no {SLIDING} without use_sliding_window", types)
    return tuple(c.size("sliding_window") if kind == SLIDING else None for kind in types)


def decoder(
    c: Fields, architecture: str, layers: Iterable[Layer], *, theta: float = 10000.0
) -> Decoder:
    """The model of these layers; every field of the config must have been read by then.

    `theta` is the architecture's default of rope_theta. Raises CheckpointError.
    """
    found = Decoder(
        architecture=architecture,
        vocab_size=c.size("vocab_size"),
        hidden_size=c.size("hidden_size"),
        max_position_embeddings=c.size("max_position_embeddings"),
        epsilon=c.number("rms_norm_eps"),
        rope=read_rope(c, theta=theta),
        layers=tuple(layers),
        tied=c.flag("tie_word_embeddings", False),
        eos_tokens=c.tokens("eos_token_id"),
        bos_token=c.token("bos_token_id"),
        pad_token=c.token("pad_token_id"),
    )
    c.finish()
    return found
