"""gpt-oss: attention with sinks, alternating sliding windows; MX experts with a clamped SwiGLU.

Source of the architecture: openai/gpt-oss (gpt_oss/torch/model.py) and transformers'
models/gpt_oss.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.compiler.models.blocks.expert_tensors import ExpertTensors
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.primitives import f32
from mxc.compiler.models.blocks.rope import Rope
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.configs.gpt_oss import GptOssConfig
from mxc.compiler.models.decoder import Decoder, Layer
from mxc.dialects.generic import constant


def decoder(c: GptOssConfig) -> Decoder:
    """The model of a config."""
    experts = Mixture(
        hidden=c.hidden_size,
        width=c.intermediate_size,
        experts=c.num_local_experts,
        choices=c.num_experts_per_tok,
        router="router",
        tensors=ExpertTensors(stacked=True, interleaved=True),
        biases=True,
        activation=ClampedSwiglu(limit=c.swiglu_limit, alpha=c.swiglu_alpha),
    )
    return Decoder(
        architecture="gpt_oss",
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        max_position_embeddings=c.max_position_embeddings,
        norm=Norm(epsilon=c.rms_norm_eps),
        layers=tuple(
            Layer(
                attention=SelfAttention(
                    hidden=c.hidden_size,
                    heads=c.num_attention_heads,
                    shared=c.num_key_value_heads,
                    depth=c.head_dim,
                    rope=Rope(theta=c.rope_theta, scaling=c.rope_scaling),
                    input_bias=c.attention_bias,
                    output_bias=c.attention_bias,
                    sinks=True,
                    window=c.sliding_window if kind == "sliding_attention" else None,
                ),
                mlp=experts,
            )
            for kind in c.layer_types
        ),
        tied=c.tie_word_embeddings,
        eos_tokens=c.eos_token_ids,
        bos_token=c.bos_token_id,
        pad_token=c.pad_token_id,
    )


@dataclass(frozen=True, kw_only=True)
class ClampedSwiglu:
    """(up + 1) * gate * sigmoid(alpha * gate), with gate <= limit and -limit <= up <= limit."""

    limit: float
    alpha: float

    def __call__(self, gate: ir.Value, up: ir.Value) -> ir.Value:
        """Build the gated value of two f32 scalars."""
        most = constant(self.limit, f32())
        gate = arith.minimumf(gate, most)
        up = arith.maximumf(arith.minimumf(up, most), arith.negf(most))
        one = constant(1.0, f32())
        growth = math.exp(arith.negf(arith.mulf(gate, constant(self.alpha, f32()))))
        sigmoid = arith.divf(one, arith.addf(one, growth))
        return arith.mulf(arith.addf(up, one), arith.mulf(gate, sigmoid))
