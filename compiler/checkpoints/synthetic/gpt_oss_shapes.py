"""Names and shapes of the tensors of gpt-oss on Hugging Face, with experts in mxfp4.

An expert tensor X is `X_blocks` U8 [E, N, K/32, 16], two codes per byte with the even element in
the low nibble, and `X_scales` U8 [E, N, K/32], E8M0. Everything else is dense. Source: transformers
5.23 integrations/mxfp4.py (convert_moe_packed_tensors) and models/gpt_oss/modeling_gpt_oss.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from mxc.compiler.models.configs.gpt_oss import GptOssConfig
from mxc.formats.formats import FORMATS

BLOCK = FORMATS["mxfp4"].block

#: Name and shape of a tensor.
_Stored = tuple[str, tuple[int, ...]]


def stored_shapes(config: GptOssConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor of a model with this config, in model order."""
    return dict(_model(config))


def _model(c: GptOssConfig) -> Iterator[_Stored]:
    yield "model.embed_tokens.weight", (c.vocab_size, c.hidden_size)
    for layer in range(c.num_hidden_layers):
        yield from _layer(c, f"model.layers.{layer}")
    yield "model.norm.weight", (c.hidden_size,)
    if not c.tie_word_embeddings:
        yield "lm_head.weight", (c.vocab_size, c.hidden_size)


def _layer(c: GptOssConfig, prefix: str) -> Iterator[_Stored]:
    hidden, experts = c.hidden_size, c.num_local_experts
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    yield f"{prefix}.input_layernorm.weight", (hidden,)
    attention = f"{prefix}.self_attn"
    for name, rows, columns in (
        ("q_proj", queries, hidden),
        ("k_proj", keys, hidden),
        ("v_proj", keys, hidden),
        ("o_proj", hidden, queries),
    ):
        yield f"{attention}.{name}.weight", (rows, columns)
        if c.attention_bias:
            yield f"{attention}.{name}.bias", (rows,)
    yield f"{attention}.sinks", (c.num_attention_heads,)
    yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield f"{prefix}.mlp.router.weight", (experts, hidden)
    yield f"{prefix}.mlp.router.bias", (experts,)
    for name, rows, columns in (
        ("gate_up_proj", 2 * c.intermediate_size, hidden),
        ("down_proj", hidden, c.intermediate_size),
    ):
        stem = f"{prefix}.mlp.experts.{name}"
        yield f"{stem}_blocks", (experts, rows, columns // BLOCK, BLOCK // 2)
        yield f"{stem}_scales", (experts, rows, columns // BLOCK)
        yield f"{stem}_bias", (experts, rows)
