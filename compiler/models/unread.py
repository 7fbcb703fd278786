"""Tensors of a checkpoint that the program does not read: what each is, or that it is unknown.

Scales of a quantised KV cache, layers that predict further tokens, and what follows from
config.json are left out, and a note says so. Any other tensor is refused: without it the model
would be another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.layers.quantisation import Activations
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.decoder import Cached, Decoder
from mxc.errors import CheckpointError

Tensors = Mapping[str, CanonicalTensor]

#: What older libraries stored of rotary positions, and follows from config.json.
_COMPUTED = re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)")

#: Layers that predict tokens after the next one, under names of their own.
_NEXT_TOKENS = re.compile(r"(model\.)?(mtp|nextn|mtp_layers|mtp_block)\..*")

_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<rest>.+)")

#: Scales of keys and values in a layer -> of which: modelopt (k_proj.k_scale), compressed-tensors
#: (k_scale), AutoFP8 (kv_scale), Quark (k_proj.output_scale).
_SCALES = {
    **{f"self_attn.{part}_scale": part for part in ("k", "v", "kv")},
    **{f"self_attn.{part}_proj.{part}_scale": part for part in "kv"},
    **{f"self_attn.{part}_proj.output_scale": part for part in "kv"},
    "self_attn.qkv_proj.output_scale": "kv",
}
#: What else is stored of attention in low precision.
_ATTENTION = re.compile(
    r"self_attn\.(q_scale|[qkv]_zero_point|prob_output_scale|q_proj\.(q|output)_scale"
    r"|[qkv]_proj\.output_zero_point|[kv]_proj\.[kv]_bias)"
)

#: What makes keys and values.
_MADE = re.compile(r"self_attn\.[kv]_(proj|norm)\.")


def describe_unread(
    decoder: Decoder, left: Tensors, cache: Activations | None, floats: str
) -> tuple[str, ...]:
    """Notes about the tensors that no parameter reads.

    `cache` is what the config says that keys and values are quantised to, `floats` what the cache
    of this program holds. Raises CheckpointError for a tensor that is none of those that may be
    left out, and for scales that are none.
    """
    scales: dict[tuple[int, str], CanonicalTensor] = {}
    kinds: dict[str, list[str]] = {}
    for name, tensor in left.items():
        match = _LAYER.fullmatch(name)
        layer, rest = (-1, "") if match is None else (int(match["layer"]), match["rest"])
        if 0 <= layer < len(decoder.layers) and rest in _SCALES:
            scales |= {(layer, part): tensor for part in _SCALES[rest]}
        elif 0 <= layer < len(decoder.layers) and _ATTENTION.fullmatch(rest):
            kinds.setdefault("scales of attention, which is computed in floats", []).append(name)
        elif 0 <= layer < len(decoder.layers) and _borrowed(decoder.attentions[layer], rest):
            kinds.setdefault("layers that read keys and values of another", []).append(name)
        elif _COMPUTED.fullmatch(name):
            kinds.setdefault("rotary tables, which follow from config.json", []).append(name)
        elif _NEXT_TOKENS.fullmatch(name) or 0 <= layer - len(decoder.layers) < decoder.next_tokens:
            kinds.setdefault("layers that predict tokens after the next", []).append(name)
        else:
            raise _unknown(decoder, left, name)
    notes = [
        f"not compiled: {len(names)} tensors of {kind} ({', '.join(names[:2])}"
        f"{', ..' if len(names) > 2 else ''})"
        for kind, names in kinds.items()
    ]
    return (*_describe_cache(decoder, scales, cache, floats), *notes)


def _borrowed(attention: Cached | None, rest: str) -> bool:
    """Whether a tensor would make keys or values where a layer reads those of another."""
    borrows = isinstance(attention, SelfAttention) and attention.borrows
    return borrows and _MADE.match(rest) is not None


def _describe_cache(
    decoder: Decoder,
    scales: Mapping[tuple[int, str], CanonicalTensor],
    cache: Activations | None,
    floats: str,
) -> Sequence[str]:
    if cache is None and not scales:
        return ()
    what = "of a format that its config does not state" if cache is None else cache.format
    ours = f"the cache of this program is {floats}"
    if not scales:
        how = "computes its scales as it runs" if cache and cache.dynamic else "has no scales"
        return (f"the checkpoint's key/value cache is {what}, and {how}: {ours}",)
    for layer, part in scales:
        other = "v" if part == "k" else "k"
        if (layer, other) not in scales:
            tensor = scales[layer, part]
            raise CheckpointError(
                f"{tensor.place} is a scale of the key/value cache, and layer {layer} has none of "
                f"its {'values' if other == 'v' else 'keys'}; fetch the checkpoint again"
            )
    numbers = np.concatenate(
        [_scale(tensor, decoder.attentions[layer]) for (layer, _), tensor in scales.items()]
    )
    layers = len({layer for layer, _ in scales})
    every = sum(each is not None for each in decoder.attentions)
    return (
        f"the checkpoint's key/value cache is {what}, with scales from {numbers.min():.4g} to "
        f"{numbers.max():.4g} for {layers} layers of {every}: they are not used, "
        f"{ours}",
    )


def _scale(tensor: CanonicalTensor, attention: Cached | None) -> NDArray[np.float32]:
    """One positive number, or one for each head of keys and values."""
    numbers: NDArray[Any] = tensor.values().reshape(-1)
    heads = 1 if attention is None else attention.row.heads
    if numbers.size not in (1, heads) or not np.all((numbers > 0) & (numbers < np.inf)):
        raise CheckpointError(
            f"{tensor.place} is {tensor.elements.record.describe()}, {numbers[:4].tolist()}; a "
            "scale of the key/value cache is a positive number, or one for each of "
            f"{heads} heads; fetch the file again"
        )
    return numbers


def _unknown(decoder: Decoder, left: Tensors, name: str) -> CheckpointError:
    why = f"a {decoder.architecture} of {len(decoder.layers)} layers has no such tensor"
    more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
    return CheckpointError(
        f"{left[name].elements.record.file}: unknown tensor {name}{more}: {why}; "
        "leaving it out would change the model without a word"
    )
