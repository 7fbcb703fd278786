"""Mixtral: Mistral with experts in the place of the MLP. Source: transformers' models/mixtral."""

from mxc.compiler.models.architectures.family import decoder, self_attention
from mxc.compiler.models.blocks.mixture import Mixture, PerExpert
from mxc.compiler.models.configs.fields import Fields
from mxc.compiler.models.decoder import Decoder, Layer


def mixtral(c: Fields) -> Decoder:
    """The model of a config. The softmax over all experts is divided by its sum over the chosen."""
    c.known("hidden_act", ("silu",), "silu")
    experts = Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("intermediate_size"),
        experts=c.one_of("num_local_experts", "num_experts"),
        choices=c.size("num_experts_per_tok"),
        tensors=PerExpert(gate="w1", up="w3", down="w2"),
    )
    window = c.raw("sliding_window") and c.size("sliding_window")
    attention = self_attention(c, window=window)
    layer = Layer(attention=attention, mlp=experts, mlp_name="block_sparse_moe")
    return decoder(c, "mixtral", [layer] * c.size("num_hidden_layers"), theta=1e6)
