"""MiniMax-M2: sigmoid routing with a correction bias, QK norms over all heads.

Source: transformers' models/minimax_m2 (5.23).
"""

from dataclasses import replace

from mxc.compiler.models.architectures.family import decoder, self_attention
from mxc.compiler.models.blocks.expert_tensors import MIXTRAL, PROJECTIONS, ExpertTensors
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.rope import part_of, read_rope
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer

#: The name of the mixture in checkpoints.
MLP = "block_sparse_moe"


def minimax_m2(c: ConfigFields) -> Decoder:
    """The model of a config; releases state the rotated part of a head as `rotary_dim`."""
    depth = c.size("head_dim", 128)
    rotated = c.size("rotary_dim", depth)
    c.known("hidden_act", ("silu",), "silu")
    _known(c)
    experts = Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("intermediate_size"),
        experts=c.one_of("num_local_experts", "num_experts"),
        choices=c.size("num_experts_per_tok"),
        routing=Routing(scores="sigmoid", correction="e_score_correction_bias"),
        tensors=ExpertTensors(projections=(MIXTRAL, PROJECTIONS)),
    )
    part = part_of(rotated, depth)
    rope = read_rope(c, theta=5e6, fraction=part)
    if rope.fraction == rotated / depth:  # as transformers writes it beside rotary_dim
        rope = replace(rope, fraction=part)
    attention = self_attention(c, depth=depth, rope=rope, qk_norm="all")
    layer = Layer(attention=attention, mlp=experts, mlp_name=MLP)
    made = decoder(c, "minimax_m2", [layer] * c.size("num_hidden_layers"))
    return replace(made, aliases=((".mlp.", f".{MLP}."),))


def _known(c: ConfigFields) -> None:
    """Check fields that must have the architecture's fixed values; skip those of training."""
    c.known("use_qk_norm", (True,), True)
    c.known("qk_norm_type", ("per_layer",), "per_layer")
    c.known("scoring_func", ("sigmoid",), "sigmoid")
    c.known("use_routing_bias", (True,), True)
    c.known("shared_intermediate_size", (0,), 0)
    kinds = c.raw("attn_type_list")
    if kinds is not None and {*kinds} != {1}:
        raise c.refuse("attn_type_list", "1 (full attention) for every layer", kinds)
    c.inert("use_mtp", "num_mtp_modules", "mtp_transformer_layers")
