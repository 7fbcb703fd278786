"""Shared readers of Qwen's mixtures of experts: the experts, and the layers that have them."""

from __future__ import annotations

from mxc.compiler.models.architectures.family import gate, mlp
from mxc.compiler.models.blocks.mixture import Mixture, SharedExpert
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import ConfigFields


def experts(c: ConfigFields, *, normalized: bool, shared: bool = True) -> Mixture:
    """Read the experts of a layer. shared: whether there is a shared expert with a gate."""
    beside = None
    if shared:
        inner = mlp(c, width_field="shared_expert_intermediate_size")
        beside = SharedExpert(mlp=inner, name="shared_expert", gate="shared_expert_gate")
    return Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("moe_intermediate_size"),
        experts=c.one_of("num_experts", "num_local_experts"),
        choices=c.size("num_experts_per_tok"),
        routing=Routing(normalized=normalized),
        shared=beside,
        activation=gate(c, "hidden_act", "silu"),
        count_field="num_experts",
        width_field="moe_intermediate_size",
    )


def mlps(c: ConfigFields, mixture: Mixture) -> list[Mlp | Mixture]:
    """Return the MLP of each layer: the mixture in every `decoder_sparse_step`-th layer.

    Layers in `mlp_only_layers` are dense.
    """
    dense, step, alone = mlp(c), c.size("decoder_sparse_step", 1), c.raw("mlp_only_layers") or []
    if not isinstance(alone, list) or not all(type(number) is int for number in alone):
        raise c.refuse("mlp_only_layers", "a list of layers", alone)
    return [
        dense if number in alone or (number + 1) % step else mixture
        for number in range(c.size("num_hidden_layers"))
    ]
