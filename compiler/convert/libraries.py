"""Plans of torchao's and of modelopt's safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, Convention
from mxc.compiler.checkpoints.dialects.modelopt import METHOD
from mxc.compiler.checkpoints.dialects.torchao import ELEMENTS
from mxc.compiler.checkpoints.source import Source
from mxc.compiler.convert.experts import apart, as_it_is, together
from mxc.compiler.convert.layers import config_of, kept_layers, unsaid, weights_of
from mxc.compiler.convert.plan import Bytes, Plan, Written, factors, number, part_of, refuse
from mxc.compiler.quantize.outputs import EIGHT_BITS, OUTPUTS
from mxc.dialects.formats import block_format
from mxc.dialects.packing import unpack_elements

#: dtype of config.json -> what torchao calls the dtype that a weight had.
_DTYPES = ("bfloat16", "float16", "float32")


def plan_torchao(source: Source) -> Plan:
    """`X._weight_qdata` and `X._weight_scale`, their classes in the metadata of the file.

    Raises CheckpointError for weights that torchao has no class for.
    """
    source = apart(together(source), split=True)
    weights = weights_of(source, OUTPUTS["torchao"])
    config = config_of(source, None)
    tensors: list[Written] = []
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
    return Plan(tensors=tensors, config=config, notes=unsaid(source, "torchao"), metadata=metadata)


def plan_modelopt(source: Source) -> Plan:
    """`X.weight`, `X.weight_scale` and `X.weight_scale_2` of nvfp4, and hf_quant_config.json.

    Raises CheckpointError for other formats, whose recipe modelopt would state wrongly, and for
    tensor scales whose reciprocal would be rounded.
    """
    source = apart(together(source), split=True)
    able = OUTPUTS[METHOD]
    weights = weights_of(source, able)
    tensors: list[Written] = []
    for tensor in source.tensors.values():
        if tensor.name not in weights:
            tensors.append(as_it_is(tensor, source))
            continue
        if tensor.tensor_scale is None or tensor.scales is None:
            raise refuse(tensor, METHOD, "it has no tensor scale")
        rows, depth = tensor.shape
        format = block_format(tensor.format)
        shapes = (rows, format.packed_bytes(depth)), (rows, format.blocks(depth))
        tensors.append(part_of(tensor.elements, tensor.name, "U8", shapes[0]))
        tensors.append(part_of(tensor.scales, f"{tensor.name}_scale", "F8_E4M3", shapes[1]))
        values = factors(tensor.tensor_scale, Convention.MULTIPLY, tensor, METHOD)
        tensors.append(number(f"{tensor.name}_scale_2", values, ()))
        if tensor.input_scale is not None:
            values = factors(tensor.input_scale, Convention.MULTIPLY, tensor, METHOD)
            module = tensor.name.removesuffix(".weight")
            tensors.append(number(f"{module}.input_scale", values, ()))
    if not weights:
        return Plan(tensors=tensors, config=config_of(source, None))
    static = all(tensor.input_scale is not None for tensor in weights.values())
    algorithm = "NVFP4" if static else "W4A16_NVFP4"
    beside = able.files(block_format("nvfp4"), kept_layers(source, weights), algorithm)
    declared = {
        "quant_method": METHOD,
        "quant_algo": algorithm,
        "ignore": kept_layers(source, weights),
    }
    notes = unsaid(source, METHOD) if not static else ()
    return Plan(tensors=tensors, config=config_of(source, declared), notes=notes, files=beside)


def _qdata_and_scale(tensor: CanonicalTensor, stem: str) -> list[Written]:
    format = block_format(tensor.format)
    rows, depth = tensor.shape
    if tensor.scales is None:
        raise AssertionError(f"{tensor.name} has no scales")
    kind = "F8_E4M3" if format.tensor_scale else "F8_E8M0"
    scale = part_of(tensor.scales, f"{stem}scale", kind, (rows, format.blocks(depth)))
    name = f"{stem}qdata"
    if format.element.bits == 6:
        size = rows * depth
        data = partial(_one_a_byte, tensor)
        return [
            Written(name=name, dtype="U8", shape=(rows, depth), bytes=size, data=data),
            scale,
        ]
    dtype = EIGHT_BITS.get(format.element.name, "U8")
    return [part_of(tensor.elements, name, dtype, (rows, format.packed_bytes(depth))), scale]


def _one_a_byte(tensor: CanonicalTensor) -> Iterator[Bytes]:
    for piece in tensor.pieces():
        yield unpack_elements(piece.elements, tensor.format).reshape(-1)


def _class(tensor: CanonicalTensor, config: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """What torchao's loader makes the tensor of: safetensors_utils.py, object_from_dict."""
    format = block_format(tensor.format)
    found = str(config.get("dtype", config.get("torch_dtype"))).removeprefix("torch.")
    original = {"_type": "torch.dtype", "_data": found if found in _DTYPES else _DTYPES[0]}
    data: dict[str, Any] = {"block_size": format.block, "orig_dtype": original}
    data |= {"act_quant_kwargs": None, "is_swizzled_scales": False}
    if format.tensor_scale:
        data["use_triton_kernel"] = False
        return {"_type": "NVFP4Tensor", "_data": data, "_tensor_data_names": names}
    element = next(name for name, known in ELEMENTS.items() if known == format.name)
    # Six bits have no dtype of torch: torchao has a word for each.
    six = format.element.bits == 6
    data["elem_dtype"] = element if six else {"_type": "torch.dtype", "_data": element}
    data["kernel_preference"] = {"_type": "KernelPreference", "_data": "EMULATED"}
    return {"_type": "MXTensor", "_data": data, "_tensor_data_names": names}
