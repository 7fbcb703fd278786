"""Writes a random model of the architecture gpt-oss as GGUF, the file format of llama.cpp.

Experts are MXFP4 and other matrices Q8_0, as in llama.cpp's own conversions; norms, biases, sinks
and the router are F32. Weights are scaled so that activations keep their magnitude.
Source: gguf-py's constants for the architecture, ggml-common.h for block_mxfp4 and block_q8_0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions

Array = NDArray[Any]

BLOCK = 32
#: Bytes of a block of 32 elements: MXFP4 has a scale of 8 bits and 16 bytes of elements, Q8_0 a
#: scale of 16 bits and 32 bytes of elements.
MXFP4_BYTES, Q8_0_BYTES = 17, 34

#: Root mean squares of the sixteen e2m1 values and of the bytes from -128 to 127.
_E2M1_RMS = math.sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)
_BYTE_RMS = math.sqrt((256**2 - 1) / 12)


@dataclass(frozen=True)
class Tensor:
    """A tensor of the model.

    `kind`: "F32", "Q8_0" or "MXFP4". `shape`: in elements, the last size is that of a row. `mean`:
    of the values, for F32.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    mean: float = 0.0

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of the array that is written: of float32, or of bytes with a row's blocks last."""
        if self.kind == "F32":
            return self.shape
        width = {"Q8_0": Q8_0_BYTES, "MXFP4": MXFP4_BYTES}[self.kind]
        return (*self.shape[:-1], self.shape[-1] // BLOCK * width)

    @property
    def bytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.stored) * (4 if self.kind == "F32" else 1)


def tensors(options: GptOssOptions) -> Iterator[Tensor]:
    """Yield every tensor of the model, under llama.cpp's names."""
    width, hidden = options.hidden_size, options.intermediate_size
    experts, heads = options.num_local_experts, options.num_attention_heads
    query = heads * options.head_dim
    keys = options.num_key_value_heads * options.head_dim
    yield Tensor("token_embd.weight", "Q8_0", (options.vocab_size, width))
    yield Tensor("output_norm.weight", "F32", (width,), mean=1.0)
    yield Tensor("output.weight", "Q8_0", (options.vocab_size, width))
    for layer in range(options.num_hidden_layers):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "post_attention_norm"):
            yield Tensor(f"{block}{norm}.weight", "F32", (width,), mean=1.0)
        for name, rows, columns in (
            ("attn_q", query, width),
            ("attn_k", keys, width),
            ("attn_v", keys, width),
            ("attn_output", width, query),
        ):
            yield Tensor(f"{block}{name}.weight", "Q8_0", (rows, columns))
            yield Tensor(f"{block}{name}.bias", "F32", (rows,))
        yield Tensor(f"{block}attn_sinks.weight", "F32", (heads,))
        yield Tensor(f"{block}ffn_gate_inp.weight", "F32", (experts, width))
        yield Tensor(f"{block}ffn_gate_inp.bias", "F32", (experts,))
        for name, rows, columns in (
            ("ffn_gate_exps", hidden, width),
            ("ffn_up_exps", hidden, width),
            ("ffn_down_exps", width, hidden),
        ):
            yield Tensor(f"{block}{name}.weight", "MXFP4", (experts, rows, columns))
            yield Tensor(f"{block}{name}.bias", "F32", (experts, rows))


def write_model(file: Path, options: GptOssOptions, seed: int = 0) -> int:
    """Write the model and return its size in bytes. Holds one tensor at a time."""
    import gguf

    writer = gguf.GGUFWriter(str(file), "gpt-oss")
    writer.add_name("random")
    writer.add_block_count(options.num_hidden_layers)
    writer.add_context_length(options.max_position_embeddings)
    writer.add_embedding_length(options.hidden_size)
    writer.add_feed_forward_length(options.intermediate_size)
    writer.add_expert_feed_forward_length(options.intermediate_size)
    writer.add_head_count(options.num_attention_heads)
    writer.add_head_count_kv(options.num_key_value_heads)
    writer.add_key_length(options.head_dim)
    writer.add_value_length(options.head_dim)
    writer.add_rope_dimension_count(options.head_dim)
    writer.add_layer_norm_rms_eps(options.rms_norm_eps)
    writer.add_expert_count(options.num_local_experts)
    writer.add_expert_used_count(options.num_experts_per_tok)
    writer.add_sliding_window(options.sliding_window)
    writer.add_rope_freq_base(options.rope_theta)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(options.rope_factor)
    writer.add_rope_scaling_orig_ctx_len(options.original_max_position_embeddings)
    writer.add_vocab_size(options.vocab_size)
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_MXFP4_MOE)
    wanted = list(tensors(options))
    for tensor in wanted:
        dtype = np.dtype(np.float32 if tensor.kind == "F32" else np.uint8)
        raw = None if tensor.kind == "F32" else gguf.GGMLQuantizationType[tensor.kind]
        writer.add_tensor_info(tensor.name, tensor.stored, dtype, tensor.bytes, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for tensor in wanted:
        writer.write_tensor_data(draw(tensor, rng).reshape(tensor.stored))
    writer.close()
    return file.stat().st_size


def draw(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Draw random data of a tensor: float32, or bytes of its blocks."""
    if tensor.kind == "F32":
        deviation = tensor.shape[-1] ** -0.5 if "_inp.weight" in tensor.name else 0.1
        values = tensor.mean + deviation * rng.standard_normal(math.prod(tensor.shape))
        return values.astype(np.float32)
    blocks, depth = math.prod(tensor.shape) // BLOCK, tensor.shape[-1]
    return (_mxfp4 if tensor.kind == "MXFP4" else _q8_0)(blocks, depth, rng)


def _mxfp4(blocks: int, depth: int, rng: np.random.Generator) -> Array:
    data = rng.integers(0, 256, (blocks, MXFP4_BYTES), dtype=np.uint8)
    middle = round(127 - math.log2(_E2M1_RMS * math.sqrt(depth)))
    data[:, 0] = rng.integers(middle - 1, middle + 2, blocks)
    return data


def _q8_0(blocks: int, depth: int, rng: np.random.Generator) -> Array:
    data = rng.integers(0, 256, (blocks, Q8_0_BYTES), dtype=np.uint8)
    scale = np.full((blocks, 1), 1.0 / (_BYTE_RMS * math.sqrt(depth)), np.float16)
    data[:, :2] = scale.view(np.uint8)
    return data
