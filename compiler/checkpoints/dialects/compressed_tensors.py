"""The dialect of compressed-tensors (llm-compressor): formats mxfp4, mxfp6, mxfp8, nvfp4 and fp8.

`X.weight_packed` U8 [out, bytes] (fp4: two a byte, the even one low; fp6 e2m3: four in three
bytes), or `X.weight` F8_E4M3 [out, in]; `X.weight_scale`: E8M0 U8 [out, in / 32], E4M3
[out, in / 16] with `X.weight_global_scale` F32 [1], which divides it, or floats.
The format stands at the top of the config, in each of its groups, or follows from the arguments.
Source: compressed-tensors 0.20, compressors/{mxfp4,mxfp6,mxfp8,nvfp4}/base.py, utils/match.py,
quantization/quant_config.py, quantization/quant_scheme.py (presets).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, Convention
from mxc.compiler.checkpoints.files.safetensors import CONFIG
from mxc.compiler.checkpoints.files.tensors import Checkpoint
from mxc.compiler.checkpoints.layers.modules import Parts, field, names, part, read_layers
from mxc.compiler.checkpoints.layers.quantisation import (
    Activations,
    Quantisation,
    Rule,
    Scheme,
    Syntax,
    excluding,
)
from mxc.compiler.checkpoints.layers.weights import mx_weight, nvfp4_weight, scaled_weight
from mxc.dialects.errors import CheckpointError
from mxc.dialects.formats import FORMATS

METHOD = "compressed-tensors"

#: Formats of the config -> formats of weights.
PACKED = {
    "mxfp4-pack-quantized": "mxfp4",
    "mxfp6-pack-quantized": "mxfp6e2m3",
    "mxfp8-quantized": "mxfp8e4m3",
    "nvfp4-pack-quantized": "nvfp4",
    "float-quantized": "f8_e4m3",
    "naive-quantized": "f8_e4m3",
}
#: Formats that say nothing of a single group.
_GENERAL = ("mixed-precision", "dense", "fakequant", None)

#: num_bits, group_size -> format of a group of floats.
_BY_ARGUMENTS = {(4, 32): "mxfp4", (6, 32): "mxfp6e2m3", (8, 32): "mxfp8e4m3", (4, 16): "nvfp4"}

#: Groups that name a scheme of the library instead of writing one out; their weights.
_PRESETS = {
    "NVFP4A16": (4, 16), "NVFP4": (4, 16), "MXFP4A16": (4, 32), "MXFP4": (4, 32),
    "MXFP6A16": (6, 32), "MXFP8A16": (8, 32), "MXFP8": (8, 32),
}  # fmt: skip


def quantisation(raw: Mapping[str, Any], place: str = CONFIG) -> Quantisation:
    """What `quantization_config` of method compressed-tensors says.

    `ignore` goes before the groups; of the groups an exact name goes before a regular expression,
    and that before a class of layers, as in compressed-tensors. Raises CheckpointError for
    formats that mxc does not read.
    """
    place = f"quantization_config of {place}"
    excluded = names(raw, "ignore", place)
    groups: Mapping[str, Any] = field(raw, "config_groups", dict, place, {})
    exact: list[Rule] = []
    regular: list[Rule] = []
    default: Scheme | None = None
    for group, config in groups.items():
        there = f"{place}, config_groups.{group}"
        if isinstance(config, list):
            config = _preset(group, config, there)
        if not isinstance(config, dict):
            raise CheckpointError(f"{there}: wanted an object, found {config!r}")
        scheme = _scheme(config, raw.get("format"), there)
        for target in names(config, "targets", there):
            rule = Rule(pattern=target, syntax=Syntax.REGEX, scheme=scheme)
            if target.startswith("re:"):
                regular.append(rule)
            elif re.fullmatch(r"[A-Z]\w*", target):
                default = scheme
            else:
                exact.append(rule)
    ignored = [p for p in excluded if not re.fullmatch(r"[A-Z]\w*", p)]
    return Quantisation(
        method=METHOD,
        default=default,
        rules=(*excluding(ignored, Syntax.REGEX), *exact, *regular),
        excluded=tuple(excluded),
    )


def read(checkpoint: Checkpoint, declared: Quantisation) -> list[CanonicalTensor]:
    """Every tensor. Raises CheckpointError where config and tensors contradict each other."""
    return read_layers(checkpoint, declared, _mark, _weight)


def _mark(parts: Parts) -> str | None:
    return next((mark for mark in ("weight_packed", "weight_scale") if mark in parts), None)


def _weight(module: str, parts: Parts, scheme: Scheme) -> tuple[CanonicalTensor, Collection[str]]:
    name = f"{module}.weight"
    for refused in ("weight_zero_point", "weight_g_idx"):
        if found := parts.get(refused):
            raise CheckpointError(
                f"{found.file}: tensor {found.name}: weights with zero points or reordered groups "
                "are not read; quantise them symmetrically"
            )
    scales = part(parts, "weight_scale", module)
    stored = "weight_packed" if scheme.format in FORMATS else "weight"
    if scheme.format == "mxfp8e4m3":
        stored = "weight"
    weight = part(parts, stored, module)
    if scheme.format == "nvfp4":
        used = (stored, "weight_scale", "weight_global_scale", "input_global_scale")
        factor = part(parts, "weight_global_scale", module)
        static = parts.get("input_global_scale")
        return nvfp4_weight(name, weight, scales, factor, Convention.DIVIDE, scheme, static), used
    if scheme.format in FORMATS:
        return mx_weight(name, weight, scales, scheme), (stored, "weight_scale")
    block = None
    if scheme.packing:
        rows, columns = map(int, scheme.packing.split("x"))
        block = (rows, columns)
    static = parts.get("input_scale")
    weight_ = scaled_weight(name, weight, scales, scheme, block, static)
    return weight_, (stored, "weight_scale", "input_scale")


def _preset(group: str, targets: list[Any], place: str) -> dict[str, Any]:
    if group not in _PRESETS:
        raise CheckpointError(
            f"{place}: preset {group!r} is not supported; supported: {', '.join(_PRESETS)}"
        )
    bits, size = _PRESETS[group]
    weights = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": size}
    inputs = None if group.endswith("A16") else dict(weights, dynamic=True)
    return {"targets": targets, "weights": weights, "input_activations": inputs}


def _scheme(group: Mapping[str, Any], general: Any, place: str) -> Scheme | None:
    weights = group.get("weights")
    if weights is None:
        return None
    own = group.get("format")
    told = own if own is not None else general
    if told not in (*PACKED, *_GENERAL):
        raise CheckpointError(
            f"{place}: format {told!r} is not supported; supported: {', '.join(PACKED)}"
        )
    format, packing = _arguments(weights, f"{place}.weights")
    if told in PACKED and PACKED[told] != format:
        raise CheckpointError(
            f"{place}: format {told!r} contradicts the arguments of its weights, which are "
            f"{format}; fetch config.json again"
        )
    inputs = group.get("input_activations")
    activations = None
    if inputs is not None:
        wanted, _ = _arguments(inputs, f"{place}.input_activations")
        dynamic = inputs.get("dynamic", False) is not False
        activations = Activations(format=wanted, dynamic=dynamic)
    return Scheme(format=format, activations=activations, packing=packing, stated_in=place)


def _arguments(arguments: Any, place: str) -> tuple[str, str]:
    """The format of QuantizationArgs, and the size of its tiles."""
    if not isinstance(arguments, dict):
        raise CheckpointError(f"{place}: wanted an object, found {arguments!r}")
    bits: Any = arguments.get("num_bits")
    group: Any = arguments.get("group_size")
    kind, strategy = arguments.get("type", "int"), arguments.get("strategy")
    symmetric = arguments.get("symmetric", True)
    scale_dtype = str(arguments.get("scale_dtype")).removeprefix("torch.")
    if kind == "float" and symmetric is True:
        grouped = strategy in ("group", "tensor_group", None)
        format = _BY_ARGUMENTS.get((bits, group)) if grouped else None
        e8m0 = scale_dtype in ("uint8", "float8_e8m0fnu", "None")
        if format is not None and (e8m0 or format == "nvfp4"):
            return format, ""
        if bits == 8 and strategy in ("tensor", "channel", "token"):
            return "f8_e4m3", ""
        if bits == 8 and strategy == "group" and isinstance(group, int) and group > 0:
            return "f8_e4m3", f"1x{group}"
        tile: Any = arguments.get("block_structure")
        if bits == 8 and strategy == "block" and _is_tile(tile):
            return "f8_e4m3", f"{tile[0]}x{tile[1]}"
    raise CheckpointError(
        f"{place}: num_bits {bits!r}, type {kind!r}, strategy {strategy!r}, group_size {group!r}, "
        f"scale_dtype {scale_dtype}, symmetric {symmetric!r} is not supported; supported: floats "
        "of 4, 6 or 8 bits in groups of 32 with uint8 scales, of 4 bits in groups of 16, and fp8 "
        "by tensor, channel, group or block"
    )


def _is_tile(tile: Any) -> bool:
    return isinstance(tile, list) and len(tile) == 2 and all(type(n) is int and n > 0 for n in tile)
