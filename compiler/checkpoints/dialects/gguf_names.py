"""GGUF's and transformers' names of the same parameters, by architecture.

Source: gguf 0.19.0 (tensor_mapping.py) and transformers 5.23 (modeling_gguf_pytorch_utils.py); the
tests compare both with this table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_QK_NORM = {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_MLP = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DENSE = {"ffn_norm": "post_attention_layernorm"} | _MLP
_FUSED_MLP = {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OLMO = {k: v for k, v in _ATTENTION.items() if k != "attn_norm"} | _QK_NORM | _POST_NORMS | _MLP
_GEMMA = _ATTENTION | _POST_NORMS | {"ffn_norm": "pre_feedforward_layernorm"} | _MLP


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names in the layers of one architecture. Keys are the part after `blk.N.`; values that after
    `model.layers.N.`.

    - `layers`: without `.weight` or `.bias`.
    - `experts`: tensors [experts, out, in]; the value is the name of one expert's weight, with {}
      for its number.
    - `whole`: full names of tensors that transformers does not call a weight or a bias.
    - `rows`: vectors that transformers has as one row [1, n].
    - `pairs`: rows of queries and keys are stored as adjacent rotary pairs, not as two halves.
    """

    layers: Mapping[str, str]
    experts: Mapping[str, str] = field(default_factory=dict)
    whole: Mapping[str, str] = field(default_factory=dict)
    rows: Collection[str] = ()
    pairs: bool = False


_MIXTRAL = {
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
}
_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
_ROUTER = {"ffn_gate_inp": "mlp.gate"}


def _shared(name: str) -> dict[str, str]:
    """Return the names of the shared MLP, which is computed for all tokens beside the experts."""
    return {f"ffn_{part}_shexp": f"mlp.{name}.{part}_proj" for part in ("gate", "up", "down")}


#: Additional tensors of layers for multi-token prediction.
_NEXT_TOKENS = {
    "nextn.eh_proj": "eh_proj",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}

#: `general.architecture` -> names. The architecture of Mistral and Mixtral is "llama".
ARCHITECTURES: Mapping[str, Names] = MappingProxyType(
    {
        "cohere2": Names(layers=_ATTENTION | _MLP),
        "ernie4_5": Names(layers=_ATTENTION | _DENSE),
        "ernie4_5-moe": Names(
            layers=_ATTENTION | _DENSE | _ROUTER | _shared("shared_experts"),
            experts=_EXPERTS,
            whole={"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
            rows=("exp_probs_b.bias",),
        ),
        "exaone4": Names(layers=_OLMO),
        "gemma2": Names(layers=_GEMMA),
        "gemma3": Names(layers=_GEMMA | _QK_NORM),
        "glm4": Names(
            layers=_ATTENTION
            | _FUSED_MLP
            | {
                "post_attention_norm": "post_self_attn_layernorm",
                "ffn_norm": "post_attention_layernorm",
                "post_ffw_norm": "post_mlp_layernorm",
            }
        ),
        "glm4moe": Names(
            layers=_ATTENTION
            | _QK_NORM
            | {"post_attention_norm": "post_attention_layernorm"}
            | _MLP
            | _ROUTER
            | _shared("shared_experts")
            | _NEXT_TOKENS,
            experts=_EXPERTS,
            whole={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
        ),
        "granite": Names(layers=_ATTENTION | _DENSE, pairs=True),
        "minimax-m2": Names(
            layers=_ATTENTION
            | _QK_NORM
            | {
                "ffn_norm": "post_attention_layernorm",
                "ffn_gate_inp": "block_sparse_moe.gate",
            },
            experts=_MIXTRAL,
            whole={"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
        ),
        "olmo2": Names(layers=_OLMO),
        "phi3": Names(
            layers={
                "attn_norm": "input_layernorm",
                "attn_qkv": "self_attn.qkv_proj",
                "attn_output": "self_attn.o_proj",
                "ffn_norm": "post_attention_layernorm",
            }
            | _FUSED_MLP
        ),
        "seed_oss": Names(
            layers=_ATTENTION | {"post_attention_norm": "post_attention_layernorm"} | _MLP
        ),
        "smollm3": Names(layers=_ATTENTION | _DENSE, pairs=True),
        "starcoder2": Names(
            layers=_ATTENTION
            | {
                "ffn_norm": "post_attention_layernorm",
                "ffn_up": "mlp.c_fc",
                "ffn_down": "mlp.c_proj",
            }
        ),
        "llama": Names(
            layers=_ATTENTION | _DENSE | {"ffn_gate_inp": "block_sparse_moe.gate"},
            experts=_MIXTRAL,
            pairs=True,
        ),
        "qwen2": Names(layers=_ATTENTION | _DENSE),
        "qwen2moe": Names(
            layers=_ATTENTION
            | _DENSE
            | _ROUTER
            | _shared("shared_expert")
            | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"},
            experts=_EXPERTS,
            rows=("ffn_gate_inp_shexp.weight",),
        ),
        "qwen3": Names(layers=_ATTENTION | _QK_NORM | _DENSE),
        "qwen3moe": Names(
            layers=_ATTENTION | _QK_NORM | _DENSE | _ROUTER,
            experts=_EXPERTS,
        ),
        "gpt-oss": Names(
            layers=_ATTENTION
            | {
                "post_attention_norm": "post_attention_layernorm",
                "ffn_gate_inp": "mlp.router",
                "ffn_gate_exps": "mlp.experts.gate_proj",
                "ffn_up_exps": "mlp.experts.up_proj",
                "ffn_down_exps": "mlp.experts.down_proj",
            },
            whole={"attn_sinks.weight": "self_attn.sinks"},
        ),
    }
)

_LAYER = re.compile(r"blk\.(\d{1,6})\.([a-z_.]+)\.(weight|bias|scale|input_scale)")


def parameter(name: str, names: Names) -> str | None:
    """Return transformers' name of a tensor, with {} for the number of an expert; None if it has
    none."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{kind}"
    match = _LAYER.fullmatch(name)
    if match is None:
        return None
    layer, what, kind = match.groups()
    if (whole := names.whole.get(f"{what}.{kind}")) is not None:
        return f"model.layers.{layer}.{whole}"
    found = names.experts.get(what) or names.layers.get(what)
    if found is None:
        return None
    return f"model.layers.{layer}.{found}.{kind}"


def tensor(name: str, names: Names) -> str | None:
    """Return GGUF's name of a parameter `model.layers.N...weight`; None if it has none."""
    stem, _, kind = name.rpartition(".")
    for theirs, ours in _TOP.items():
        if ours == stem:
            return f"{theirs}.{kind}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
    if match is None:
        return None
    layer, rest = match.groups()
    for theirs, ours in names.whole.items():
        if ours == rest:
            return f"blk.{layer}.{theirs}"
    stem, _, kind = rest.rpartition(".")
    return next(
        (f"blk.{layer}.{theirs}.{kind}" for theirs, ours in names.layers.items() if ours == stem),
        None,
    )


def is_row(name: str, names: Names) -> bool:
    """Return whether a GGUF tensor is a vector that transformers has as one row."""
    match = _LAYER.fullmatch(name)
    return match is not None and f"{match[2]}.{match[3]}" in names.rows
