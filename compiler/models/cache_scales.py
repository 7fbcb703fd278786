"""Formats of the KV cache: which a model can have, and the scales of a checkpoint for fp8.

A checkpoint that is made for an fp8 (e4m3) cache has a scale for the keys and a scale for the
values of each layer: the cache holds key / scale. With `--kv-cache fp8` the scales are parameters
of the program. With any other cache they are unused, and a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.pages import PAGE_BLOCK, PAGE_FORMATS
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.layers.quantization import ActivationFormat
from mxc.compiler.models.blocks.self_attention import SCALES, SelfAttention
from mxc.compiler.models.decoder import Cached, Decoder
from mxc.compiler.models.options import Options
from mxc.dialects.pages import FP8
from mxc.errors import CheckpointError
from mxc.targets.matrix_unit import MatrixUnit

#: Names of scales in a layer -> the parts that they are for, "k", "v" or both: modelopt
#: (k_proj.k_scale), compressed-tensors (k_scale), AutoFP8 (kv_scale), Quark (k_proj.output_scale).
NAMES = {
    **{f"self_attn.{part}_scale": part for part in ("k", "v", "kv")},
    **{f"self_attn.{part}_proj.{part}_scale": part for part in "kv"},
    **{f"self_attn.{part}_proj.output_scale": part for part in "kv"},
    "self_attn.qkv_proj.output_scale": "kv",
}

#: Number of lanes that share the elements of a value in GPU kernels.
_LANES = 16

#: The format that the scales are for, as it is read from configs.
_FP8 = "f8_e4m3"

#: (layer, "k" or "v") -> its scale.
Scales = Mapping[tuple[int, str], CanonicalTensor]


@dataclass(frozen=True)
class CacheScale:
    """The scales by which keys or values of a layer are divided before fp8 rounding, f32 [V].

    There is one for each of V heads. `source`: the name of the checkpoint's tensor.
    """

    source: str
    values: NDArray[np.float32]


def settle_scales(
    decoder: Decoder, scales: Scales, declared: ActivationFormat | None, cache: str
) -> tuple[dict[str, CacheScale], tuple[str, ...]]:
    """Return the scales that the program reads, by parameter, and notes for the user.

    declared: the cache format that the config states. cache: the cache format of this program.
    Raises CheckpointError for a scale without its counterpart, or with invalid values.
    """
    for layer, part in scales:
        other = "v" if part == "k" else "k"
        if (layer, other) not in scales:
            tensor = scales[layer, part]
            raise CheckpointError(
                f"{tensor.place} is a scale of the key/value cache, and layer {layer} has none of "
                f"its {'values' if other == 'v' else 'keys'}; fetch the checkpoint again"
            )
    numbers = {
        (layer, part): _scale(tensor, decoder.attentions[layer])
        for (layer, part), tensor in scales.items()
    }
    if cache != FP8.name:
        return {}, _unused(decoder, numbers, declared, cache)
    ours = "keys and values are kept in fp8 (e4m3)"
    why = None
    if not scales:
        why = "the checkpoint has no scales of its key/value cache"
        if declared is not None and declared.dynamic:
            why = "the checkpoint's config says that they are computed as the model runs"
    elif not isinstance(decoder.heads, SelfAttention):
        why = "those of the checkpoint are of heads, whose keys and values are never made"
    elif declared is not None and declared.format != _FP8:
        why = f"those of the checkpoint are for {declared.format}"
    if why is not None:
        return {}, (f"{ours} with scales of 1: {why}",)
    layers = {layer for layer, _ in scales}
    every = sum(each is not None for each in decoder.attentions)
    others = "" if len(layers) == every else "; in the others they are 1"
    found = {
        f"model.layers.{layer}.{decoder.layers[layer].attention_name}.{name}": CacheScale(
            scales[layer, part].name, numbers[layer, part]
        )
        for layer in sorted(layers)
        if not _borrows(decoder.attentions[layer])
        for part, name in zip("kv", SCALES, strict=True)
    }
    return found, (f"{ours} with the checkpoint's scales, {_described(decoder, numbers)}{others}",)


def _borrows(attention: Cached | None) -> bool:
    """Whether a layer has no keys and values of its own, so that scales do not apply."""
    return not isinstance(attention, SelfAttention) or attention.borrows


def _unused(
    decoder: Decoder,
    numbers: Mapping[tuple[int, str], NDArray[np.float32]],
    declared: ActivationFormat | None,
    cache: str,
) -> tuple[str, ...]:
    """Return the notes for a cache that is not fp8."""
    if declared is None and not numbers:
        return ()
    what = "of a format that its config does not state" if declared is None else declared.format
    ours = f"the cache of this program is {cache}"
    if declared is None or (declared.format == _FP8 and not declared.dynamic):
        ours += "; --kv-cache fp8 follows the checkpoint"
    if not numbers:
        how = "computes its scales as it runs" if declared and declared.dynamic else "has no scales"
        return (f"the checkpoint's key/value cache is {what}, and {how}: {ours}",)
    return (
        f"the checkpoint's key/value cache is {what}, with scales {_described(decoder, numbers)}: "
        f"they are not used, {ours}",
    )


def _described(decoder: Decoder, numbers: Mapping[tuple[int, str], NDArray[np.float32]]) -> str:
    found = np.concatenate(list(numbers.values()))
    layers = len({layer for layer, _ in numbers})
    every = sum(each is not None for each in decoder.attentions)
    return f"from {found.min():.4g} to {found.max():.4g} for {layers} layers of {every}"


def _scale(tensor: CanonicalTensor, attention: Cached | None) -> NDArray[np.float32]:
    """Return the scales f32 [V] of a tensor with one positive number, or one for each head.

    Raises CheckpointError for other tensors.
    """
    numbers: NDArray[Any] = tensor.values().reshape(-1).astype(np.float32)
    heads = 1 if attention is None else attention.row.heads
    if numbers.size not in (1, heads) or not np.all((numbers > 0) & (numbers < np.inf)):
        raise CheckpointError(
            f"{tensor.place} is {tensor.elements.record.describe()}, {numbers[:4].tolist()}; a "
            "scale of the key/value cache is a positive number, or one for each of "
            f"{heads} heads; fetch the file again"
        )
    return np.broadcast_to(numbers, heads).copy()


def require_pages(
    decoder: Decoder, options: Options, unit: MatrixUnit | None, asked: str | None
) -> None:
    """Raise CheckpointError where keys and values cannot be in the requested page format."""
    if options.page_format is None:
        return
    depths = [kind.row.depth for kind in decoder.pages]
    if depth := next((each for each in depths if each % PAGE_BLOCK), None):
        raise CheckpointError(
            f"--kv-cache {asked}: keys have {depth} elements a head; wanted a multiple of "
            f"{PAGE_BLOCK}: leave it out, or give bf16 or f32"
        )
    # The elements of a value in one lane of a GPU must belong to one block.
    parts = [kind.row.depth for kind in decoder.pages if kind.row.entries > 1]
    uneven = next((each for each in parts if PAGE_BLOCK % (each // _LANES)), None)
    if uneven and PAGE_FORMATS[options.page_format] and unit is not None:
        raise CheckpointError(
            f"--kv-cache {asked}: values have {uneven} elements a head; kernels of GPUs read "
            "those of 32, 64, 128, 256 and 512: leave it out, or give bf16, f32 or fp8"
        )
