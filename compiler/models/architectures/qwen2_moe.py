"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and a shared expert with a gate.

Source: transformers' models/qwen2_moe (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, self_attention
from mxc.compiler.models.architectures.qwen_experts import experts, mlps
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def qwen2_moe(c: ConfigFields) -> Decoder:
    """The model of a config; sliding windows, which no published config has, are refused."""
    c.known("use_sliding_window", (False,), False)
    c.inert("sliding_window", "max_window_layers", "layer_types")
    attention = self_attention(c, input_bias=c.flag("qkv_bias", True))
    mixture = experts(c, normalized=c.flag("norm_topk_prob", False))
    layers = [Layer(attention=attention, mlp=each) for each in mlps(c, mixture)]
    return decoder(c, "qwen2_moe", layers)
