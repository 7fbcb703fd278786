"""fp8 weights with float scales: the granularity of scales, and the dialects that support it.

  tensor   one number        channel  one per row
  group    one for N elements of a row        block  one for a tile of rows and columns

Elements and scales are copied with their dtypes: no value changes. Source: compressed-tensors 0.20
quantization/quant_args.py; amd-quark 0.13 torch/quantization/config/config.py; nvidia-modelopt 0.47
torch/export/quant_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, Convention
from mxc.compiler.checkpoints.layers.modules import FLOATS
from mxc.compiler.checkpoints.layers.quantization import ActivationFormat
from mxc.compiler.convert.plan import ConvertedTensor, factors, number, part_of, refuse

#: Formats of weights -> Quark's names of the elements.
ELEMENTS = {"f8_e4m3": "fp8_e4m3", "f8_e5m2": "fp8_e5m2"}


@dataclass(frozen=True)
class Fp8:
    """An fp8 format: elements (a key of ELEMENTS), granularity of scales, and tile of groups and
    blocks."""

    elements: str
    strategy: str
    tile: tuple[int, int] | None = None


#: Dialect -> elements -> strategies that it supports.
HOLDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "compressed-tensors": {"f8_e4m3": ("tensor", "channel", "group", "block")},
    "quark": {"f8_e4m3": ("tensor", "channel"), "f8_e5m2": ("tensor", "channel")},
    "modelopt": {"f8_e4m3": ("tensor", "channel")},
}


def fp8_of(tensor: CanonicalTensor) -> Fp8 | None:
    """Return the fp8 format of a weight; None for weights that are not fp8 with float scales."""
    if tensor.format not in ELEMENTS:
        return None
    if tensor.scales is None or tensor.block is None:
        return None if tensor.tensor_scale is None else Fp8(tensor.format, "tensor")
    if tensor.scales.dtype not in FLOATS or tensor.tensor_scale is not None:
        return None
    rows, columns = tensor.block
    if rows > 1:
        return Fp8(tensor.format, "block", tensor.block)
    channel = columns >= tensor.shape[-1]
    return Fp8(tensor.format, *(("channel",) if channel else ("group", tensor.block)))


def require_held(tensor: CanonicalTensor, found: Fp8, dialect: str) -> None:
    """Raise CheckpointError if a dialect cannot hold an fp8 weight."""
    able = HOLDS.get(dialect, {})
    if not able:
        raise refuse(tensor, dialect, "it has no fp8 with float scales")
    if found.elements not in able:
        raise refuse(tensor, dialect, f"its fp8 is {', '.join(able)}")
    if found.strategy not in able[found.elements]:
        held = ", ".join(able[found.elements])
        raise refuse(
            tensor, dialect, f"of fp8 it has scales a {held}; this one's a {found.strategy}"
        )


def fp8_parts(tensor: CanonicalTensor, found: Fp8, *, vector: bool) -> list[ConvertedTensor]:
    """Return `X.weight`, `X.weight_scale` and `X.input_scale`.

    `vector`: a single number has shape [1], and scales of rows [out, 1]; otherwise [] and [out].
    """
    one = (1,) if vector else ()
    parts = [part_of(tensor.elements, tensor.name, tensor.dtype, tensor.shape)]
    name = f"{tensor.name}_scale"
    if tensor.scales is None:
        if tensor.tensor_scale is None:
            raise AssertionError(f"{tensor.name} has no scales")
        values = factors(tensor.tensor_scale, Convention.MULTIPLY, tensor, "fp8")
        parts.append(number(name, values, one))
    else:
        scales = tensor.scales
        shape = scales.shape
        if found.strategy == "channel":
            shape = (tensor.shape[0], *one)
        parts.append(part_of(scales, name, scales.dtype, shape))
    if tensor.input_scale is not None:
        values = factors(tensor.input_scale, Convention.MULTIPLY, tensor, "fp8")
        parts.append(number(f"{tensor.name.removesuffix('.weight')}.input_scale", values, one))
    return parts


def sayable(found: Fp8, activations: ActivationFormat) -> bool:
    """Return whether activations have the same fp8 elements as the weight; others cannot be
    declared."""
    return activations.format == found.elements


def compressed_group(found: Fp8, activations: ActivationFormat | None) -> dict[str, Any]:
    """Return a group of compressed-tensors' config_groups, for all linear layers."""
    arguments = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    weights = {**arguments, "strategy": found.strategy}
    if found.strategy == "block" and found.tile is not None:
        weights["block_structure"] = list(found.tile)
    if found.strategy == "group" and found.tile is not None:
        weights["group_size"] = found.tile[1]
    inputs = None
    if activations is not None and not activations.dynamic:
        inputs = {**arguments, "strategy": "tensor"}
    elif activations is not None:
        inputs = {**arguments, "strategy": "token", "dynamic": True}
        if found.strategy == "block" and found.tile is not None:
            inputs |= {"strategy": "group", "group_size": found.tile[1]}
    return {"targets": ["Linear"], "format": "float-quantized", "weights": weights,
            "input_activations": inputs, "output_activations": None}  # fmt: skip


def quark_layer(found: Fp8, activations: ActivationFormat | None) -> dict[str, Any]:
    """Return Quark's config of a layer."""

    def spec(strategy: str, *, dynamic: bool) -> dict[str, Any]:
        return {
            "dtype": ELEMENTS[found.elements],
            "is_dynamic": dynamic,
            "qscheme": f"per_{strategy}",
            "ch_axis": 0 if strategy == "channel" else None,
            "group_size": None,
            "symmetric": True,
            "round_method": "half_even",
            "scale_type": "float",
            "scale_format": None,
            "scale_calculation_mode": None,
            "mx_element_dtype": None,
            "observer_cls": f"Per{strategy.capitalize()}MinMaxObserver",
        }

    inputs = None if activations is None else spec("tensor", dynamic=activations.dynamic)
    return {
        "weight": spec(found.strategy, dynamic=False),
        "input_tensors": inputs,
        "output_tensors": None,
        "bias": None,
    }


def modelopt_algorithm(tensor: CanonicalTensor, found: Fp8) -> str:
    """Return modelopt's name of the algorithm. Raises CheckpointError if there is none."""
    if found.strategy == "channel" and tensor.input_scale is None:
        return "FP8_PER_CHANNEL_PER_TOKEN"
    if found.strategy == "tensor" and tensor.input_scale is not None:
        return "FP8"
    raise refuse(
        tensor,
        "modelopt",
        "its fp8 has a scale a tensor and static scales of inputs, or a scale a channel and none",
    )
