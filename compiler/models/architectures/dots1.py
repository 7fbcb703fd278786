"""dots.llm1: attention of Qwen3, experts of DeepSeek-V3.

Source: transformers' models/dots1 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.architectures.glm4_moe import dense_layers, sigmoid_experts
from mxc.compiler.models.blocks.rope import FULL, SLIDING
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def dots1(c: ConfigFields) -> Decoder:
    """The model of a config."""
    c.known("topk_method", ("noaux_tc",), "noaux_tc")
    # "noaux_tc" is sigmoid scores with a bias, as vLLM reads configs of the same makers.
    c.known("scoring_func", ("sigmoid", "noaux_tc"), "sigmoid")
    c.known("moe_layer_freq", (1,), 1)
    # transformers does not read the last one here.
    c.inert("ep_size", "seq_aux", "aux_loss_alpha", "use_sliding_window")
    c = c.completed({"norm_topk_prob": False})
    bias, dense, experts = c.flag("attention_bias", False), mlp(c), sigmoid_experts(c)
    layers = [
        Layer(
            attention=self_attention(
                c,
                shared=c.size("num_attention_heads") if c.is_null("num_key_value_heads") else 32,
                input_bias=bias,
                output_bias=bias,
                qk_norm="head",
                window=window,
            ),
            mlp=dense if number < dense_layers(c, 0) else experts,
        )
        for number, window in enumerate(_windows(c))
    ]
    return decoder(c, "dots1", layers)


def _windows(c: ConfigFields) -> list[int | None]:
    """Read the window of every layer; None for full layers.

    Unlike in Qwen2, whose fields these are, layers from `max_window_layers` on slide wherever there
    is a window, and `layer_types` may name others.
    """
    count, types, name = c.size("num_hidden_layers"), c.raw("layer_types"), "max_window_layers"
    first = 0 if c.raw(name) == 0 else c.size(name, 62)
    width = None if c.is_null("sliding_window") else c.size("sliding_window", 4096)
    if types is None:
        return [width if number >= first else None for number in range(count)]
    kinds = (FULL,) if width is None else (FULL, SLIDING)
    if not isinstance(types, list) or len(types) != count or not {*types} <= {*kinds}:
        without = " (sliding_window is null)" if width is None else ""
        wanted = f"a list of {count} times {' or '.join(kinds)}{without}"
        raise c.refuse("layer_types", wanted, types)
    return [width if kind == SLIDING else None for kind in types]
