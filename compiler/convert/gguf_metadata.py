"""Metadata and rotary divisors of a GGUF file, from a model's config.

They are generated from mxc's model of the config, read back, and compared with it: a property that
the file cannot express is refused by name. Keys are those of llama.cpp and convert_hf_to_gguf.py.
If llama.cpp computes something else than the keys declare, a note says so.

Source: gguf 0.19.0 (constants.py), convert_hf_to_gguf.py, llama.cpp's src/llama-model.cpp and
src/models (as of llama-cpp-python 0.3.36).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.configs.gguf import SCORES, stores_norms
from mxc.compiler.models.configs.gguf_kinds import KINDS, GgufArchitecture
from mxc.compiler.models.configs.gguf_rope import DIVISORS, FACTORS
from mxc.compiler.models.configs.longrope import LongropeScaling
from mxc.compiler.models.configs.yarn import YarnScaling, yarn_attention
from mxc.compiler.models.decoder import Decoder
from mxc.compiler.models.gguf import read_gguf_decoder
from mxc.errors import CheckpointError

#: mxc's name of an architecture -> general.architecture.
_ARCHITECTURES = {kind.model_type: name for name, kind in KINDS.items()}
_ARCHITECTURES |= {"mistral": "llama", "mixtral": "llama", "olmo3": "olmo2"}

#: Architectures for which llama.cpp reads divisors of rotary frequencies.
_DIVIDED = ("llama", "exaone4", "granite", "smollm3")

_NEXT_TOKENS = "nextn_predict_layers"

#: Architectures for which llama.cpp always uses the embedding as the head.
_TIED = ("cohere2", "gemma2")

#: Relative tolerance of the comparison: floats of a GGUF are float32.
_EQUAL = 1e-6

#: Fields that do not affect the computation, or that the tokenizer's keys declare.
_BESIDE = ("architecture", "aliases", "eos_tokens", "bos_token", "pad_token")


@dataclass(frozen=True, kw_only=True)
class GgufDeclarations:
    """The declarations of a GGUF file: `general.architecture`, all metadata, and notes.

    `rotary`: divisors of rotary frequencies, tensors by name. `stored_norms`: norms are stored as
    the factor itself, one more than transformers' weight.
    """

    architecture: str
    metadata: Mapping[str, Any]
    rotary: Mapping[str, NDArray[np.float32]]
    notes: tuple[str, ...]
    stored_norms: bool


def say(config: Mapping[str, Any], tensors: Collection[str], place: str) -> GgufDeclarations:
    """Return the metadata for a config.json and tensors with transformers' names.

    Raises CheckpointError for an unknown architecture, and for a property that GGUF cannot express.
    """
    decoder = read_decoder(config, place)
    architecture = _ARCHITECTURES.get(decoder.architecture)
    if architecture is None:
        raise CheckpointError(
            f"{place}: architecture {decoder.architecture} is not written as GGUF; wanted one of "
            f"{', '.join(_ARCHITECTURES)}; choose another dialect with --to"
        )
    own = {
        **_shape(decoder, config, architecture),
        **_layers(decoder, architecture),
        **_ropes(decoder, architecture),
        **_scales(decoder, architecture),
    }
    metadata: dict[str, Any] = {"general.architecture": architecture}
    for key, value in own.items():
        rounded = float(np.float32(value)) if type(value) is float else value
        metadata[f"{architecture}.{key}"] = rounded
    rotary = _rotary(decoder)
    back = read_gguf_decoder(metadata, tensors, rotary, place)
    wanted_model = decoder
    if stores_norms(metadata):
        wanted_model = replace(decoder, norm=replace(decoder.norm, offset=0.0))
    for name, wanted, found in _differences(wanted_model, back):
        raise CheckpointError(
            f"{place}: GGUF cannot say that {name} is {wanted!r}; a reader of the file would take "
            f"{found!r}; choose another dialect with --to"
        )
    return GgufDeclarations(
        architecture=architecture,
        metadata=metadata,
        rotary=rotary,
        notes=tuple(_computed_otherwise(decoder, architecture)),
        stored_norms=stores_norms(metadata),
    )


def _shape(decoder: Decoder, config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    # Layers for multi-token prediction are included in the file's number of layers.
    more = decoder.next_tokens if _NEXT_TOKENS in KINDS[architecture].fields else 0
    heads, norm = decoder.heads, "layer_norm" if decoder.norm.centered else "layer_norm_rms"
    return {
        "block_count": len(decoder.layers) + more,
        **({_NEXT_TOKENS: more} if more else {}),
        "context_length": decoder.max_position_embeddings,
        "embedding_length": decoder.hidden_size,
        "feed_forward_length": config["intermediate_size"],
        "vocab_size": decoder.vocab_size,
        "attention.head_count": heads.heads,
        "attention.head_count_kv": heads.row.heads,
        # Rows of the cache may be wider than heads.
        "attention.key_length": heads.rope_depth,
        "attention.value_length": heads.rope_depth,
        f"attention.{norm}_epsilon": decoder.norm.epsilon,
        "rope.dimension_count": _main_rope(decoder).spread(heads.rope_depth),
    }


def _main_rope(decoder: Decoder) -> Rope:
    """Return the rotary embedding of the layers with full attention, else the first."""
    full = (each.rope for each in decoder.attentions if each and each.window is None)
    return next((rope for rope in full if rope is not None), decoder.ropes[0])


def _rotary(decoder: Decoder) -> dict[str, NDArray[np.float32]]:
    """Return the divisors of rotary frequencies, float32 [pairs], by tensor name."""
    rope = _main_rope(decoder)
    match rope.scaling:
        case Llama3Scaling():
            return {DIVISORS: divisors(rope, decoder.heads.rope_depth)}
        case LongropeScaling(long=long, short=short):
            lists = zip(FACTORS, (long, short), strict=True)
            return {name: np.array(numbers, np.float32) for name, numbers in lists}
    return {}


def _scales(decoder: Decoder, architecture: str) -> dict[str, Any]:
    """Return factors and caps of scores, residuals, embeddings and logits."""
    heads = decoder.heads
    found: dict[str, Any] = {}
    if architecture == "granite":
        found |= {
            "attention.scale": heads.scale,
            "embedding_scale": decoder.embedding_scale,
            "residual_scale": decoder.layers[0].residual,
            "logit_scale": 1 / decoder.logits_scale,
        }
    if architecture == "cohere2":
        found["logit_scale"] = decoder.logits_scale
    if isinstance(heads, SelfAttention) and heads.cap is not None:
        found["attn_logit_softcapping"] = heads.cap
    if decoder.logits_cap is not None:
        found["final_logit_softcapping"] = decoder.logits_cap
    return found


def _period(slides: Sequence[bool]) -> int | None:
    """Return P such that every P-th layer is full and the others slide; None if there is none."""
    for period in range(1, len(slides) + 1):
        if list(slides) == [layer % period < period - 1 for layer in range(len(slides))]:
            return period
    return None


def _layers(decoder: Decoder, architecture: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    windows = [None if each is None else each.window for each in decoder.attentions]
    if widths := {window for window in windows if window is not None}:
        found["attention.sliding_window"] = min(widths)
        slides, usual = [w is not None for w in windows], KINDS[architecture].period
        if usual != 0:  # with a period of 0 the key sliding_window applies to all layers
            found["attention.sliding_window_pattern"] = (usual and _period(slides)) or slides
    experts = next((layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Mixture)), None)
    if experts is None:
        return found
    return found | _experts(decoder, experts, KINDS[architecture])


def _experts(decoder: Decoder, experts: Mixture, kind: GgufArchitecture) -> dict[str, Any]:
    """Return the metadata keys of the architecture's experts."""
    has = [isinstance(layer.mlp, Mixture) for layer in decoder.layers]
    first, routing = has.index(True), experts.routing
    numbers = [number + 1 for number, each in enumerate(has) if each]
    shared = 0 if experts.shared is None else experts.shared.mlp.width
    values: dict[str, Any] = {
        "expert_feed_forward_length": experts.width,
        "expert_group_count": routing.groups,
        "expert_group_used_count": routing.kept,
        "expert_shared_count": shared // experts.width,
        "expert_weights_norm": routing.normalized,
        "expert_weights_scale": routing.factor,
        "interleave_moe_layer_step": math.gcd(*numbers) if len(numbers) > 1 else 1,
        "leading_dense_block_count": first,
    }
    found: dict[str, Any] = {"expert_count": experts.experts, "expert_used_count": experts.choices}
    found |= {key: value for key, value in values.items() if key in kind.fields}
    if shared:
        found["expert_shared_feed_forward_length"] = shared
    if kind.scores != "softmax":
        found["expert_gating_func"] = SCORES[kind.scores]
    return found


