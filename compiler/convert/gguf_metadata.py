"""What a GGUF says of a model beside its weights: metadata and rotary divisors.

Both are made of the model as mxc has it, read back, and held against it: what the file would not
say is refused by name. Keys are those that llama.cpp and convert_hf_to_gguf.py have; where
llama.cpp would compute something else of what the keys say, a note says so.

Source: gguf 0.19.0 (constants.py), convert_hf_to_gguf.py, llama.cpp's src/llama-model.cpp and
src/models (as of llama-cpp-python 0.3.36).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.blocks.mixture import Mixture
from mxc.compiler.models.blocks.mlp import Mlp
from mxc.compiler.models.blocks.rope import (
    LinearScaling,
    Llama3Scaling,
    Rope,
    divisors,
    frequencies,
)
from mxc.compiler.models.configs.gguf_rope import DIVISORS
from mxc.compiler.models.configs.yarn import YarnScaling, yarn_attention
from mxc.compiler.models.decoder import Decoder
from mxc.compiler.models.gguf import read_gguf_decoder
from mxc.dialects.errors import CheckpointError

#: Architecture here -> general.architecture.
_ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
}

#: Floats of a GGUF are float32: what is read back is equal within that, relative.
_EQUAL = 1e-6

#: Fields that say where a model is from, not what it computes. Of tokens the tokenizer's keys say.
_BESIDE = ("architecture", "aliases", "eos_tokens", "bos_token", "pad_token")


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a file says: `general.architecture` alone, all metadata, rotary divisors, notes."""

    architecture: str
    metadata: Mapping[str, Any]
    divisors: NDArray[np.float32] | None
    notes: tuple[str, ...]


def say(config: Mapping[str, Any], tensors: Collection[str], place: str) -> Said:
    """The metadata of the model of a config.json, whose tensors have transformers' names.

    Raises CheckpointError for an architecture that is not known, and for what GGUF cannot say.
    """
    decoder = read_decoder(config, place)
    architecture = _ARCHITECTURES.get(decoder.architecture)
    if architecture is None:
        raise CheckpointError(
            f"{place}: architecture {decoder.architecture} is not written as GGUF; wanted one of "
            f"{', '.join(_ARCHITECTURES)}; choose another dialect with --to"
        )
    own = {**_shape(decoder, config), **_layers(decoder, architecture), **_rope(decoder.rope)}
    metadata: dict[str, Any] = {"general.architecture": architecture}
    for key, value in own.items():
        rounded = float(np.float32(value)) if type(value) is float else value
        metadata[f"{architecture}.{key}"] = rounded
    scaled = isinstance(decoder.rope.scaling, Llama3Scaling)
    numbers = divisors(decoder.rope, decoder.heads.depth) if scaled else None
    back = read_gguf_decoder(metadata, tensors, numbers, place)
    for name, wanted, found in _differences(decoder, back):
        raise CheckpointError(
            f"{place}: GGUF cannot say that {name} is {wanted!r}; a reader of the file would take "
            f"{found!r}; choose another dialect with --to"
        )
    return Said(
        architecture=architecture,
        metadata=metadata,
        divisors=numbers,
        notes=tuple(_computed_otherwise(decoder, architecture)),
    )


def _shape(decoder: Decoder, config: Mapping[str, Any]) -> dict[str, Any]:
    heads = decoder.heads
    return {
        "block_count": len(decoder.layers),
        "context_length": decoder.max_position_embeddings,
        "embedding_length": decoder.hidden_size,
        "feed_forward_length": config["intermediate_size"],
        "vocab_size": decoder.vocab_size,
        "attention.head_count": heads.heads,
        "attention.head_count_kv": heads.shared,
        "attention.key_length": heads.depth,
        "attention.value_length": heads.depth,
        "attention.layer_norm_rms_epsilon": decoder.norm.epsilon,
        "rope.dimension_count": heads.depth,
    }


def _layers(decoder: Decoder, architecture: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    windows = [None if each is None else each.window for each in decoder.attentions]
    if widths := {window for window in windows if window is not None}:
        found["attention.sliding_window"] = min(widths)
        if architecture != "llama":  # which says it of all layers
            found["attention.sliding_window_pattern"] = [w is not None for w in windows]
    experts = next((layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Mixture)), None)
    if experts is None:
        return found
    found |= {"expert_count": experts.experts, "expert_used_count": experts.choices}
    if architecture != "llama":
        found["expert_feed_forward_length"] = experts.width
    if architecture == "qwen3moe":
        found["expert_weights_norm"] = experts.routing.normalized
    return found


