"""The dialect of Intel's auto-round under its own method name; its layers are as in other dialects.

  data_type       layers
  mx_fp, nv_fp    mxfp4, mxfp8 and nvfp4 as in compressed-tensors
  fp8             `X.weight` F8 with `X.weight_scale`, or with `X.weight_scale_inv` for tiles

The blocks in `block_name_to_quantize` are quantized; `extra_config` has the exceptions for layers,
by name or regular expression. Integers packed for GPTQ and AWQ are not supported. Source:
auto-round 0.16, export/export_to_autoround/{export_to_nvfp_mx,export_to_fp8}.py,
inference/convert_model.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import UNSTATED, CanonicalTensor
from mxc.compiler.checkpoints.dialects import compressed_tensors, deepseek
from mxc.compiler.checkpoints.files.safetensors import CONFIG
from mxc.compiler.checkpoints.files.tensors import Checkpoint
from mxc.compiler.checkpoints.layers.modules import field
from mxc.compiler.checkpoints.layers.quantization import (
    ActivationFormat,
    CheckpointQuantization,
    Rule,
    Scheme,
    Syntax,
)
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe

METHOD = "auto-round"
METHODS = (METHOD, "auto_round", "intel/auto-round")

#: (prefix of data_type, bits) -> format.
_FORMATS = {
    ("mx_fp", 4): "mxfp4",
    ("mx_fp", 8): "mxfp8e4m3",
    ("nv_fp", 4): "nvfp4",
    ("fp8_e5m2", 8): "f8_e5m2",
    ("fp8", 8): "f8_e4m3",
    ("fp", 8): "f8_e4m3",
}
#: Smallest number of bits that means not quantized.
_WHOLE = 16
#: Characters that distinguish a regular expression from a name.
_SPECIAL = re.compile(r"[*^$|()\[\]?+\\]")


def quantization(raw: Mapping[str, Any], place: str = CONFIG) -> CheckpointQuantization:
    """Return the declarations of a `quantization_config` of method auto-round.

    Raises CheckpointError for unsupported data types, and for rotated activations.
    """
    place = f"quantization_config of {place}"
    for key in ("rotation_config", "hadamard_config", "transform_config"):
        if raw.get(key):
            raise CheckpointError(
                f"{place}: {key}: rotated activations are not supported; quantize the model "
                "without them"
            )
    extra: Mapping[str, Any] = field(raw, "extra_config", dict, place, {})
    rules: list[Rule] = []
    for name, changes in sorted(extra.items(), key=lambda item: _is_pattern(item[0])):
        there = f"{place}, extra_config.{name}"
        if not isinstance(changes, dict):
            raise CheckpointError(f"{there}: wanted an object, found {changes!r}")
        pattern = f"re:{name}" if _is_pattern(name) else name
        scheme = _scheme({**raw, **changes}, there)
        rules.append(Rule(pattern=pattern, syntax=Syntax.REGEX, scheme=scheme))
    whole = _scheme(raw, place)
    rules += [Rule(pattern=name, syntax=Syntax.HOLDER, scheme=whole) for name in _blocks(raw)]
    excluded = tuple(rule.pattern for rule in rules if rule.scheme is None)
    return CheckpointQuantization(method=METHOD, rules=tuple(rules), excluded=excluded)


def read(checkpoint: Checkpoint, declared: CheckpointQuantization) -> list[CanonicalTensor]:
    """Return every tensor. Raises CheckpointError if config and tensors contradict each other."""
    formats = {rule.scheme.format for rule in declared.rules if rule.scheme is not None}
    if formats & set(FORMATS):
        return compressed_tensors.read(checkpoint, declared)
    return deepseek.read(checkpoint, declared)


def _is_pattern(name: str) -> bool:
    return _SPECIAL.search(name) is not None


def _blocks(raw: Mapping[str, Any]) -> list[str]:
    """Return the names of the modules whose layers are quantized."""
    found = raw.get("block_name_to_quantize") or "model.layers"
    names = found.split(",") if isinstance(found, str) else found
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(
            f"quantization_config: wanted names for block_name_to_quantize, found {found!r}"
        )
    return [name.strip() for name in names]


def _scheme(raw: Mapping[str, Any], place: str) -> Scheme | None:
    """Return the scheme of layers; None if they are not quantized."""
    bits = raw.get("bits")
    if type(bits) is int and bits >= _WHOLE:
        return None
    format = _format(raw.get("data_type"), bits)
    if format is None:
        raise CheckpointError(
            f"{place}: data_type {raw.get('data_type')!r} of {bits!r} bits (packing_format "
            f"{raw.get('packing_format')!r}) is not supported; supported: mx_fp of 4 and 8 bits, "
            "nv_fp of 4, fp8"
        )
    group = raw.get("group_size")
    tile = isinstance(group, list) and len(group) == 2 and all(type(n) is int for n in group)
    wanted = None if format not in FORMATS else FORMATS[format].block
    if wanted is not None and group not in (None, wanted):
        raise CheckpointError(
            f"{place}: wanted group_size {wanted} for {format}, found {group!r}; fetch config.json "
            "again"
        )
    return Scheme(
        format=format,
        recipe=_recipe(raw.get("data_type")),
        activations=_activations(raw),
        block=(group[0], group[1]) if group and tile else None,
        stated_in=place,
    )


def _format(data_type: Any, bits: Any) -> str | None:
    name = str(data_type)
    found = ((begin, size) for begin, size in _FORMATS if name.startswith(begin) and size == bits)
    return next((_FORMATS[key] for key in found), None)


def _recipe(data_type: Any) -> str:
    last = str(data_type).rpartition("_")[2]
    return last if last in tuple(ScaleRecipe) else UNSTATED


def _activations(raw: Mapping[str, Any]) -> ActivationFormat | None:
    bits = raw.get("act_bits")
    if type(bits) is not int or bits >= _WHOLE:
        return None
    kind = raw.get("act_data_type") or raw.get("data_type")
    dynamic = raw.get("act_dynamic", True) is not False
    return ActivationFormat(
        format=_format(kind, bits) or f"{kind} of {bits} bits",
        recipe=_recipe(kind),
        dynamic=dynamic and "static" not in str(kind),
    )
