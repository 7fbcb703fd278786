"""GLM-4.5, 4.6 and 4.7: half of each head rotated, sigmoid routing with a correction bias.

The first layers have a dense MLP. Solar Open has experts in every layer, and attention of Llama.
Sources: transformers' models/glm4_moe and models/solar_open (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, mlp, self_attention
from mxc.compiler.models.blocks.mixture import Mixture, SharedExpert
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def glm4_moe(c: ConfigFields) -> Decoder:
    """The model of a config. Layers past the last one (MTP) are not part of it."""
    attention = self_attention(
        c,
        depth=c.size("hidden_size") // c.size("num_attention_heads"),
        rope=read_rope(c, fraction=0.5),
        input_bias=c.flag("attention_bias", False),
        qk_norm="head" if c.flag("use_qk_norm", False) else None,
    )
    dense, experts = mlp(c), sigmoid_experts(c)
    layers = [
        Layer(attention=attention, mlp=dense if number < dense_layers(c, 1) else experts)
        for number in range(c.size("num_hidden_layers"))
    ]
    return decoder(c, "glm4_moe", layers)


def solar_open(c: ConfigFields) -> Decoder:
    """The model of a config."""
    c.known("use_qk_norm", (False,), False)
    c.known("first_k_dense_replace", (0,), 0)
    c.inert("intermediate_size")
    bias = c.flag("attention_bias", False)
    attention = self_attention(c, shared=8, depth=128, theta=1e6, input_bias=bias)
    layer = Layer(attention=attention, mlp=sigmoid_experts(c))
    return decoder(c, "solar_open", [layer] * c.size("num_hidden_layers"))


def dense_layers(c: ConfigFields, default: int) -> int:
    """Return the number of leading layers without experts."""
    first = c.raw("first_k_dense_replace")
    return 0 if first == 0 else c.size("first_k_dense_replace", default or None)


def sigmoid_experts(
    c: ConfigFields, *, groups: int = 1, kept: int = 1, factor: float = 1.0, shared: int = 1
) -> Mixture:
    """Read experts with the routing of DeepSeek-V3 and a shared expert.

    groups, kept, factor, shared: the architecture's defaults of n_group, topk_group,
    routed_scaling_factor and n_shared_experts.
    """
    count = c.size("n_shared_experts", shared)
    both = mlp(c, width_field="moe_intermediate_size", count=count)
    return Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("moe_intermediate_size"),
        experts=c.one_of("n_routed_experts", "num_local_experts"),
        choices=c.size("num_experts_per_tok"),
        routing=Routing(
            scores="sigmoid",
            correction="gate.e_score_correction_bias",
            groups=c.size("n_group", groups),
            kept=c.size("topk_group", kept),
            normalized=c.switch("norm_topk_prob", True),
            factor=c.number("routed_scaling_factor", factor),
        ),
        shared=SharedExpert(mlp=both, name="shared_experts"),
        activation=both.activation,
        count_field="n_routed_experts",
        width_field="moe_intermediate_size",
    )
