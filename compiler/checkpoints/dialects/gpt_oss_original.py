"""The dialect of gpt-oss as OpenAI published it: other names; queries, keys and values fused.

`X.blocks` U8 [E, out, in / 32, 16] and `X.scales` U8 [E, out, in / 32] are as in the other dialect.
`attn.qkv` has the rows of queries, then keys, then values. config.json has other keys. Source:
openai/gpt-oss gpt_oss/torch/{model,weights}.py; transformers 5.23
models/gpt_oss/convert_gpt_oss_weights_to_hf.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, plain
from mxc.compiler.checkpoints.dialects.gpt_oss import METHOD, read
from mxc.compiler.checkpoints.files.safetensors import CONFIG
from mxc.compiler.checkpoints.files.tensors import Checkpoint, TensorRecord
from mxc.compiler.checkpoints.layers.quantization import CheckpointQuantization, Scheme
from mxc.errors import CheckpointError

_BLOCKS, _SCALES = ".blocks", ".scales"

_TOP = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "unembedding.weight": "lm_head.weight",
}
_LAYER = {
    "attn.norm.scale": "input_layernorm.weight",
    "attn.sinks": "self_attn.sinks",
    "attn.out.weight": "self_attn.o_proj.weight",
    "attn.out.bias": "self_attn.o_proj.bias",
    "mlp.norm.scale": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.router.weight",
    "mlp.gate.bias": "mlp.router.bias",
    "mlp.mlp1_weight": "mlp.experts.gate_up_proj",
    "mlp.mlp1_bias": "mlp.experts.gate_up_proj_bias",
    "mlp.mlp2_weight": "mlp.experts.down_proj",
    "mlp.mlp2_bias": "mlp.experts.down_proj_bias",
}
_QKV = re.compile(r"attn\.qkv\.(weight|bias)")


def recognises(checkpoint: Checkpoint) -> bool:
    """Return whether the names are those of OpenAI's checkpoint."""
    return any(name.endswith(".mlp.mlp1_weight.blocks") for name in checkpoint.tensors)


def read_original(
    checkpoint: Checkpoint,
) -> tuple[list[CanonicalTensor], CheckpointQuantization, Mapping[str, Any]]:
    """Return every tensor under transformers' names, the declarations, and a config.json for
    transformers.

    Raises CheckpointError for unknown names, and if `attn.qkv` has another number of rows than
    config.json says.
    """
    stated = "the names of the tensors"
    declared = CheckpointQuantization(
        method=METHOD, default=Scheme(format="mxfp4", stated_in=stated)
    )
    tensors: list[CanonicalTensor] = []
    for tensor in read(checkpoint, declared, _BLOCKS, _SCALES):
        if tensor.name in _TOP:
            tensors.append(tensor.renamed(_TOP[tensor.name]))
            continue
        match = re.fullmatch(r"block\.(\d+)\.(.+)", tensor.name)
        prefix = "" if match is None else f"model.layers.{match[1]}."
        rest = "" if match is None else match[2]
        if fused := _QKV.fullmatch(rest):
            record = checkpoint.tensors[tensor.name]
            tensors += _split(record, f"{prefix}self_attn.", fused[1], checkpoint.config)
        elif rest in _LAYER:
            tensors.append(tensor.renamed(prefix + _LAYER[rest]))
        else:
            raise CheckpointError(
                f"{tensor.place} is no tensor of gpt-oss; leaving it out would change the model "
                "without a word"
            )
    return tensors, declared, _config(checkpoint.config)


def _split(
    record: TensorRecord, prefix: str, kind: str, config: Mapping[str, Any]
) -> list[CanonicalTensor]:
    sizes = [
        config.get(heads, 0) * config.get("head_dim", 0)
        for heads in ("num_attention_heads", "num_key_value_heads", "num_key_value_heads")
    ]
    if not record.shape or sum(sizes) != record.shape[0]:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} is {record.describe()}, {CONFIG} asks for rows "
            f"{' + '.join(map(str, sizes))}; fetch the config.json that belongs to these weights"
        )
    found, row = [], 0
    for name, rows in zip(("q_proj", "k_proj", "v_proj"), sizes, strict=True):
        row_bytes = record.bytes // record.shape[0]
        part = replace(
            record,
            shape=(rows, *record.shape[1:]),
            offset=record.offset + row * row_bytes,
            bytes=rows * row_bytes,
        )
        found.append(plain(part, f"{prefix}{name}.{kind}"))
        row += rows
    return found


def _config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return OpenAI's config.json in transformers' keys; one that has `model_type` is unchanged."""
    if "model_type" in raw:
        return raw
    original = raw.get("initial_context_length", 4096)
    factor = raw.get("rope_scaling_factor", 32.0)
    made = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_act": "silu",
        "num_local_experts": raw.get("num_experts"),
        "num_experts_per_tok": raw.get("experts_per_token"),
        "max_position_embeddings": int(original * factor),
        # A constant in OpenAI's program: torch/model.py.
        "rms_norm_eps": 1e-5,
        "swiglu_limit": raw.get("swiglu_limit", 7.0),
        "attention_bias": True,
        "tie_word_embeddings": False,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": raw.get("rope_ntk_beta", 32.0),
            "beta_slow": raw.get("rope_ntk_alpha", 1.0),
            "original_max_position_embeddings": original,
            "truncate": False,
        },
        "eos_token_id": 200002,
        "pad_token_id": 199999,
        "quantization_config": {"quant_method": METHOD},
    }
    return {**raw, **made}
