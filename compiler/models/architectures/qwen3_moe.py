"""Qwen3-MoE: Qwen3 with experts instead of the MLP, in all layers or in some.

Source: transformers' models/qwen3_moe (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, self_attention
from mxc.compiler.models.architectures.qwen_experts import experts, mlps
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def qwen3_moe(c: ConfigFields) -> Decoder:
    """The model of a config."""
    bias, slides = c.flag("attention_bias", False), c.flag("use_sliding_window", False)
    c.inert("max_window_layers")
    # Fixed properties of the architecture, which Qwen3-Coder states.
    c.known("qkv_bias", (False,), False)
    c.known("use_qk_norm", (True,), True)
    c.known("shared_expert_intermediate_size", (0,), 0)
    window = c.raw("sliding_window") and c.size("sliding_window")
    attention = self_attention(
        c,
        input_bias=bias,
        output_bias=bias,
        qk_norm="head",
        window=window if slides else None,
    )
    mixture = experts(c, normalized=c.flag("norm_topk_prob", False), shared=False)
    layers = [Layer(attention=attention, mlp=each) for each in mlps(c, mixture)]
    return decoder(c, "qwen3_moe", layers)
