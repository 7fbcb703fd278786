"""Small random gpt-oss checkpoints in the published format, for the demo, tests and benchmarks.

They are written with numpy and safetensors alone, and transformers can load them. The weights are
drawn so that activations keep their magnitude from layer to layer and logits are of order one.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from mxc.compiler.checkpoints.files.safetensors import CONFIG, GENERATION_CONFIG, INDEX, SINGLE
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.checkpoints.synthetic.gpt_oss_shapes import stored_shapes
from mxc.compiler.checkpoints.synthetic.headers_only import write_headers
from mxc.compiler.checkpoints.synthetic.tokenizer import write_tokenizer
from mxc.compiler.models.configs.gpt_oss import LAYER_TYPES, GptOssConfig, parse

#: Root mean square of the sixteen e2m1 values with equal probability.
_E2M1_RMS = math.sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)

#: Number of elements drawn at a time, so that a large embedding is never held in f32 as a whole.
_DRAW = 1 << 22


@dataclass(frozen=True, kw_only=True)
class GptOssOptions:
    """Options of the checkpoint; names are those of config.json.

    `dense_dtype` is BF16, F16 or F32. `layer_types` None alternates sliding and full attention.
    `rope_key` is the key in the config: "rope_scaling" or "rope_parameters" (transformers 5).
    """

    hidden_size: int = 64
    intermediate_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_local_experts: int = 4
    num_experts_per_tok: int = 2
    vocab_size: int = 512
    sliding_window: int = 8
    layer_types: tuple[str, ...] | None = None
    max_position_embeddings: int = 131072
    original_max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    rope_theta: float = 150000.0
    rope_factor: float = 32.0
    rope_truncate: bool = False
    rope_key: str = "rope_scaling"
    swiglu_limit: float = 7.0
    attention_bias: bool = True
    tie_word_embeddings: bool = False
    dense_dtype: str = "BF16"


#: The published shapes (openai/gpt-oss-20b and -120b, config.json).
GPT_OSS_20B = GptOssOptions(
    hidden_size=2880,
    intermediate_size=2880,
    num_hidden_layers=24,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    num_local_experts=32,
    num_experts_per_tok=4,
    vocab_size=201088,
    sliding_window=128,
)


def write_gpt_oss(
    folder: Path,
    options: GptOssOptions | None = None,
    *,
    seed: int = 0,
    shards: int = 2,
    tokenizer: bool = True,
    headers_only: bool = False,
) -> GptOssConfig:
    """Write a checkpoint into `folder` (created) and return its config.

    With `headers_only` the files have valid headers and are sparse: the data reads as zeros and
    takes no space.

    The same options and seed give the same bytes. One shard is written as model.safetensors,
    several with an index. Raises CheckpointError if the options contradict each other, and
    ValueError if the vocabulary is too small for a tokenizer.
    """
    options = options or GptOssOptions()
    folder.mkdir(parents=True, exist_ok=True)
    tokens = {"<|endoftext|>": 0, "<|return|>": 1, "<|startoftext|>": 2, "<|call|>": 1}
    if tokenizer:
        tokens = write_tokenizer(folder, options.vocab_size)
    raw = _config(options, tokens)
    config = parse(raw, CONFIG)
    _write_json(folder / CONFIG, raw)
    stops = sorted({tokens["<|return|>"], tokens["<|endoftext|>"], tokens["<|call|>"]})
    _write_json(
        folder / GENERATION_CONFIG,
        {
            "bos_token_id": raw["bos_token_id"],
            "do_sample": True,
            "eos_token_id": stops,
            "pad_token_id": raw["pad_token_id"],
        },
    )
    rng = None if headers_only else np.random.default_rng(seed)
    _write_weights(folder, config, options, rng, shards)
    return config


def _config(options: GptOssOptions, tokens: dict[str, int]) -> dict[str, Any]:
    layers = options.num_hidden_layers
    scaling: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": options.rope_factor,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "original_max_position_embeddings": options.original_max_position_embeddings,
        "truncate": options.rope_truncate,
    }
    rope: dict[str, Any] = {"rope_theta": options.rope_theta, options.rope_key: scaling}
    if options.rope_key == "rope_parameters":
        rope = {options.rope_key: {**scaling, "rope_theta": options.rope_theta}}
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": options.attention_bias,
        "attention_dropout": 0.0,
        "bos_token_id": tokens["<|startoftext|>"],
        "eos_token_id": tokens["<|return|>"],
        "experts_per_token": options.num_experts_per_tok,
        "head_dim": options.head_dim,
        "hidden_act": "silu",
        "hidden_size": options.hidden_size,
        "initial_context_length": options.original_max_position_embeddings,
        "intermediate_size": options.intermediate_size,
        "layer_types": list(options.layer_types or (LAYER_TYPES[i % 2] for i in range(layers))),
        "max_position_embeddings": options.max_position_embeddings,
        "num_attention_heads": options.num_attention_heads,
        "num_experts_per_tok": options.num_experts_per_tok,
        "num_hidden_layers": layers,
        "num_key_value_heads": options.num_key_value_heads,
        "num_local_experts": options.num_local_experts,
        "pad_token_id": tokens["<|endoftext|>"],
        "quantization_config": {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        "rms_norm_eps": options.rms_norm_eps,
        **rope,
        "sliding_window": options.sliding_window,
        "swiglu_limit": options.swiglu_limit,
        "tie_word_embeddings": options.tie_word_embeddings,
        "use_cache": True,
        "vocab_size": options.vocab_size,
    }


def _write_weights(
    folder: Path,
    config: GptOssConfig,
    options: GptOssOptions,
    rng: np.random.Generator | None,
    shards: int,
) -> None:
    shapes = stored_shapes(config)
    # Shards have equal numbers of tensors: sizes may differ, but no shard is empty.
    parts = [part.tolist() for part in np.array_split(np.array(list(shapes)), shards)]
    weight_map: dict[str, str] = {}
    total = 0
    for number, names in enumerate(parts, 1):
        file = SINGLE if shards == 1 else f"model-{number:05}-of-{shards:05}.safetensors"
        weight_map.update(dict.fromkeys(names, file))
        if rng is None:
            total += write_headers(
                folder / file, {n: (_dtype(n, options), shapes[n]) for n in names}
            )
            continue
        tensors = {name: _draw(name, shapes[name], options, rng) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        total += sum(tensor.nbytes for tensor in tensors.values())
    if shards > 1:
        _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _dtype(name: str, options: GptOssOptions) -> str:
    return "U8" if name.endswith(("_blocks", "_scales")) else options.dense_dtype


def _draw(
    name: str, shape: tuple[int, ...], options: GptOssOptions, rng: np.random.Generator
) -> NDArray[Any]:
    if name.endswith("_blocks"):
        return rng.integers(0, 256, shape, dtype=np.uint8)
    if name.endswith("_scales"):
        # Rows of K elements with deviation K^-1/2 preserve the magnitude of their input.
        middle = round(127 - math.log2(_E2M1_RMS * math.sqrt(shape[-1] * 32)))
        return rng.integers(middle - 1, middle + 2, shape, dtype=np.uint8)
    if name.endswith("norm.weight"):
        return _normal(rng, shape, 1.0, 0.1, options)
    if name.endswith(("bias", "_bias")):
        return _normal(rng, shape, 0.0, 0.1, options)
    if name.endswith("sinks"):
        return _normal(rng, shape, 0.0, 1.0, options)
    if name == "model.embed_tokens.weight" and not options.tie_word_embeddings:
        return _normal(rng, shape, 0.0, 1.0, options)
    # Router logits that are nearly equal would let rounding decide between experts; a larger gain
    # than that of other weights keeps the choices clear.
    gain = 2.0 if ".router." in name else 1.5
    return _normal(rng, shape, 0.0, gain * shape[-1] ** -0.5, options)


def _normal(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    mean: float,
    deviation: float,
    options: GptOssOptions,
) -> NDArray[Any]:
    out = np.empty(math.prod(shape), DTYPES[options.dense_dtype])
    for start in range(0, out.size, _DRAW):
        part = out[start : start + _DRAW]
        draw = rng.standard_normal(part.size, dtype=np.float32)
        part[:] = (mean + deviation * draw).astype(part.dtype)
    return out.reshape(shape)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
