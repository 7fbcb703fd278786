"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and an MLP that all tokens share by a gate.

Source: transformers' models/qwen2_moe (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.architectures.qwen3_moe import dense_layers
from mxc.compiler.models.blocks.mixture import Mixture, Shared
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.decoder import Decoder, Layer


def qwen2_moe(c: Fields) -> Decoder:
    """The model of a config, of which no published one slides."""
    c.known("use_sliding_window", (False,), False)
    c.inert("sliding_window", "max_window_layers", "layer_types")
    attention = self_attention(c, input_bias=c.flag("qkv_bias", True))
    dense, alone, step = mlp(c), dense_layers(c), c.size("decoder_sparse_step", 1)
    shared = mlp(c, width_field="shared_expert_intermediate_size")
    experts = Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("moe_intermediate_size"),
        experts=c.size("num_experts"),
        choices=c.size("num_experts_per_tok"),
        routing=Routing(normalized=c.flag("norm_topk_prob", False)),
        shared=Shared(mlp=shared, name="shared_expert", gate="shared_expert_gate"),
        count_field="num_experts",
        width_field="moe_intermediate_size",
    )
    layers = [
        Layer(attention=attention, mlp=dense if n in alone or (n + 1) % step else experts)
        for n in range(c.size("num_hidden_layers"))
    ]
    return decoder(c, "qwen2_moe", layers)
