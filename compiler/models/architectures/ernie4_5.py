"""ERNIE 4.5, dense and with experts: interleaved rotary embedding, router with correction bias.

Sources: transformers' models/ernie4_5 and models/ernie4_5_moe (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, gate, mlp, self_attention
from mxc.compiler.models.blocks.mixture import Mixture, SharedExpert
from mxc.compiler.models.blocks.rope import read_rope
from mxc.compiler.models.blocks.routing import Routing
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer


def ernie4_5(c: ConfigFields) -> Decoder:
    """The model of a config."""
    layer = Layer(attention=_attention(c, 128), mlp=mlp(c, bias=c.flag("use_bias", False)))
    return decoder(c, "ernie4_5", [layer] * c.size("num_hidden_layers"), tied=True)


def ernie4_5_moe(c: ConfigFields) -> Decoder:
    """The model of a config: a range of layers, or every n-th layer in it, has experts."""
    bias, count = c.flag("use_bias", False), c.size("num_hidden_layers")
    name, width = "moe_num_shared_experts", "moe_intermediate_size"
    shared = 0 if c.raw(name) == 0 or c.is_null(name) else c.size(name, 2)
    experts = Mixture(
        hidden=c.size("hidden_size"),
        width=c.size(width),
        experts=c.one_of("moe_num_experts", "num_experts"),
        choices=c.one_of("moe_k", "num_experts_per_tok"),
        routing=Routing(
            correction="moe_statics.e_score_correction_bias",
            correction_is_row=True,
            # The shares of experts that only their bias chose may add up to less.
            least=c.number("moe_norm_min", 1e-12),
        ),
        shared=SharedExpert(mlp=mlp(c, width_field=width, count=shared), name="shared_experts")
        if shared
        else None,
        activation=gate(c, "hidden_act", "silu"),
        count_field="moe_num_experts",
        width_field=width,
    )
    first, last = c.raw("moe_layer_start_index"), c.raw("moe_layer_end_index")
    first, last = (1 if first is None else first), (count - 1 if last in (None, -1) else last)
    step, dense = c.size("moe_layer_interval", 1), mlp(c, bias=bias)
    layers = [
        Layer(
            attention=_attention(c, None),
            mlp=experts if (n + 1) % step == 0 and first <= n <= last else dense,
        )
        for n in range(count)
    ]
    return decoder(c, "ernie4_5_moe", layers, tied=True)


def _attention(c: ConfigFields, depth: int | None) -> SelfAttention:
    bias = c.flag("use_bias", False)
    rope = read_rope(c, theta=5e5, interleaved=True)
    return self_attention(c, depth=depth, rope=rope, input_bias=bias, output_bias=bias)
