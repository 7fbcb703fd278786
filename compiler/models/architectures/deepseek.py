"""DeepSeek-V2, V3, R1 and V3.1, Kimi K2, GLM-4.7-Flash: multi-head latent attention and experts.

V3 has sigmoid routing with a correction bias and groups, V2 softmax routing; the first layers are
dense.
Sources: transformers' models/deepseek_v2, models/deepseek_v3 and models/glm4_moe_lite (5.23).
"""

from dataclasses import replace
from typing import Literal

from mxc.compiler.models.architectures.family import decoder, mlp
from mxc.compiler.models.architectures.glm4_moe import dense_layers, sigmoid_experts
from mxc.compiler.models.blocks.latent_attention import LatentAttention
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.rope import Rope, read_rope
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.configs.yarn import yarn_attention
from mxc.compiler.models.decoder import Decoder, Layer


def deepseek_v2(c: ConfigFields) -> Decoder:
    """The model of a config; with groups, the score of a group is that of its best expert."""
    grouped = c.known("topk_method", ("greedy", "group_limited_greedy"), "greedy") != "greedy"
    groups, kept = (c.size(name, 1) for name in ("n_group", "topk_group"))
    routing = Routing(
        groups=groups if grouped else 1,
        kept=kept if grouped else 1,
        counted=1,
        normalized=c.known("norm_topk_prob", (False,), False),
        factor=c.number("routed_scaling_factor", 1.0),
    )
    c.known("scoring_func", ("softmax",), "softmax")
    c.known("mlp_bias", (False,), False)
    return _latent(
        c, "deepseek_v2", replace(sigmoid_experts(c, shared=2), routing=routing), 0, 1536
    )


def deepseek_v3(c: ConfigFields) -> Decoder:
    """The model of a config. Layers past the last one (MTP) are not part of it."""
    c.known("topk_method", ("noaux_tc",), "noaux_tc")
    c.known("scoring_func", ("sigmoid",), "sigmoid")
    experts = sigmoid_experts(c, groups=8, kept=4, factor=2.5)
    return _latent(c, "deepseek_v3", experts, 3, 1536)


def glm4_moe_lite(c: ConfigFields) -> Decoder:
    """The model of a config, with the routing of V3."""
    c.known("topk_method", ("noaux_tc",), "noaux_tc")
    return _latent(c, "glm4_moe_lite", sigmoid_experts(c, factor=1.8), 1, 768)


def _latent(c: ConfigFields, name: str, experts: Mixture, first: int, rank: int) -> Decoder:
    """Return the model.

    first, rank: the architecture's defaults of first_k_dense_replace and q_lora_rank.
    """
    # Fields of training and of expert parallelism, and sums of other fields.
    c.inert("ep_size", "seq_aux", "aux_loss_alpha", "head_dim", "qk_head_dim")
    c.known("moe_layer_freq", (1,), 1)
    attention = latent_attention(c, rank=rank)
    layers = [Layer(attention=attention, mlp=each) for each in mlps(c, experts, first)]
    return decoder(c, name, layers)


def mlps(c: ConfigFields, experts: Mixture, first: int) -> list[Mlp | Mixture]:
    """Return the MLP of each layer: by `mlp_layer_types`, or dense only in the first layers.

    first: the architecture's default number of dense layers.
    """
    dense, count, types = mlp(c), c.size("num_hidden_layers"), c.raw("mlp_layer_types")
    if types is None or c.raw("first_k_dense_replace") is not None:
        before = dense_layers(c, first)
        wanted = ["dense" if number < before else "sparse" for number in range(count)]
        if types not in (None, wanted):
            raise c.refuse("mlp_layer_types", f"{before} times dense, then sparse", types)
        types = wanted
    if not isinstance(types, list) or len(types) != count or not {*types} <= {"dense", "sparse"}:
        raise c.refuse("mlp_layer_types", f"a list of {count} times dense or sparse", types)
    return [dense if kind == "dense" else experts for kind in types]


def latent_attention(
    c: ConfigFields,
    *,
    rank: int | None = None,
    rope: Rope | Literal["config"] | None = "config",
) -> LatentAttention:
    """Read latent attention.

    With YaRN's `mscale_all_dim`, the square of its attention factor multiplies the scores too.
    rank: the architecture's default of q_lora_rank; null is none in any case. rope: "config" reads
    the rotary embedding from the config; None for no rotation.
    """
    heads, name = c.size("num_attention_heads"), "q_lora_rank"
    rank = None if c.is_null(name) or (rank is None and c.raw(name) is None) else c.size(name, rank)
    c.known("num_key_value_heads", (heads,), heads)
    plain, rotated = c.size("qk_nope_head_dim"), c.size("qk_rope_head_dim")
    scale = (plain + rotated) ** -0.5
    if rope == "config":
        rope = read_rope(c, interleaved=c.switch("rope_interleave", True))
    scaling = (c.inner("rope_parameters") or c.inner("rope_scaling")) if rope else None
    if scaling is not None and scaling.raw("mscale_all_dim"):
        weight = scaling.number("mscale_all_dim")
        scale *= yarn_attention(scaling.number("factor"), weight) ** 2
    return LatentAttention(
        hidden=c.size("hidden_size"),
        heads=heads,
        latent=c.size("kv_lora_rank"),
        plain=plain,
        rotated=rotated,
        value=c.size("v_head_dim"),
        query_rank=rank,
        rope=rope,
        scale=scale,
        bias=c.flag("attention_bias", False),
    )
