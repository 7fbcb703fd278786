"""Granite 3 and 4 (dense), Granite 3 with experts: Llama with multipliers of embeddings, scores,
residuals and logits.

Sources: transformers' models/granite and models/granitemoe (5.23).
"""

from dataclasses import replace

from mxc.compiler.models.architectures.family import decoder, gate, mlp, self_attention
from mxc.compiler.models.blocks.expert_tensors import ExpertTensors
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder, Layer

#: The name of the mixture, and the checkpoints' names of its stacked expert tensors.
MIXTURE = "block_sparse_moe"
NAMES = (
    (f".{MIXTURE}.input_linear.weight", f".{MIXTURE}.experts.gate_up_proj"),
    (f".{MIXTURE}.output_linear.weight", f".{MIXTURE}.experts.down_proj"),
)


def granite(c: ConfigFields) -> Decoder:
    """The dense model of a config."""
    return scaled(c, "granite", mlp(c, bias=c.flag("mlp_bias", False)), "mlp")


def granite_moe(c: ConfigFields) -> Decoder:
    """The model of a config with experts in every layer, routed by a softmax over the chosen."""
    return replace(scaled(c, "granitemoe", experts(c), MIXTURE), aliases=NAMES)


def experts(c: ConfigFields) -> Mixture:
    """Read the experts of a layer."""
    return Mixture(
        hidden=c.size("hidden_size"),
        width=c.size("intermediate_size"),
        experts=c.size("num_local_experts"),
        choices=c.size("num_experts_per_tok"),
        router="router.layer",
        tensors=ExpertTensors(stacked=True),
        activation=gate(c, "hidden_act", "silu"),
    )


def scaled(
    c: ConfigFields, name: str, inner: Mlp | Mixture, inner_name: str, *, rotated: bool = True
) -> Decoder:
    """Return the model whose layers have this MLP or mixture under `inner_name`."""
    bias = c.flag("attention_bias", False)
    attention = self_attention(
        c,
        shared=c.size("num_attention_heads"),
        rope="config" if rotated else None,
        input_bias=bias,
        output_bias=bias,
        scale=c.number("attention_multiplier", 1.0),
    )
    layer = Layer(
        attention=attention,
        mlp=inner,
        mlp_name=inner_name,
        residual=c.number("residual_multiplier", 1.0),
    )
    return decoder(
        c,
        name,
        [layer] * c.size("num_hidden_layers"),
        embedding_scale=c.number("embedding_multiplier", 1.0),
        logits_scale=1 / c.number("logits_scaling", 1.0),
    )
