"""Shared code of the dialects with one set of tensors per layer: layers, their parts, their checks.

`model.layers.0.mlp.down_proj.weight_scale` is the part `weight_scale` of the layer
`model.layers.0.mlp.down_proj`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, plain
from mxc.compiler.checkpoints.files.tensors import Checkpoint, TensorRecord
from mxc.compiler.checkpoints.layers.experts import STACKED, as_weight
from mxc.compiler.checkpoints.layers.quantization import CheckpointQuantization, Scheme
from mxc.errors import CheckpointError

#: Dtypes of unquantized numbers.
FLOATS = ("BF16", "F16", "F32", "F64")

#: Name of a part of experts that are stored in one tensor.
_STACKED_PART = re.compile(
    rf"(?P<module>{STACKED.pattern})_(?P<part>weight_scale(_2)?|input_scale)"
)

#: Suffixes of names of layers that a declaration for all linear layers does not include:
#: embeddings, norms, routers of experts, convolutions.
_NOT_LINEAR = ("embed_tokens", "embeddings", "norm", "gate", "router", "conv", "conv1d", "wte")
#: `model_type` -> suffixes of names of linear layers that are plain in published checkpoints,
#: although their config neither lists nor excludes them.
_PLAIN = {
    "kimi_k3": (
        *("attn_res_proj", "attention_res_proj", "mlp_res_proj"),
        *("routed_expert_down_proj", "routed_expert_up_proj"),
    ),
}

Parts = Mapping[str, TensorRecord]


def split(checkpoint: Checkpoint) -> dict[str, dict[str, TensorRecord]]:
    """Return the tensors of a checkpoint by layer and part; a name without a dot is a part of "".

    Experts in one tensor with scales are a layer of the tensor's name, and the tensor is its part
    `weight`: `X.experts.down_proj_weight_scale` is the part `weight_scale` of
    `X.experts.down_proj`.
    """
    layers: dict[str, dict[str, TensorRecord]] = {}
    for name, record in checkpoint.tensors.items():
        module, _, part = name.rpartition(".")
        if stacked := _STACKED_PART.fullmatch(name):
            module, part = stacked["module"], stacked["part"]
            if weight := checkpoint.tensors.get(module):
                layers.setdefault(module, {})["weight"] = weight
        elif STACKED.fullmatch(name) and f"{name}_weight_scale" in checkpoint.tensors:
            continue
        layers.setdefault(module, {})[part] = record
    return layers


def read_layers(
    checkpoint: Checkpoint,
    quantization: CheckpointQuantization,
    quantized: Callable[[Parts], str | None],
    build: Callable[[str, Parts, Scheme], tuple[CanonicalTensor, Collection[str]]],
    *,
    unlisted: bool = False,
) -> list[CanonicalTensor]:
    """Return every tensor of a checkpoint; `build` makes the weight of a quantized layer.

    - `quantized(parts)`: the part that identifies a quantized layer, None for other layers.
    - `build(module, parts, scheme)`: the weight and the names of the parts that it consists of; the
      other parts become plain tensors.
    - `unlisted`: the config does not list excluded layers; weights of floats without scales are
      taken as excluded.

    Raises CheckpointError if config and tensors contradict each other.
    """
    tensors: list[CanonicalTensor] = []
    plain_ends = _NOT_LINEAR + _PLAIN.get(str(checkpoint.config.get("model_type")), ())
    for module, parts in split(checkpoint).items():
        scheme = quantization.scheme(module)
        used: Collection[str] = ()
        if (mark := quantized(parts)) is not None:
            if scheme is None:
                record = parts[mark]
                raise CheckpointError(
                    f"{record.file}: tensor {record.name} says that {module} is quantized, the "
                    f"config of {quantization.method} excludes it; fetch the config that belongs "
                    "to these weights"
                )
            weight, used = build(module, parts, scheme)
            tensors.append(weight)
        elif scheme is not None:
            _require_plain(module, parts, scheme, ("",) if unlisted else plain_ends)
        tensors += [plain(record) for part, record in parts.items() if part not in used]
    return [as_weight(tensor, checkpoint.config) for tensor in tensors]


def _require_plain(module: str, parts: Parts, scheme: Scheme, ends: tuple[str, ...]) -> None:
    """Raise CheckpointError for a layer without scales for which a scheme is declared, if it is
    linear; `ends`: suffixes of names of layers that may be plain all the same."""
    weight = parts.get("weight")
    if weight is None or len(weight.shape) < 2:
        return
    last = module.rpartition(".")[2]
    if last.endswith(ends) and weight.dtype in FLOATS:
        return
    raise CheckpointError(
        f"{scheme.stated_in or 'the config'} says that {module} is {scheme.format}; in "
        f"{weight.file} tensor {weight.name} is {weight.describe()} without scales; fetch the "
        "config that belongs to these weights, or exclude the layer there"
    )


def weight_name(module: str) -> str:
    """Return the name of the weight of a layer; experts in one tensor have no suffix `.weight`."""
    return module if STACKED.fullmatch(module) else f"{module}.weight"


def part(parts: Parts, name: str, module: str) -> TensorRecord:
    """Return a required part. Raises CheckpointError, which names the layer's file, if it is
    missing."""
    if name in parts:
        return parts[name]
    file = next(iter(parts.values())).file
    raise CheckpointError(
        f"{file}: {module} has {', '.join(sorted(parts))}, wanted {name} too; fetch the files again"
    )


def require(
    record: TensorRecord, dtypes: tuple[str, ...], shape: tuple[int, ...] | None, why: str
) -> None:
    """Raise CheckpointError unless a tensor has one of `dtypes` and `shape`; `why` is for the
    message."""
    if record.dtype in dtypes and (shape is None or record.shape == shape):
        return
    wanted = " or ".join(dtypes) + ("" if shape is None else f" {list(shape)}")
    raise CheckpointError(
        f"{record.file}: tensor {record.name} is {record.describe()}; {why} wants {wanted}; "
        "fetch the config that belongs to these weights"
    )


def matrix(record: TensorRecord, why: str) -> tuple[int, ...]:
    """Return the shape of a tensor of rank two or more. Raises CheckpointError for others."""
    if len(record.shape) < 2 or 0 in record.shape:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} is {record.describe()}; {why} wants rows and "
            "columns, none of them 0; fetch the file again"
        )
    return record.shape


def field(raw: Mapping[str, Any], key: str, kind: type, place: str, default: Any = None) -> Any:
    """Return a field of a config: of type `kind`, or `default` if it is absent or null.

    Raises CheckpointError for another type.
    """
    value = raw.get(key)
    if value is None:
        return default
    if type(value) is not kind:
        raise CheckpointError(
            f"{place}: wanted {kind.__name__} for {key}, found {value!r}; fetch config.json again"
        )
    return value


def names(raw: Mapping[str, Any], key: str, place: str) -> list[str]:
    """Return a list of names in a config; [] if it is absent or null."""
    value: list[Any] = field(raw, key, list, place, [])
    if not all(isinstance(name, str) for name in value):
        raise CheckpointError(
            f"{place}: wanted a list of names for {key}, found {value!r}; fetch config.json again"
        )
    return value
