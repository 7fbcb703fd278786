"""Reader of gpt-oss as Hugging Face stores it: config.json, safetensors, experts in mxfp4.

Per expert tensor: `X_blocks` U8 [E, N, K/32, 16], two codes a byte, the even element in the low
nibble; `X_scales` U8 [E, N, K/32], E8M0. Everything else is dense. Source: transformers 5.23
integrations/mxfp4.py (convert_moe_packed_tensors) and models/gpt_oss/modeling_gpt_oss.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mxc.compiler.checkpoints.gpt_oss_config import BLOCK, GptOssConfig, parse, token_ids
from mxc.compiler.checkpoints.safetensors_files import CONFIG, read_checkpoint, read_json
from mxc.compiler.checkpoints.tensors import Checkpoint
from mxc.dialects.errors import CheckpointError

__all__ = ["GENERATION_CONFIG", "GptOss", "GptOssConfig", "read_gpt_oss", "wanted_tensors"]

GENERATION_CONFIG = "generation_config.json"

#: What a dense tensor may be. The bytes stay as they are; the program converts where it reads.
DENSE = ("BF16", "F16", "F32")
PACKED = ("U8",)


@dataclass(frozen=True, kw_only=True)
class GptOss:
    """A checkpoint that was checked whole: every tensor is there, with the shape config says.

    `eos_tokens` are those of generation_config.json where it states some, else of config.json.
    """

    config: GptOssConfig
    checkpoint: Checkpoint
    eos_tokens: tuple[int, ...]


@dataclass(frozen=True)
class _Wanted:
    """A tensor that config.json asks for; each dimension with the reason for its size."""

    name: str
    dtypes: tuple[str, ...]
    dims: tuple[tuple[str, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.dims)

    def describe(self) -> str:
        dims = ", ".join(f"{size} = {reason}" for reason, size in self.dims)
        return f"{' or '.join(self.dtypes)} [{dims}]"


def wanted_tensors(config: GptOssConfig) -> dict[str, tuple[tuple[str, ...], tuple[int, ...]]]:
    """Name -> (allowed dtypes, shape) of every tensor of a model of this config, in model order."""
    return {w.name: (w.dtypes, w.shape) for w in _wanted(config)}


def read_gpt_oss(folder: Path) -> GptOss:
    """Open and check the checkpoint in `folder`; reads headers only, no tensor data.

    Raises CheckpointError: what read_checkpoint and the config parser refuse, a tensor that is
    missing, unknown, or whose dtype or shape is not what config.json says.
    """
    checkpoint = read_checkpoint(folder)
    config = parse(checkpoint.config, str(folder / CONFIG))
    left = dict(checkpoint.tensors)
    for wanted in _wanted(config):
        record = left.pop(wanted.name, None)
        if record is None:
            raise CheckpointError(
                f"{folder}: tensor {wanted.name} is missing; config.json asks for "
                f"{wanted.describe()}; fetch the checkpoint again, or the config.json that "
                "belongs to it"
            )
        if record.dtype not in wanted.dtypes or record.shape != wanted.shape:
            raise CheckpointError(
                f"config.json says tensor {wanted.name} is {wanted.describe()}; in {record.file} "
                f"it is {record.describe()}; fetch the config.json that belongs to these weights"
            )
    if left:
        names = sorted(left)
        name = names[0]
        if name == "lm_head.weight":
            why = "config.json says tie_word_embeddings, so the model has none"
        else:
            why = f"a gpt-oss of {config.num_hidden_layers} layers has no such tensor"
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        raise CheckpointError(
            f"{left[name].file}: unknown tensor {name}{more}: {why}; "
            "leaving it out would change the model without a word"
        )
    eos_tokens = _eos_tokens(folder, config)
    for token in eos_tokens:
        if token >= config.vocab_size:
            raise CheckpointError(
                f"{folder}: eos_token_id {token} is outside of the vocabulary, which is 0 to "
                f"{config.vocab_size - 1}; generation would never end. Fetch the config.json and "
                "generation_config.json that belong to the checkpoint"
            )
    return GptOss(config=config, checkpoint=checkpoint, eos_tokens=eos_tokens)


def _eos_tokens(folder: Path, config: GptOssConfig) -> tuple[int, ...]:
    path = folder / GENERATION_CONFIG
    if not path.exists():
        return config.eos_token_ids
    return token_ids(read_json(path).get("eos_token_id"), str(path)) or config.eos_token_ids


def _wanted(config: GptOssConfig) -> Iterator[_Wanted]:
    c = config
    hidden = ("hidden_size", c.hidden_size)
    vocab = ("vocab_size", c.vocab_size)
    yield _Wanted("model.embed_tokens.weight", DENSE, (vocab, hidden))
    for layer in range(c.num_hidden_layers):
        yield from _layer(c, f"model.layers.{layer}")
    yield _Wanted("model.norm.weight", DENSE, (hidden,))
    if not c.tie_word_embeddings:
        yield _Wanted("lm_head.weight", DENSE, (vocab, hidden))


def _layer(c: GptOssConfig, prefix: str) -> Iterator[_Wanted]:
    hidden = ("hidden_size", c.hidden_size)
    heads = ("num_attention_heads", c.num_attention_heads)
    queries = ("num_attention_heads * head_dim", c.num_attention_heads * c.head_dim)
    keys = ("num_key_value_heads * head_dim", c.num_key_value_heads * c.head_dim)
    experts = ("num_local_experts", c.num_local_experts)
    gate_up = ("2 * intermediate_size", 2 * c.intermediate_size)

    yield _Wanted(f"{prefix}.input_layernorm.weight", DENSE, (hidden,))
    attention = f"{prefix}.self_attn"
    for name, rows, columns in (
        ("q_proj", queries, hidden),
        ("k_proj", keys, hidden),
        ("v_proj", keys, hidden),
        ("o_proj", hidden, queries),
    ):
        yield _Wanted(f"{attention}.{name}.weight", DENSE, (rows, columns))
        if c.attention_bias:
            yield _Wanted(f"{attention}.{name}.bias", DENSE, (rows,))
    yield _Wanted(f"{attention}.sinks", DENSE, (heads,))
    yield _Wanted(f"{prefix}.post_attention_layernorm.weight", DENSE, (hidden,))
    yield _Wanted(f"{prefix}.mlp.router.weight", DENSE, (experts, hidden))
    yield _Wanted(f"{prefix}.mlp.router.bias", DENSE, (experts,))
    for name, rows, size in (
        ("gate_up_proj", gate_up, ("hidden_size", c.hidden_size)),
        ("down_proj", hidden, ("intermediate_size", c.intermediate_size)),
    ):
        stem = f"{prefix}.mlp.experts.{name}"
        blocks = (f"{size[0]} / {BLOCK}", size[1] // BLOCK)
        pair = ("bytes of a block", BLOCK // 2)
        yield _Wanted(f"{stem}_blocks", PACKED, (experts, rows, blocks, pair))
        yield _Wanted(f"{stem}_scales", PACKED, (experts, rows, blocks))
        yield _Wanted(f"{stem}_bias", DENSE, (experts, rows))