def _ropes(decoder: Decoder, architecture: str) -> dict[str, Any]:
    main = _main_rope(decoder)
    others = [rope for rope in decoder.ropes if rope != main]
    found = _rope(main)
    if "rope.freq_base_swa" in KINDS[architecture].fields and others:
        found["rope.freq_base_swa"] = others[0].theta
    return found


def _rope(rope: Rope) -> dict[str, Any]:
    found: dict[str, Any] = {"rope.freq_base": rope.theta}
    match rope.scaling:
        case LinearScaling(factor=factor):
            found |= {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
        case LongropeScaling() as long:
            context = long.original_max_position_embeddings
            found["rope.scaling.original_context_length"] = context
            found["rope.scaling.attn_factor"] = long.attention_factor
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
                # llama.cpp multiplies by the first; its converter writes the second.
                found["rope.scaling.attn_factor"] = beside
                found["rope.scaling.yarn_attn_factor"] = yarn.attention_factor
    return found


def _differences(wanted: Decoder, found: Decoder) -> Iterator[tuple[str, object, object]]:
    """Yield (name, wanted, found) for each field in which two models differ."""
    depth = wanted.heads.rope_depth
    if len(wanted.ropes) != len(found.ropes):
        yield "rope", wanted.ropes, found.ropes
        return
    for own, other in zip(wanted.ropes, found.ropes, strict=True):
        if not _same_rotation(own, other, depth):
            different = list(_fields(own, other, "rope"))
            yield from different or [("rope", own, other)]
    # A head that is a copy of the embedding is a tensor of its own in the file.
    same = replace(found, tied=wanted.tied or found.tied)
    same = same.with_rope(dict(zip(found.ropes, wanted.ropes, strict=True)).__getitem__)
    yield from _fields(wanted, same, "")


def _same_rotation(first: Rope, second: Rope, depth: int) -> bool:
    def attention_factor(rope: Rope) -> float:
        scaling = rope.scaling
        if isinstance(scaling, YarnScaling | LongropeScaling):
            return scaling.attention_factor
        return 1.0

    def context(rope: Rope) -> int:
        scaling = rope.scaling
        if isinstance(scaling, LongropeScaling):
            return scaling.original_max_position_embeddings
        return 0

    dims = first.spread(depth)
    if (dims, first.interleaved) != (second.spread(depth), second.interleaved):
        return False
    if context(first) != context(second):
        return False
    factors = attention_factor(first), attention_factor(second)
    # Frequencies of longrope differ between sequences up to `context` and longer ones.
    return math.isclose(*factors, rel_tol=_EQUAL) and all(
        np.allclose(
            frequencies(first, dims, length),
            frequencies(second, dims, length),
            rtol=_EQUAL,
            atol=0,
        )
        for length in (0, context(first) + 1)
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
    """Yield notes on what llama.cpp computes differently from the declarations of the file."""
    kind = KINDS[architecture]
    widths = [each.window for each in decoder.attentions if each and each.window is not None]
    if widths and kind.slides is not True and kind.slides != len(decoder.layers):
        yield (
            f"llama.cpp reads no sliding window of {architecture}: beyond {min(widths)} tokens its "
            "logits are those of a model without one"
        )
    if not decoder.tied and architecture in _TIED:
        yield f"llama.cpp reads no head of {architecture} but the embedding, and refuses the file"
    yarn = _main_rope(decoder).scaling
    if isinstance(yarn, YarnScaling):
        if (yarn.beta_fast, yarn.beta_slow) != (32.0, 1.0):
            yield f"llama.cpp reads no beta_fast and beta_slow of {architecture}: it has 32 and 1"
        if not yarn.truncate:
            yield "llama.cpp rounds the dimensions between which YaRN mixes; the model does not"
    if isinstance(yarn, Llama3Scaling) and architecture not in _DIVIDED:
        yield f"llama.cpp knows no {DIVISORS} of {architecture}, and refuses the file"
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Mixture)]
    dense = any(isinstance(layer.mlp, Mlp) for layer in decoder.layers)
    if mixtures and dense and kind.experts_everywhere:
        yield f"llama.cpp wants experts in every layer of {architecture}, and refuses the file"
    if any(not mixture.routing.normalized for mixture in mixtures) and architecture == "qwen3moe":
        yield "llama.cpp divides the shares of the chosen experts by their sum; the model does not"
    if any(mixture.routing.normalized for mixture in mixtures) and architecture == "qwen2moe":
        yield "llama.cpp does not divide the shares of the chosen experts by their sum"
