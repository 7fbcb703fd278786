"""The dialect of compressed-tensors (llm-compressor): mxfp4, mxfp6, mxfp8, nvfp4, fp8, integers.

Elements: `X.weight_packed` U8 [out, bytes] (fp4: two per byte, the even one low; fp6 e2m3: four in
three bytes) or I32 [out, words] (integers of 4 or 8 bits, the first one low) with `X.weight_shape`;
or `X.weight` F8_E4M3 or I8 [out, in]. Scales: `X.weight_scale`, E8M0 U8 [out, in / 32], floats, or
E4M3 [out, in / 16]; the last are divided by `X.weight_global_scale` F32 [1]. The format is stated
at the top of the config, in each of its groups, or follows from the arguments. Source:
compressed-tensors 0.20, compressors/{mxfp4,mxfp6,mxfp8,nvfp4,pack_quantized}/base.py,
utils/match.py, quantization/quant_config.py, quantization/quant_scheme.py (presets).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, Convention
from mxc.compiler.checkpoints.files.safetensors import CONFIG
from mxc.compiler.checkpoints.files.tensors import DTYPES, Checkpoint, TensorRecord, read_bytes
from mxc.compiler.checkpoints.layers.modules import (
    Parts,
    field,
    names,
    part,
    read_layers,
    require,
)
from mxc.compiler.checkpoints.layers.quantization import (
    ActivationFormat,
    CheckpointQuantization,
    Rule,
    Scheme,
    Syntax,
    excluding,
)
from mxc.compiler.checkpoints.layers.weights import (
    integer_weight,
    mx_weight,
    nvfp4_weight,
    scaled_weight,
)
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS

METHOD = "compressed-tensors"

#: Formats of the config -> formats of weights.
PACKED: Mapping[str, tuple[str, ...]] = {
    "mxfp4-pack-quantized": ("mxfp4",),
    "mxfp6-pack-quantized": ("mxfp6e2m3",),
    "mxfp8-quantized": ("mxfp8e4m3",),
    "nvfp4-pack-quantized": ("nvfp4",),
    "float-quantized": ("f8_e4m3",),
    "naive-quantized": ("f8_e4m3", "i8"),
    "int-quantized": ("i8",),
    "pack-quantized": ("int4", "i8"),
}
#: Formats of the config that do not determine that of a single group.
_GENERAL = ("mixed-precision", "dense", "fakequant", None)

#: Formats of integers, by their bits.
_INTEGERS = {4: "int4", 8: "i8"}

#: (num_bits, group_size) -> format of a group of floats.
_BY_ARGUMENTS = {(4, 32): "mxfp4", (6, 32): "mxfp6e2m3", (8, 32): "mxfp8e4m3", (4, 16): "nvfp4"}

#: Schemes of the library that a group may name instead of writing one out: (bits, group size) of
#: weights.
_PRESETS = {
    "NVFP4A16": (4, 16), "NVFP4": (4, 16), "MXFP4A16": (4, 32), "MXFP4": (4, 32),
    "MXFP6A16": (6, 32), "MXFP8A16": (8, 32), "MXFP8": (8, 32),
}  # fmt: skip


def quantization(raw: Mapping[str, Any], place: str = CONFIG) -> CheckpointQuantization:
    """Return the declarations of a `quantization_config` of method compressed-tensors.

    As in compressed-tensors, `ignore` precedes the groups. Of the groups an exact name precedes a
    regular expression, and that precedes a class of layers; regular expressions are tried in
    alphabetical order. Raises CheckpointError for unsupported formats.
    """
    place = f"quantization_config of {place}"
    _require_no_transforms(raw, place)
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
    regular.sort(key=lambda rule: rule.pattern)
    ignored = [p for p in excluded if not re.fullmatch(r"[A-Z]\w*", p)]
    return CheckpointQuantization(
        method=METHOD,
        default=default,
        rules=(*excluding(ignored, Syntax.REGEX), *exact, *regular),
        excluded=tuple(excluded),
        cache=_activations(raw.get("kv_cache_scheme"), f"{place}, kv_cache_scheme"),
    )


def _require_no_transforms(raw: Mapping[str, Any], place: str) -> None:
    """Raise CheckpointError for transforms of activations, and for sparse weights."""
    transforms: Mapping[str, Any] = field(raw, "transform_config", dict, place, {})
    schemes: Mapping[str, Any] = field(transforms, "config_groups", dict, place, {})
    for name, scheme in schemes.items():
        applied = scheme.get("apply", []) if isinstance(scheme, dict) else [scheme]
        for each in applied:
            location = each.get("location") if isinstance(each, dict) else each
            # A transform of a weight is already applied to the stored weight.
            if location not in ("weight_input", "weight_output"):
                raise CheckpointError(
                    f"{place}, transform_config.{name}: transforms of activations (location "
                    f"{location!r}) are not supported; quantize the model without them"
                )
    sparsity: Mapping[str, Any] = field(raw, "sparsity_config", dict, place, {})
    if sparsity.get("format", "dense") != "dense":
        raise CheckpointError(
            f"{place}, sparsity_config: format {sparsity['format']!r} is not supported; supported: "
            "dense"
        )


def read(checkpoint: Checkpoint, declared: CheckpointQuantization) -> list[CanonicalTensor]:
    """Return every tensor. Raises CheckpointError if config and tensors contradict each other."""
    return read_layers(checkpoint, declared, _mark, _weight)


def _mark(parts: Parts) -> str | None:
    return next((mark for mark in ("weight_packed", "weight_scale") if mark in parts), None)


def _weight(module: str, parts: Parts, scheme: Scheme) -> tuple[CanonicalTensor, Collection[str]]:
    name = f"{module}.weight"
    for refused in ("weight_zero_point", "weight_g_idx"):
        if found := parts.get(refused):
            raise CheckpointError(
                f"{found.file}: tensor {found.name}: weights with zero points or reordered groups "
                "are not read; quantize them symmetrically"
            )
    scales = part(parts, "weight_scale", module)
    if scheme.format in _INTEGERS.values() and "weight" not in parts:
        packed, size = part(parts, "weight_packed", module), part(parts, "weight_shape", module)
        made = integer_weight(name, packed, scales, _shape(size, packed), scheme)
        return made, ("weight_packed", "weight_scale", "weight_shape")
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
    scaled = scaled_weight(name, weight, scales, scheme, parts.get("input_scale"))
    return scaled, (stored, "weight_scale", "input_scale")


def _shape(record: TensorRecord, packed: TensorRecord) -> tuple[int, ...]:
    """Return `weight_shape` of packed integers. Raises CheckpointError if it contradicts them."""
    require(record, ("I64", "I32"), (len(packed.shape),), "the shape of packed integers")
    numbers = read_bytes(record, 0, record.bytes).view(DTYPES[record.dtype])
    shape = tuple(int(number) for number in numbers)
    if len(shape) < 2 or shape[:-1] != packed.shape[:-1] or shape[-1] <= 0:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} says {list(shape)}, {packed.name} is "
            f"{packed.describe()}; fetch the file again"
        )
    return shape


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
    found = _known(weights, f"{place}.weights")
    if found is None:
        raise CheckpointError(
            f"{place}.weights: {_describe(weights)} is not supported; supported: floats of 4, 6 or "
            "8 bits in groups of 32 with uint8 scales, of 4 bits in groups of 16, fp8 by tensor, "
            "channel, group or block, and integers of 4 or 8 bits by channel or group, symmetric"
        )
    format, block = found
    if told in PACKED and format not in PACKED[told]:
        raise CheckpointError(
            f"{place}: format {told!r} contradicts the arguments of its weights, which are "
            f"{format}; fetch config.json again"
        )
    return Scheme(
        format=format,
        activations=_activations(group.get("input_activations"), f"{place}.input_activations"),
        block=block,
        stated_in=place,
    )


def _activations(arguments: Any, place: str) -> ActivationFormat | None:
    """Return the activations that QuantizationArgs declare; an unknown format is described in
    words."""
    if arguments is None:
        return None
    found = _known(arguments, place)
    dynamic = arguments.get("dynamic", False) is not False
    format = _describe(arguments) if found is None else found[0]
    return ActivationFormat(format=format, dynamic=dynamic)


def _describe(arguments: Mapping[str, Any]) -> str:
    keys = ("num_bits", "type", "strategy", "group_size", "scale_dtype", "symmetric")
    return ", ".join(f"{key} {arguments[key]!r}" for key in keys if key in arguments)


def _known(arguments: Any, place: str) -> tuple[str, tuple[int, int] | None] | None:
    """Return (format, block or None) of QuantizationArgs; None if the format is unknown."""
    if not isinstance(arguments, dict):
        raise CheckpointError(f"{place}: wanted an object, found {arguments!r}")
    bits: Any = arguments.get("num_bits")
    group: Any = arguments.get("group_size")
    kind, strategy = arguments.get("type", "int"), arguments.get("strategy")
    scale_dtype = str(arguments.get("scale_dtype")).removeprefix("torch.")
    if arguments.get("symmetric", True) is not True:
        return None
    sized = type(group) is int and group > 0
    of_group = sized and strategy in ("group", None)
    if kind == "int" and bits in _INTEGERS:
        whole = strategy in ("channel", "tensor", "token", None) and not sized
        block = (1, group) if of_group else None
        return (_INTEGERS[bits], block) if whole or of_group else None
    if kind != "float":
        return None
    format = _BY_ARGUMENTS.get((bits, group)) if of_group or strategy == "tensor_group" else None
    e8m0 = scale_dtype in ("uint8", "float8_e8m0fnu", "None")
    if format is not None and (e8m0 or format == "nvfp4"):
        return format, None
    if bits != 8:
        return None
    if strategy in ("tensor", "channel", "token", "attn_head"):
        return "f8_e4m3", None
    if of_group:
        return "f8_e4m3", (1, group)
    tile: Any = arguments.get("block_structure")
    if strategy == "block" and _is_tile(tile):
        return "f8_e4m3", (tile[0], tile[1])
    return None


def _is_tile(tile: Any) -> bool:
    return isinstance(tile, list) and len(tile) == 2 and all(type(n) is int and n > 0 for n in tile)
