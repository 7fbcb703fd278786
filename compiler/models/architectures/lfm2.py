"""LFM2 and LFM2.5, dense and with experts: gated short convolutions, and attention in some layers.

Sources: transformers' models/lfm2 and models/lfm2_moe (5.23).
"""

from collections.abc import Sequence
from dataclasses import replace

from mxc.compiler.models.architectures.deepseek import mlps
from mxc.compiler.models.architectures.family import decoder, hybrid_kinds, self_attention
from mxc.compiler.models.architectures.glm4_moe import sigmoid_experts
from mxc.compiler.models.blocks.expert_tensors import MIXTRAL, ExpertTensors
from mxc.compiler.models.blocks.gated_convolution import GatedConvolution
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.rope import FULL, read_rope
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer, LayerNorms

#: Parts of the checkpoints' names.
_NAMES = (
    (".embedding_norm.", ".norm."),
    (".feed_forward.w1.", ".feed_forward.gate_proj."),
    (".feed_forward.w2.", ".feed_forward.down_proj."),
    (".feed_forward.w3.", ".feed_forward.up_proj."),
    (".self_attn.out_proj.", ".self_attn.o_proj."),
    (".q_layernorm.", ".q_norm."),
    (".k_layernorm.", ".k_norm."),
)
_NORMS = LayerNorms(before_attention="operator_norm", before_mlp="ffn_norm")
#: The name of layers with a convolution in `layer_types`, and in checkpoints.
_CONV = "conv"


def lfm2(c: ConfigFields) -> Decoder:
    """The dense model of a config; `block_ff_dim` is another name of `intermediate_size`."""
    width = c.one_of("intermediate_size", "block_ff_dim")
    factor, multiple = c.number("block_ffn_dim_multiplier", 1.0), c.size("block_multiple_of", 256)
    if c.flag("block_auto_adjust_ff_dim", True):
        width = -(-int(factor * int(2 * width / 3)) // multiple) * multiple
    dense = Mlp(hidden=c.size("hidden_size"), width=width)
    return _hybrid(c, "lfm2", [dense] * c.size("num_hidden_layers"))


def lfm2_moe(c: ConfigFields) -> Decoder:
    """The model of a config with experts after the first `num_dense_layers` layers."""
    c = c.called({"first_k_dense_replace": "num_dense_layers", "n_routed_experts": "num_experts"})
    experts = sigmoid_experts(c)
    correction = "expert_bias" if c.flag("use_expert_bias", True) else None
    routing = replace(experts.routing, correction=correction, epsilon=1e-6)
    tensors = ExpertTensors(projections=(MIXTRAL,))
    experts = replace(experts, routing=routing, tensors=tensors, shared=None)
    return _hybrid(c, "lfm2_moe", mlps(c, experts, 2))


def _hybrid(c: ConfigFields, name: str, each_mlp: Sequence[Mlp | Mixture]) -> Decoder:
    """Return the model whose layers have these MLPs."""
    _known(c)
    hidden, types, numbers = c.size("hidden_size"), c.raw("layer_types"), c.raw("full_attn_idxs")
    if types is None and isinstance(numbers, list):
        types = [FULL if number in numbers else _CONV for number in range(len(each_mlp))]
    attention = self_attention(c, rope=read_rope(c, theta=1e6), qk_norm="head")
    mixer = GatedConvolution(hidden=hidden, columns=hidden, width=c.size("conv_L_cache", 3))
    layer = Layer(attention=attention, mlp=each_mlp[0], mlp_name="feed_forward", norms=_NORMS)
    layers = [
        replace(layer, mlp=each)
        if kind == FULL
        else replace(layer, mlp=each, attention=mixer, attention_name=_CONV)
        for kind, each in zip(hybrid_kinds(c, types, _CONV), each_mlp, strict=True)
    ]
    tied = c.flag("tie_embedding", c.flag("tie_word_embeddings", True))
    c.known("tie_word_embeddings", (tied,), tied)
    norm = Norm(epsilon=c.number("norm_eps", 1e-5))
    return replace(decoder(c, name, layers, norm=norm, tied=tied), aliases=_NAMES)


def _known(c: ConfigFields) -> None:
    """Check fields that must have the architecture's fixed values; skip those of training."""
    # transformers computes SiLU whatever a config says.
    c.known("hidden_act", ("silu",), "silu")
    c.known("conv_bias", (False,), False)
    c.known("use_pos_enc", (True,), True)
    c.known("block_use_swiglu", (True,), True)
    c.inert("block_dim", "block_norm_eps", "conv_dim", "conv_dim_out", "num_heads")
    scales = ("block_mlp_init_scale", "block_out_init_scale")
    c.inert("block_use_xavier_init", "conv_use_xavier_init", *scales)
