"""Classifies the tensors of a checkpoint that no parameter reads.

Layers that predict further tokens, and tensors that follow from config.json, are left out with a
note. Scales of keys and values go to cache_scales.py. Any other tensor is refused, because leaving
it out would change the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.cache_scales import NAMES, Scales
from mxc.compiler.models.decoder import Cached, Decoder
from mxc.errors import CheckpointError

Tensors = Mapping[str, CanonicalTensor]

#: Rotary tables that older libraries stored, and that follow from config.json.
_COMPUTED = re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)")

#: Layers that predict tokens after the next one, under names of their own.
_NEXT_TOKENS = re.compile(r"(model\.)?(mtp|nextn|mtp_layers|mtp_block)\..*")

_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<rest>.+)")

#: Other tensors of attention in low precision.
_ATTENTION = re.compile(
    r"self_attn\.(q_scale|[qkv]_zero_point|prob_output_scale|q_proj\.(q|output)_scale"
    r"|[qkv]_proj\.output_zero_point|[kv]_proj\.[kv]_bias)"
)

#: Tensors that compute keys and values.
_MADE = re.compile(r"self_attn\.[kv]_(proj|norm)\.")


def describe_unread(decoder: Decoder, left: Tensors) -> tuple[Scales, tuple[str, ...]]:
    """Return the scales of keys and values among the tensors `left`, and notes about the others.

    Raises CheckpointError for a tensor that must not be left out.
    """
    scales: dict[tuple[int, str], CanonicalTensor] = {}
    kinds: dict[str, list[str]] = {}
    for name, tensor in left.items():
        match = _LAYER.fullmatch(name)
        layer, rest = (-1, "") if match is None else (int(match["layer"]), match["rest"])
        if 0 <= layer < len(decoder.layers) and rest in NAMES:
            scales |= {(layer, part): tensor for part in NAMES[rest]}
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
    return scales, tuple(notes)


def _borrowed(attention: Cached | None, rest: str) -> bool:
    """Whether a tensor computes keys or values in a layer that reads those of another layer."""
    borrows = isinstance(attention, SelfAttention) and attention.borrows
    return borrows and _MADE.match(rest) is not None


def _unknown(decoder: Decoder, left: Tensors, name: str) -> CheckpointError:
    why = f"a {decoder.architecture} of {len(decoder.layers)} layers has no such tensor"
    more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
    return CheckpointError(
        f"{left[name].elements.record.file}: unknown tensor {name}{more}: {why}; "
        "leaving it out would change the model without a word"
    )
