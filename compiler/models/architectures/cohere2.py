"""Command R7B and Command A (Cohere 2): parallel attention and MLP, layer norm, scaled logits.

Sliding layers have an interleaved rotary embedding; layers with full attention have none. Source:
transformers' models/cohere2 (5.23).
"""

from mxc.compiler.models.architectures.family import decoder, layer_kinds, mlp, self_attention
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import SLIDING, read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer, LayerNorms

NORMS = LayerNorms(before_mlp=None)


def cohere2(c: ConfigFields) -> Decoder:
    """The model of a config."""
    bias, dense, rope = c.flag("attention_bias", False), mlp(c), read_rope(c, interleaved=True)
    # Fields of the first releases, which transformers ignores.
    c.known("use_qk_norm", (False,), False)
    c.known("position_embedding_type", ("rope_gptj",), "rope_gptj")
    c.known("use_parallel_block", (True,), True)
    c.known("use_gated_activation", (True,), True)
    c.known("use_embedding_sharing", (True,), True)
    c.known("rotary_pct", (1, 1.0), 1.0)
    c.inert("order_of_interleaved_layers", "use_parallel_embedding", "cache_implementation")
    layers = [
        Layer(
            attention=self_attention(
                c,
                shared=c.size("num_attention_heads"),
                rope=rope if kind == SLIDING else None,
                input_bias=bias,
                output_bias=bias,
                window=c.size("sliding_window", 4096) if kind == SLIDING else None,
            ),
            mlp=dense,
            norms=NORMS,
            parallel=True,
        )
        for kind in layer_kinds(c, period=4)
    ]
    return decoder(
        c,
        "cohere2",
        layers,
        norm=Norm(epsilon=c.number("layer_norm_eps", 1e-5), centered=True),
        tied=True,
        logits_scale=c.number("logit_scale", 0.0625),
    )
