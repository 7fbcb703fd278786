"""Granite 4 H: most layers are Mamba 2; each has an MLP for all tokens, with or without experts.

Source: transformers' models/granitemoehybrid (5.23).
"""

from dataclasses import replace
from math import inf

from mxc.compiler.models.architectures.family import hybrid_kinds, mlp, plain
from mxc.compiler.models.architectures.granite import MIXTURE, NAMES, experts, scaled
from mxc.compiler.models.blocks.linear_attention import LINEAR
from mxc.compiler.models.blocks.mamba2 import Mamba2
from mxc.compiler.models.blocks.mixture import SharedExpert
from mxc.compiler.models.blocks.rope import FULL
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder

#: Limits of the time step that limit nothing; transformers writes infinity as an object.
_NO_LIMITS = (None, [0.0, inf], [0.0, {"__float__": "Infinity"}])
#: Kinds of layers in configs before transformers 5.
_KINDS = {"mamba": LINEAR, "attention": FULL}
#: The checkpoints' names of the MLP, alone and beside experts.
_ALONE: tuple[tuple[str, str], ...] = (
    (".shared_mlp.input_linear.", ".shared_mlp.gate_up_proj."),
    (".shared_mlp.output_linear.", ".shared_mlp.down_proj."),
)
_BESIDE = tuple((theirs, f".{MIXTURE}{ours}") for theirs, ours in _ALONE)


def granite_hybrid(c: ConfigFields) -> Decoder:
    """The model of a config."""
    rotated = c.known("position_embedding_type", ("rope", "nope"), "nope") == "rope"
    if not rotated:
        c.inert("rope_theta", "rope_scaling", "rope_parameters")
    types = c.raw("layer_types")
    if isinstance(types, list):
        types = [_KINDS.get(str(kind), kind) for kind in types]
    kinds = hybrid_kinds(c, types)
    mixer = _mamba(c)
    dense = mlp(c, fused=True, width_field="shared_intermediate_size")
    if c.raw("num_local_experts") == 0:
        c.inert("intermediate_size", "num_experts_per_tok")
        made = scaled(c, "granitemoehybrid", dense, "shared_mlp", rotated=rotated)
        names = _ALONE
    else:
        mixture = replace(experts(c), shared=SharedExpert(mlp=dense, name="shared_mlp"))
        made = scaled(c, "granitemoehybrid", mixture, MIXTURE, rotated=rotated)
        names = NAMES + _BESIDE
    layers = (
        layer if kind == FULL else replace(layer, attention=mixer, attention_name="mamba")
        for kind, layer in zip(kinds, made.layers, strict=True)
    )
    return replace(made, layers=tuple(layers), aliases=names)


def _mamba(c: ConfigFields) -> Mamba2:
    c.known("mamba_n_groups", (1,), 1)
    c.known("mamba_proj_bias", (False,), False)
    c.known("normalization_function", ("rmsnorm",), "rmsnorm")
    c.inert("init_method", "mamba_chunk_size")
    if (limits := c.raw("time_step_limit")) not in _NO_LIMITS:
        raise c.refuse("time_step_limit", "no limits", limits)
    heads, inner = c.size("mamba_n_heads", 128), c.size("mamba_expand", 2) * c.size("hidden_size")
    if c.raw("mamba_d_head") not in (None, "auto", inner // heads) or inner % heads:
        wanted = f"mamba_expand * hidden_size / mamba_n_heads = {inner / heads:g}"
        raise c.refuse("mamba_d_head", wanted, c.raw("mamba_d_head"))
    return Mamba2(
        hidden=c.size("hidden_size"),
        heads=heads,
        depth=inner // heads,
        size=c.size("mamba_d_state", 256),
        width=c.size("mamba_d_conv", 4),
        bias=c.flag("mamba_conv_bias", True),
        convolved=plain(c),
    )
