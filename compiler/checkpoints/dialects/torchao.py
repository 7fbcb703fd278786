"""The dialect of torchao in safetensors: MXTensor, NVFP4Tensor, Float8Tensor and Int8Tensor.

A parameter `X.weight` is stored as `X._weight_qdata` and `X._weight_scale`; the metadata of the
file has a JSON text with its class and attributes under its name. MXTensor: U8 [out, in / 2] (the
even element low), U8 [out, in] (six bits per byte), F8_E4M3 or F8_E5M2, with scales F8_E8M0 [out,
in / 32]. NVFP4Tensor: scales F8_E4M3 [out, in / 16], multiplied by `_weight_per_tensor_scale`. The
scales of both may be swizzled. Source: torchao 0.18, prototype/safetensors, prototype/mx_formats.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from mxc.compiler.checkpoints.canonical.codecs import PLAIN, SIX_IN_EIGHT, SWIZZLED, Codec
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, TensorScale, blocked, plain
from mxc.compiler.checkpoints.files.tensors import Checkpoint, TensorRecord, read_bytes
from mxc.compiler.checkpoints.layers.modules import require
from mxc.compiler.checkpoints.layers.quantization import (
    ActivationFormat,
    CheckpointQuantization,
    Scheme,
)
from mxc.compiler.checkpoints.layers.weights import scaled_weight
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe

METHOD = "torchao"

#: elem_dtype of MXTensor -> format.
ELEMENTS = {
    "float4_e2m1fn_x2": "mxfp4",
    "fp6_e2m3": "mxfp6e2m3",
    "fp6_e3m2": "mxfp6e3m2",
    "float8_e4m3fn": "mxfp8e4m3",
    "float8_e5m2": "mxfp8e5m2",
}
_QDATA = {"mxfp8e4m3": ("F8_E4M3",), "mxfp8e5m2": ("F8_E5M2",)}
_TENSOR_NAMES = "tensor_names"

#: Classes with one element per byte and float scales -> format.
_SCALED = {"Float8Tensor": "f8_e4m3", "Int8Tensor": "i8"}
#: Known parts: of the weight, and of the quantization of activations.
_PARTS = ("qdata", "scale", "per_tensor_scale", "zero_point", "act_per_tensor_scale",
          "act_quant_scale", "act_quant_zero_point")  # fmt: skip


def recognises(checkpoint: Checkpoint) -> bool:
    """Return whether the metadata of the files describes tensors as torchao does."""
    if _TENSOR_NAMES not in checkpoint.metadata:
        return False
    return any('"_type"' in text for text in checkpoint.metadata.values())


def read(checkpoint: Checkpoint) -> tuple[list[CanonicalTensor], CheckpointQuantization]:
    """Return every tensor. Raises CheckpointError for unsupported classes or damaged metadata."""
    left = dict(checkpoint.tensors)
    tensors: list[CanonicalTensor] = []
    activations: ActivationFormat | None = None
    for name, text in checkpoint.metadata.items():
        if not text.startswith('{"_type"'):
            continue
        place = f"{checkpoint.folder}: metadata of {name}"
        kind, attributes = _parsed(text, place)
        if kind == "Tensor":
            continue
        module, _, parameter = name.rpartition(".")
        prefix = f"{module}._{parameter}_" if module else f"_{parameter}_"
        parts = {k.removeprefix(prefix): left.pop(k) for k in list(left) if k.startswith(prefix)}
        for wanted in ("qdata", "scale"):
            if wanted not in parts:
                raise CheckpointError(
                    f"{place} says {kind}; wanted tensor {prefix}{wanted}, which no file holds; "
                    "fetch the files again"
                )
        if kind == "MXTensor":
            tensors.append(_mx(name, parts, attributes, place))
        elif kind == "NVFP4Tensor":
            tensors.append(_nvfp4(name, parts, attributes, place))
        elif kind in _SCALED:
            tensors.append(_scaled(name, parts, attributes, _SCALED[kind], place))
        else:
            raise CheckpointError(
                f"{place}: {kind} is not supported; supported: MXTensor, NVFP4Tensor, "
                f"{', '.join(_SCALED)}"
            )
        _require_known(parts, place)
        activations = activations or _activations(attributes, kind)
    tensors += [plain(record) for record in left.values()]
    formats = {t.format for t in tensors if t.block is not None}
    default = None
    if len(formats) == 1:
        default = Scheme(
            format=formats.pop(), activations=activations, stated_in="the metadata of the tensors"
        )
    return tensors, CheckpointQuantization(method=METHOD, default=default)


def _parsed(text: str, place: str) -> tuple[str, Mapping[str, Any]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{place}: not JSON ({error}); fetch the file again") from error
    kind, data = value.get("_type"), value.get("_data", {})
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise CheckpointError(f"{place}: wanted a class and its attributes, found {text[:80]!r}")
    return kind, data


def _mx(
    name: str, parts: Mapping[str, TensorRecord], attributes: Mapping[str, Any], place: str
) -> CanonicalTensor:
    element = attributes.get("elem_dtype")
    if isinstance(element, dict):
        element = element.get("_data")
    if element not in ELEMENTS or attributes.get("block_size") != 32:
        raise CheckpointError(
            f"{place}: elem_dtype {element!r} in blocks of {attributes.get('block_size')!r} is not "
            f"supported; supported: {', '.join(ELEMENTS)} in blocks of 32"
        )
    format = FORMATS[ELEMENTS[element]]
    data, scales = parts["qdata"], parts["scale"]
    require(data, _QDATA.get(format.name, ("U8",)), None, format.name)
    require(scales, ("F8_E8M0",), None, format.name)
    width = 2 if format.element.bits == 4 else 1
    if not data.shape:
        raise CheckpointError(f"{place}: tensor {data.name} is one number; fetch the file again")
    shape = (*data.shape[:-1], data.shape[-1] * width)
    return blocked(
        name,
        shape,
        format,
        data,
        scales,
        element_codec=SIX_IN_EIGHT if format.element.bits == 6 else PLAIN,
        scale_codec=_scale_codec(attributes),
        stated_in=place,
    )


def _nvfp4(
    name: str, parts: Mapping[str, TensorRecord], attributes: Mapping[str, Any], place: str
) -> CanonicalTensor:
    format = FORMATS["nvfp4"]
    data, scales = parts["qdata"], parts["scale"]
    require(data, ("U8",), None, "nvfp4")
    require(scales, ("F8_E4M3",), None, "nvfp4")
    if attributes.get("block_size") != format.block or not data.shape:
        raise CheckpointError(
            f"{place}: blocks of {attributes.get('block_size')!r}, wanted {format.block}"
        )
    factors = []
    for part in ("per_tensor_scale", "act_per_tensor_scale"):
        record = parts.get(part)
        if record is not None:
            require(record, ("F32",), None, "a tensor scale")
            slices = math.prod(data.shape[:-2])
            if math.prod(record.shape) not in (1, slices):
                raise CheckpointError(
                    f"{record.file}: tensor {record.name} is {record.describe()}, wanted one "
                    f"number, or {slices}; fetch the file again"
                )
        factors.append(None if record is None else TensorScale(record=record))
    return blocked(
        name,
        (*data.shape[:-1], data.shape[-1] * 2),
        format,
        data,
        scales,
        scale_codec=_scale_codec(attributes),
        tensor_scale=factors[0],
        stated_in=place,
        input_scale=factors[1],
    )


def _scaled(
    name: str,
    parts: Mapping[str, TensorRecord],
    attributes: Mapping[str, Any],
    format: str,
    place: str,
) -> CanonicalTensor:
    """Return a weight [.., out, in] with a float scale per block of `block_size`."""
    data, scales, block = parts["qdata"], parts["scale"], attributes.get("block_size")
    if not isinstance(block, list) or len(block) != len(data.shape) or len(block) < 2:
        raise CheckpointError(
            f"{place}: wanted a block_size with a number for each of the dimensions "
            f"{list(data.shape)}, found {block!r}; fetch the file again"
        )
    if not all(type(size) is int and size > 0 for size in block):
        raise CheckpointError(f"{place}: wanted sizes for block_size, found {block!r}")
    if (zero := parts.get("zero_point")) is not None and read_bytes(zero, 0, zero.bytes).any():
        raise CheckpointError(
            f"{zero.file}: tensor {zero.name}: weights with zero points are not read; quantize "
            "them symmetrically"
        )
    whole = math.prod(scales.shape) == 1
    scheme = Scheme(format=format, block=None if whole else (block[-2], block[-1]), stated_in=place)
    return scaled_weight(name, data, scales, scheme)


def _require_known(parts: Mapping[str, TensorRecord], place: str) -> None:
    """Raise CheckpointError for an unknown part, which may change the weight or its input."""
    for name in parts.keys() - set(_PARTS):
        record = parts[name]
        raise CheckpointError(
            f"{record.file}: tensor {record.name}, which {place} has as a part, is not supported; "
            f"supported: {', '.join(_PARTS)}"
        )


def _scale_codec(attributes: Mapping[str, Any]) -> Codec:
    return SWIZZLED if attributes.get("is_swizzled_scales") is True else PLAIN


def _activations(attributes: Mapping[str, Any], kind: str) -> ActivationFormat | None:
    """Return the activations that the weight's attributes declare, or None."""
    arguments = attributes.get("act_quant_kwargs")
    if not isinstance(arguments, dict):
        return None
    data = arguments.get("_data")
    if not isinstance(data, dict):
        return None
    if kind == "NVFP4Tensor":
        return ActivationFormat(format="nvfp4")
    if kind in _SCALED:
        return ActivationFormat(format=_SCALED[kind])
    element = data.get("elem_dtype")
    element = element.get("_data") if isinstance(element, dict) else element
    mode = data.get("scaling_mode")
    mode = mode.get("_data") if isinstance(mode, dict) else mode
    if element not in ELEMENTS:
        return None
    recipe = str(mode).lower()
    known = recipe in tuple(ScaleRecipe)
    return ActivationFormat(format=ELEMENTS[element], recipe=recipe if known else "unstated")