def _rope(rope: Rope) -> dict[str, Any]:
    found: dict[str, Any] = {"rope.freq_base": rope.theta}
    match rope.scaling:
        case LinearScaling(factor=factor):
            found |= {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
        case YarnScaling() as yarn:
            found |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": yarn.factor,
                "rope.scaling.original_context_length": yarn.original_max_position_embeddings,
                "rope.scaling.yarn_beta_fast": yarn.beta_fast,
                "rope.scaling.yarn_beta_slow": yarn.beta_slow,
            }
            beside = yarn.attention_factor / yarn_attention(yarn.factor)
            if not math.isclose(beside, 1.0, rel_tol=1e-12):
                # llama.cpp multiplies with the first; its converter writes the second.
                found["rope.scaling.attn_factor"] = beside
                found["rope.scaling.yarn_attn_factor"] = yarn.attention_factor
    return found


def _differences(wanted: Decoder, found: Decoder) -> Iterator[tuple[str, object, object]]:
    """Name and both values of each field that two models differ in."""
    depth = wanted.heads.depth
    if not _same_rotation(wanted.rope, found.rope, depth):
        different = list(_fields(wanted.rope, found.rope, "rope"))
        yield from different or [("rope", wanted.rope, found.rope)]
    # A head that is a copy of the embedding is a tensor of its own in the file.
    same = dataclasses.replace(found, tied=wanted.tied or found.tied)
    same = same.with_rope(lambda _: wanted.rope)
    yield from _fields(wanted, same, "")


def _same_rotation(first: Rope, second: Rope, depth: int) -> bool:
    def attention_factor(rope: Rope) -> float:
        return rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0

    dims = first.rotated(depth)
    if (dims, first.interleaved) != (second.rotated(depth), second.interleaved):
        return False
    turns, others = frequencies(first, dims), frequencies(second, dims)
    factors = attention_factor(first), attention_factor(second)
    return np.allclose(turns, others, rtol=_EQUAL, atol=0) and math.isclose(
        *factors, rel_tol=_EQUAL
    )


def _fields(wanted: Any, found: Any, name: str) -> Iterator[tuple[str, object, object]]:
    if type(wanted) is not type(found):
        yield name, wanted, found
    elif dataclasses.is_dataclass(wanted):
        for field in dataclasses.fields(wanted):
            if field.name not in _BESIDE:
                inner = f"{name}.{field.name}" if name else field.name
                yield from _fields(getattr(wanted, field.name), getattr(found, field.name), inner)
    elif isinstance(wanted, tuple) and len(wanted) == len(found):
        for number, pair in enumerate(zip(wanted, found, strict=True)):
            yield from _fields(*pair, f"{name}[{number}]")
    elif isinstance(wanted, float):
        if not math.isclose(wanted, found, rel_tol=_EQUAL):
            yield name, wanted, found
    elif wanted != found:
        yield name, wanted, found


def _computed_otherwise(decoder: Decoder, architecture: str) -> Iterator[str]:
    """What llama.cpp makes of the file that the file does not say."""
    widths = [each.window for each in decoder.attentions if each and each.window is not None]
    if widths and architecture != "gpt-oss":
        yield (
            f"llama.cpp reads no sliding window of {architecture}: beyond {min(widths)} tokens its "
            "logits are those of a model without one"
        )
    yarn = decoder.rope.scaling
    if isinstance(yarn, YarnScaling):
        if (yarn.beta_fast, yarn.beta_slow) != (32.0, 1.0):
            yield f"llama.cpp reads no beta_fast and beta_slow of {architecture}: it has 32 and 1"
        if not yarn.truncate:
            yield "llama.cpp rounds the dimensions between which YaRN mixes; the model does not"
    if isinstance(yarn, Llama3Scaling) and architecture != "llama":
        yield f"llama.cpp knows no {DIVISORS} of {architecture}, and refuses the file"
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Mixture)]
    if mixtures and any(isinstance(layer.mlp, Mlp) for layer in decoder.layers):
        yield f"llama.cpp wants experts in every layer of {architecture}, and refuses the file"
    if any(not mixture.routing.normalized for mixture in mixtures):
        yield "llama.cpp divides the shares of the chosen experts by their sum; the model does not"
