"""OLMoE and FlexOlmo: OLMo with experts in every layer, and QK norms over all heads.

OLMoE has its norms before attention and experts, FlexOlmo after them, as OLMo 2 has.
Sources: transformers' models/olmoe and models/flex_olmo (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, self_attention
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import POST_NORMS, PRE_NORMS, Decoder, Layer, LayerNorms


def olmoe(c: ConfigFields) -> Decoder:
    """The model of a config; `clip_qkv`, which no published config has, is refused."""
    return _model(c.completed({"rms_norm_eps": 1e-5}), "olmoe", PRE_NORMS, theta=1e4)


def flex_olmo(c: ConfigFields) -> Decoder:
    """The model of a config."""
    return _model(c.completed({"rms_norm_eps": 1e-6}), "flex_olmo", POST_NORMS, theta=5e5)


def _model(c: ConfigFields, name: str, norms: LayerNorms, *, theta: float) -> Decoder:
    c.known("hidden_act", ("silu",), "silu")
    bias = c.flag("attention_bias", False)
    attention = self_attention(
        c,
        shared=c.size("num_attention_heads"),
        theta=theta,
        input_bias=bias,
        output_bias=bias,
        qk_norm="all",
    )
    experts = Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("intermediate_size"),
        experts=c.one_of("num_experts", "num_local_experts"),
        choices=c.size("num_experts_per_tok"),
        routing=Routing(normalized=c.flag("norm_topk_prob", False)),
        count_field="num_experts",
    )
    layer = Layer(attention=attention, mlp=experts, norms=norms)
    return decoder(c, name, [layer] * c.size("num_hidden_layers"))
