"""The dialect of AMD Quark: `X.weight` with `X.weight_scale`, or in older files both in one tensor.

Elements: U8 [out, bytes] (fp4: two per byte, the even one low; fp6: four in three bytes) or
F8_E4M3/F8_E5M2 [out, in]. Scales: E8M0 U8 [out, in / 32], or floats per tensor or row. With `dtype:
"mx"` the scales are int8 binary logarithms, without the bias of E8M0, and six-bit elements are
packed differently. Before version 0.13 each block has its scale in front, `X.weight` U8 [out, in /
32 * 17 or 25]; since then `X.weight_scale` is separate. Source: amd-quark 0.13, torch/utils/pack.py
(Pack_fp4, Pack_fp6, Pack_mxfp4, Pack_mxfp6), torch/export/utils.py,
torch/export/nn/modules/realquantizer.py, torch/export/main_export/quant_config_parser.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mxc.compiler.checkpoints.canonical import codecs
from mxc.compiler.checkpoints.canonical.tensor import UNSTATED, CanonicalTensor, blocked
from mxc.compiler.checkpoints.files.safetensors import CONFIG
from mxc.compiler.checkpoints.files.tensors import Checkpoint, TensorRecord
from mxc.compiler.checkpoints.layers.modules import (
    Parts,
    field,
    matrix,
    names,
    part,
    read_layers,
    require,
    weight_name,
)
from mxc.compiler.checkpoints.layers.quantization import (
    ActivationFormat,
    CheckpointQuantization,
    Rule,
    Scheme,
    Syntax,
    excluding,
)
from mxc.compiler.checkpoints.layers.weights import mx_weight, scaled_weight
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe

METHOD = "quark"

#: Name of the packing of `dtype: "mx"`.
LOG2 = "logarithms"

#: Quark's dtypes -> formats in blocks of 32 with E8M0 scales.
_MX = {
    "fp4": "mxfp4",
    "fp6_e2m3": "mxfp6e2m3",
    "fp6_e3m2": "mxfp6e3m2",
    "fp8_e4m3": "mxfp8e4m3",
    "fp8_e5m2": "mxfp8e5m2",
    "int8": "mxint8",
}
#: (format, tile or None, packing).
Known = tuple[str, tuple[int, int] | None, str]

#: Quark's dtypes -> formats of elements with float scales.
_FLOAT_SCALED = {"fp8_e4m3": "f8_e4m3", "fp8_e5m2": "f8_e5m2", "int8": "i8"}


def quantization(raw: Mapping[str, Any], place: str = CONFIG) -> CheckpointQuantization:
    """Return the declarations of a `quantization_config` of method quark.

    As in Quark, exclusions precede the configs of layers, and the first of those that matches
    precedes the global config. Raises CheckpointError for unsupported data types.
    """
    place = f"quantization_config of {place}"
    excluded = names(raw, "exclude", place)
    rules = list(excluding(excluded, Syntax.GLOB))
    layers: Mapping[str, Any] = field(raw, "layer_quant_config", dict, place, {})
    for pattern, config in layers.items():
        there = f"{place}, layer_quant_config.{pattern}"
        rules.append(Rule(pattern=pattern, syntax=Syntax.GLOB, scheme=_scheme(config, there)))
    types: Mapping[str, Any] = field(raw, "layer_type_quant_config", dict, place, {})
    default = types.get("Linear", raw.get("global_quant_config"))
    caches: Mapping[str, Any] = field(raw, "kv_cache_quant_config", dict, place, {})
    # Older versions have it in the configs of layers.
    outputs = [_outputs(config, place) for config in (*caches.values(), *layers.values())]
    return CheckpointQuantization(
        method=METHOD,
        default=_scheme(default, f"{place}, global_quant_config"),
        rules=tuple(rules),
        excluded=tuple(excluded),
        cache=next((found for found in outputs if found is not None), None),
    )


def _outputs(config: Any, place: str) -> ActivationFormat | None:
    """Return the declared quantization of a layer's outputs, which Quark uses for the cache
    only."""
    outputs = config.get("output_tensors") if isinstance(config, dict) else None
    return _activations(outputs, f"{place}, output_tensors")


def read(checkpoint: Checkpoint, declared: CheckpointQuantization) -> list[CanonicalTensor]:
    """Return every tensor. Raises CheckpointError if config and tensors contradict each other."""
    return read_layers(checkpoint, declared, _mark, _weight)


def _mark(parts: Parts) -> str | None:
    if "weight_scale" in parts:
        return "weight_scale"
    # The older packing can be recognised by the dtype only.
    weight = parts.get("weight")
    return "weight" if weight is not None and weight.dtype == "U8" else None


def _weight(module: str, parts: Parts, scheme: Scheme) -> tuple[CanonicalTensor, Collection[str]]:
    weight, name = part(parts, "weight", module), weight_name(module)
    if scheme.packing == LOG2:
        return _log2(name, weight, parts.get("weight_scale"), scheme), ("weight", "weight_scale")
    scales = part(parts, "weight_scale", module)
    if zero := parts.get("weight_zero_point"):
        raise CheckpointError(
            f"{zero.file}: tensor {zero.name}: weights with zero points are not read; quantize "
            "them symmetrically"
        )
    used, static = ("weight", "weight_scale", "input_scale"), parts.get("input_scale")
    if scheme.format in FORMATS:
        return mx_weight(name, weight, scales, scheme, static), used
    return scaled_weight(name, weight, scales, scheme, static), used


def _log2(
    name: str, record: TensorRecord, scales: TensorRecord | None, scheme: Scheme
) -> CanonicalTensor:
    format = FORMATS[scheme.format]
    why = f"Quark's dtype mx of {format}"
    require(record, ("U8",), None, why)
    *lead, last = matrix(record, why)
    block_bytes = format.block_bytes + (scales is None)
    if last % block_bytes:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} is {record.describe()}; {why} has {block_bytes} "
            "bytes a block; fetch the config that belongs to it"
        )
    blocks = last // block_bytes
    if scales is not None:
        require(scales, ("U8", "I8"), (*lead, blocks), why)
    return blocked(
        name,
        (*lead, blocks * format.block),
        format,
        record,
        record if scales is None else scales,
        element_codec=codecs.quark_mx(format.element.bits, scale=scales is None),
        scale_codec=codecs.quark_log2(block_bytes if scales is None else 1),
        recipe=scheme.recipe,
        stated_in=scheme.stated_in,
    )


def _scheme(config: Any, place: str) -> Scheme | None:
    """Return the scheme of one QLayerConfig; None if it does not quantize the weight."""
    if config is None:
        return None
    if not isinstance(config, dict):
        raise CheckpointError(f"{place}: wanted an object, found {config!r}")
    weight = config.get("weight")
    if weight is None:
        return None
    if config.get("bias") is not None:
        raise CheckpointError(f"{place}: quantized biases are not read, found {config['bias']!r}")
    format, block, packing = _format(weight, f"{place}.weight")
    return Scheme(
        format=format,
        recipe=_recipe(weight, place),
        activations=_activations(config.get("input_tensors"), f"{place}.input_tensors"),
        block=block,
        packing=packing,
        stated_in=f"{place}.weight",
    )


def _activations(spec: Any, place: str) -> ActivationFormat | None:
    """Return the activations that a QTensorConfig declares; an unknown format is described in
    words."""
    if spec is None:
        return None
    if not isinstance(spec, dict):
        return ActivationFormat(format="two stages", dynamic=False)
    format = _known(spec)
    keys = ("dtype", "qscheme", "group_size", "scale_format")
    return ActivationFormat(
        format=_words(spec, keys) if format is None else format[0],
        recipe=_recipe(spec, place),
        dynamic=bool(field(spec, "is_dynamic", bool, place, False)),
    )


def _format(spec: Any, place: str) -> Known:
    """Return format, tile and packing of one QTensorConfig."""
    if not isinstance(spec, dict):
        # Two stages, as for fp4 whose scales are quantized again.
        raise CheckpointError(f"{place}: wanted one specification, found {spec!r}; not supported")
    if (found := _known(spec)) is not None:
        return found
    keys = ("qscheme", "group_size", "ch_axis", "block_size", "scale_format")
    raise CheckpointError(
        f"{place}: dtype {spec.get('dtype')!r} ({_words(spec, ('mx_element_dtype',))}), "
        f"{_words(spec, keys)} is not supported; supported: {', '.join(_MX)} per_group of "
        f"32 along the last axis with e8m0 scales, {', '.join(_FLOAT_SCALED)} per_tensor, "
        "per_channel or per_block, and mx of fp4 and fp6"
    )


def _words(spec: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return ", ".join(f"{key} {spec.get(key)!r}" for key in keys)


def _known(spec: Mapping[str, Any]) -> Known | None:
    """Return the same; None if the format is unknown."""
    dtype, group = spec.get("dtype"), spec.get("group_size")
    scheme, scale_format = spec.get("qscheme"), spec.get("scale_format")
    axis: Any = spec.get("ch_axis")
    tile: Any = spec.get("block_size")
    if dtype == "mx":
        element = spec.get("mx_element_dtype")
        if element in ("fp4", "fp6_e2m3", "fp6_e3m2") and group in (32, None) and axis in (-1, 1):
            return _MX[str(element)], None, LOG2
        return None
    if scheme == "per_group" and scale_format == "e8m0":
        known = dtype in _MX and group == 32 and axis in (-1, 1)
        return (_MX[str(dtype)], None, "") if known else None
    if dtype not in _FLOAT_SCALED or scale_format == "e8m0":
        return None
    format = _FLOAT_SCALED[str(dtype)]
    if scheme == "per_tensor" or (scheme == "per_channel" and axis in (None, 0)):
        return format, None, ""
    sizes = isinstance(tile, list) and len(tile) == 2 and all(type(n) is int for n in tile)
    if scheme == "per_block" and sizes and min(tile) > 0:
        return format, (tile[0], tile[1]), ""
    return None


def _recipe(spec: Mapping[str, Any], place: str) -> str:
    mode = field(spec, "scale_calculation_mode", str, place)
    if mode is None:
        return UNSTATED
    # Quark has even, floor and ceil; `mxc quantize` also writes the fourth recipe.
    if mode not in tuple(ScaleRecipe):
        raise CheckpointError(
            f"{place}: scale_calculation_mode {mode!r} is not supported; supported: "
            f"{', '.join(ScaleRecipe)}"
        )
    return str(mode)
