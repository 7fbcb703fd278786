"""dots.llm1: attention of Qwen3, experts of DeepSeek-V3.

Source: transformers' models/dots1 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention, windows
from mxc.compiler.models.architectures.glm4_moe import dense_layers, sigmoid_experts
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def dots1(c: ConfigFields) -> Decoder:
    """The model of a config."""
    c.known("topk_method", ("noaux_tc",), "noaux_tc")
    # "noaux_tc" is sigmoid scores with a bias, as vLLM reads configs of the same makers.
    c.known("scoring_func", ("sigmoid", "noaux_tc"), "sigmoid")
    c.known("moe_layer_freq", (1,), 1)
    c.inert("ep_size", "seq_aux", "aux_loss_alpha")
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
        for number, window in enumerate(windows(c))
    ]
    return decoder(c, "dots1", layers)
