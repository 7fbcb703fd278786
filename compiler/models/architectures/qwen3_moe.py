"""Qwen3-MoE: Qwen3 with experts in the place of the MLP, in all layers or in some.

Source: transformers' models/qwen3_moe (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.decoder import Decoder, Layer


def qwen3_moe(c: Fields) -> Decoder:
    """The model of a config."""
    bias, step, alone = (
        c.flag("attention_bias", False),
        c.size("decoder_sparse_step", 1),
        dense_layers(c),
    )
    slides, _ = c.flag("use_sliding_window", False), c.raw("max_window_layers")
    window = c.raw("sliding_window") and c.size("sliding_window")
    attention = self_attention(
        c,
        input_bias=bias,
        output_bias=bias,
        qk_norm="head",
        window=window if slides else None,
    )
    dense = mlp(c)
    experts = Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("moe_intermediate_size"),
        experts=c.one_of("num_experts", "num_local_experts"),
        choices=c.size("num_experts_per_tok"),
        routing=Routing(normalized=c.flag("norm_topk_prob", False)),
        count_field="num_experts",
        width_field="moe_intermediate_size",
    )
    layers = [
        Layer(attention=attention, mlp=dense if n in alone or (n + 1) % step else experts)
        for n in range(c.size("num_hidden_layers"))
    ]
    return decoder(c, "qwen3_moe", layers)


def dense_layers(c: Fields) -> list[int]:
    """The layers that `mlp_only_layers` names."""
    numbers = c.raw("mlp_only_layers") or []
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise c.refuse("mlp_only_layers", "a list of layers", numbers)
    return numbers
