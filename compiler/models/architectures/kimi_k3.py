"""Kimi K3: Kimi Linear with a bounded decay, gated latent attention, experts in a latent space.

What attention and MLPs read is a mixture of earlier values (attention residuals), and all gates are
SiTU. Source: the modeling and configuration code in moonshotai/Kimi-K3.
"""

from dataclasses import replace

from mxc.compiler.models.architectures.deepseek import latent_attention
from mxc.compiler.models.architectures.family import decoder
from mxc.compiler.models.architectures.glm4_moe import sigmoid_experts
from mxc.compiler.models.architectures.kimi_linear import (
    ALIASES,
    NAMES,
    delta_attention,
    hybrid,
    kimi_linear,
)
from mxc.compiler.models.blocks.attention_residuals import AttentionResiduals
from mxc.compiler.models.blocks.gates import SITU
from mxc.compiler.models.blocks.mixture import LatentSpace
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.decoder import Decoder


def kimi(c: ConfigFields) -> Decoder:
    """The model of a config: both have one model type, and only K3 has attention residuals."""
    return kimi_linear(c) if c.raw("attn_res_block_size") is None else kimi_k3(c)


def kimi_k3(c: ConfigFields) -> Decoder:
    """The model of a config of K3."""
    c = c.called(NAMES)
    c.known("hidden_act", (SITU,))
    c.known("latent_moe_use_norm", (True,))
    c.known("mla_use_output_gate", (True,))
    c.known("topk_method", ("noaux_tc",), "noaux_tc")
    # A rotary embedding that the model does not have.
    c.inert("rope_theta")
    inner = c.inner("linear_attn_config") or ConfigFields({}, "")
    inner.known("use_full_rank_gate", (True,))
    bound = inner.raw("gate_lower_bound")
    if type(bound) not in (int, float) or not bound < 0:
        raise inner.refuse("gate_lower_bound", "a negative number", bound)
    linear = replace(delta_attention(c, inner), bound=float(bound), whole_gate=True, flat=True)
    attention = replace(latent_attention(c, rope=None), gated=True)
    norm = Norm(epsilon=c.number("rms_norm_eps"))
    latent = LatentSpace(size=c.size("routed_expert_hidden_size"), norm=norm)
    layers = hybrid(c, inner, linear, attention, replace(sigmoid_experts(c), latent=latent))
    residuals = AttentionResiduals(period=c.size("attn_res_block_size"), norm=norm)
    return replace(decoder(c, "kimi_k3", layers, residuals=residuals), aliases=ALIASES)
