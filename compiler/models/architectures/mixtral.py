"""Mixtral: Mistral with experts instead of the MLP. Source: transformers' models/mixtral."""

from dataclasses import replace

from mxc.compiler.models.architectures.family import decoder, self_attention
from mxc.compiler.models.blocks.expert_tensors import MIXTRAL, PROJECTIONS, ExpertTensors
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer

#: The name of the mixture in checkpoints.
MLP = "block_sparse_moe"


def mixtral(c: ConfigFields) -> Decoder:
    """The model of a config. Shares are the softmax over all, normalized over the chosen."""
    c.known("hidden_act", ("silu",), "silu")
    experts = Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("intermediate_size"),
        experts=c.one_of("num_local_experts", "num_experts"),
        choices=c.size("num_experts_per_tok"),
        tensors=ExpertTensors(projections=(MIXTRAL, PROJECTIONS)),
    )
    window = c.raw("sliding_window") and c.size("sliding_window")
    attention = self_attention(c, window=window, theta=1e6)
    layer = Layer(attention=attention, mlp=experts, mlp_name=MLP)
    layers = [layer] * c.size("num_hidden_layers")
    # The module's name in transformers 5, which quantized checkpoints have too.
    return replace(decoder(c, "mixtral", layers), aliases=((".mlp.", f".{MLP}."),))
