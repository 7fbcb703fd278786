"""Plans of the safetensors dialects of torchao and modelopt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, Convention
from mxc.compiler.checkpoints.dialects.modelopt import METHOD, QUANT_CONFIG
from mxc.compiler.checkpoints.dialects.torchao import ELEMENTS
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.convert.experts import as_it_is, split_experts, together
from mxc.compiler.convert.fp8 import fp8_of, fp8_parts, modelopt_algorithm
from mxc.compiler.convert.layers import config_of, kept_layers, undeclared_notes, weights_of
from mxc.compiler.convert.plan import (
    Bytes,
    ConversionPlan,
    ConvertedTensor,
    factors,
    number,
    part_of,
    refuse,
)
from mxc.compiler.quantize.outputs import EIGHT_BITS, OUTPUTS
from mxc.formats.formats import block_format
from mxc.formats.packing import unpack_elements

#: Values of `dtype` in config.json that torchao accepts as the original dtype of a weight.
_DTYPES = ("bfloat16", "float16", "float32")


def plan_torchao(source: CheckpointSource) -> ConversionPlan:
    """Plan `X._weight_qdata` and `X._weight_scale`, with their classes in the metadata of the file.

    Raises CheckpointError for weights without a torchao class.
    """
    source = split_experts(together(source), split=True)
    weights = weights_of(source, OUTPUTS["torchao"])
    config = config_of(source, None)
    tensors: list[ConvertedTensor] = []
    classes: dict[str, str] = {}
    for tensor in source.tensors.values():
        if tensor.name not in weights:
            tensors.append(as_it_is(tensor, source))
            classes[tensor.name] = json.dumps({"_type": "Tensor"})
            continue
        module, _, parameter = tensor.name.rpartition(".")
        stem, names = f"{module}._{parameter}_", ["qdata", "scale"]
        tensors += _qdata_and_scale(tensor, stem)
        if tensor.tensor_scale is not None:
            values = factors(tensor.tensor_scale, Convention.MULTIPLY, tensor, "torchao")
            tensors.append(number(f"{stem}per_tensor_scale", values, ()))
            names.insert(0, "per_tensor_scale")
        classes[tensor.name] = json.dumps(_class(tensor, config, names))
    metadata = {**classes, "tensor_names": json.dumps(list(classes))}
    return ConversionPlan(
        tensors=tensors, config=config, notes=undeclared_notes(source, "torchao"), metadata=metadata
    )


def plan_modelopt(source: CheckpointSource) -> ConversionPlan:
    """Plan `X.weight`, `X.weight_scale`, for nvfp4 `X.weight_scale_2`, and hf_quant_config.json.

    Raises CheckpointError for MX formats, whose recipe modelopt would declare wrongly, for fp8
    without an algorithm, and for tensor scales whose reciprocal would be rounded.
    """
    source = split_experts(together(source), split=True)
    able = OUTPUTS[METHOD]
    weights = weights_of(source, able)
    tensors: list[ConvertedTensor] = []
    algorithms: dict[str, str] = {}
    static = all(t.input_scale is not None for t in weights.values() if t.format == "nvfp4")
    for tensor in source.tensors.values():
        module = tensor.name.removesuffix(".weight")
        if tensor.name not in weights:
            tensors.append(as_it_is(tensor, source))
        elif (fp8 := fp8_of(tensor)) is not None:
            algorithms[module] = modelopt_algorithm(tensor, fp8)
            tensors += fp8_parts(tensor, fp8, vector=False)
        else:
            algorithms[module] = "NVFP4" if static else "W4A16_NVFP4"
            tensors += _modelopt_nvfp4(tensor, module)
    if not weights:
        return ConversionPlan(tensors=tensors, config=config_of(source, None))
    kept = kept_layers(source, weights)
    said: dict[str, Any] = {"quant_algo": next(iter(algorithms.values()))}
    if len(set(algorithms.values())) > 1:
        layers = {module: {"quant_algo": each} for module, each in algorithms.items()}
        said = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    if "nvfp4" in {tensor.format for tensor in weights.values()}:
        said["group_size"] = block_format("nvfp4").block
    beside = {**said, "kv_cache_quant_algo": None, "exclude_modules": kept}
    declared = {"quant_method": METHOD, **said, "ignore": kept}
    files = {QUANT_CONFIG: {"producer": {"name": "mxc"}, "quantization": beside}}
    notes = undeclared_notes(source, METHOD) if "W4A16_NVFP4" in algorithms.values() else ()
    return ConversionPlan(
        tensors=tensors, config=config_of(source, declared), notes=notes, files=files
    )


def _modelopt_nvfp4(tensor: CanonicalTensor, module: str) -> list[ConvertedTensor]:
    if tensor.tensor_scale is None or tensor.scales is None:
        raise refuse(tensor, METHOD, "it has no tensor scale")
    rows, depth = tensor.shape
    format = block_format(tensor.format)
    shapes = (rows, format.packed_bytes(depth)), (rows, format.blocks(depth))
    values = factors(tensor.tensor_scale, Convention.MULTIPLY, tensor, METHOD)
    found = [
        part_of(tensor.elements, tensor.name, "U8", shapes[0]),
        part_of(tensor.scales, f"{tensor.name}_scale", "F8_E4M3", shapes[1]),
        number(f"{tensor.name}_scale_2", values, ()),
    ]
    if tensor.input_scale is not None:
        values = factors(tensor.input_scale, Convention.MULTIPLY, tensor, METHOD)
        found.append(number(f"{module}.input_scale", values, ()))
    return found


def _qdata_and_scale(tensor: CanonicalTensor, stem: str) -> list[ConvertedTensor]:
    format = block_format(tensor.format)
    rows, depth = tensor.shape
    if tensor.scales is None:
        raise AssertionError(f"{tensor.name} has no scales")
    kind = "F8_E4M3" if format.tensor_scale else "F8_E8M0"
    scale = part_of(tensor.scales, f"{stem}scale", kind, (rows, format.blocks(depth)))
    name = f"{stem}qdata"
    if format.element.bits == 6:
        size = rows * depth
        read = partial(_one_a_byte, tensor)
        return [
            ConvertedTensor(
                name=name, dtype="U8", shape=(rows, depth), bytes=size, rows=rows, read=read
            ),
            scale,
        ]
    dtype = EIGHT_BITS.get(format.element.name, "U8")
    return [part_of(tensor.elements, name, dtype, (rows, format.packed_bytes(depth))), scale]


def _one_a_byte(tensor: CanonicalTensor, start: int, count: int) -> Bytes:
    return unpack_elements(tensor.elements.read(start, count), tensor.format)


def _class(tensor: CanonicalTensor, config: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the JSON from which torchao makes the tensor: safetensors_utils.py,
    object_from_dict."""
    format = block_format(tensor.format)
    found = str(config.get("dtype", config.get("torch_dtype"))).removeprefix("torch.")
    original = {"_type": "torch.dtype", "_data": found if found in _DTYPES else _DTYPES[0]}
    data: dict[str, Any] = {"block_size": format.block, "orig_dtype": original}
    data |= {"act_quant_kwargs": None, "is_swizzled_scales": False}
    if format.tensor_scale:
        data["use_triton_kernel"] = False
        return {"_type": "NVFP4Tensor", "_data": data, "_tensor_data_names": names}
    element = next(name for name, known in ELEMENTS.items() if known == format.name)
    # torch has no 6-bit dtypes: torchao names them by strings.
    six = format.element.bits == 6
    data["elem_dtype"] = element if six else {"_type": "torch.dtype", "_data": element}
    data["kernel_preference"] = {"_type": "KernelPreference", "_data": "EMULATED"}
    return {"_type": "MXTensor", "_data": data, "_tensor_data_names": names}
