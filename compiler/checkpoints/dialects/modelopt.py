"""The dialect of NVIDIA's Model Optimizer: nvfp4, mxfp4, mxfp8 and fp8.

Elements: `X.weight` U8 [out, in / 2], the even element in the low nibble, or F8_E4M3 [out, in].
Scales: `X.weight_scale`, E8M0 U8 [out, in / 32], floats, or E4M3 [out, in / 16] or [out, in / 32];
the last are multiplied by `X.weight_scale_2` F32 [] (compressed-tensors stores a divisor). The
quantization is declared in hf_quant_config.json, and in newer exports also in config.json. Source:
nvidia-modelopt 0.47, torch/export/{quant_utils,convert_hf_config}.py,
torch/quantization/qtensor/{nvfp4,mxfp4,mxfp8}_tensor.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import UNSTATED, CanonicalTensor, Convention
from mxc.compiler.checkpoints.files.safetensors import CONFIG, read_json
from mxc.compiler.checkpoints.files.tensors import Checkpoint
from mxc.compiler.checkpoints.layers.experts import is_transposed, transposed_part
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
from mxc.compiler.checkpoints.layers.weights import mx_weight, nvfp4_weight, scalar, scaled_weight
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe

METHOD = "modelopt"
QUANT_CONFIG = "hf_quant_config.json"

#: quant_algo -> (format of weights, format of activations, group sizes with the default first).
#: Algorithms without a name of their own are written in lower case
#: (modelopt's export/quant_utils.py, process_layer_quant_config).
_ALGORITHMS: Mapping[str, tuple[str, str | None, tuple[int, ...]]] = {
    "NVFP4": ("nvfp4", "nvfp4", (16, 32)),
    "W4A16_NVFP4": ("nvfp4", None, (16, 32)),
    "W4A8_NVFP4_FP8": ("nvfp4", "f8_e4m3", (32, 16)),
    "MXFP4": ("mxfp4", "mxfp4", (32,)),
    "W4A8_MXFP4_FP8": ("mxfp4", "f8_e4m3", (32,)),
    "MXFP8": ("mxfp8e4m3", "mxfp8e4m3", (32,)),
    "FP8": ("f8_e4m3", "f8_e4m3", ()),
    "FP8_PER_CHANNEL_PER_TOKEN": ("f8_e4m3", "f8_e4m3", ()),
    "FP8_PB_WO": ("f8_e4m3", None, (128,)),
}
#: Algorithms with scales of square tiles.
_TILED = ("FP8_PB_WO",)

#: kv_cache_quant_algo -> format, for the known ones.
_CACHES = {"FP8": "f8_e4m3", "NVFP4": "nvfp4", "INT8": "int8"}
#: Algorithms whose activation scales are computed at run time, not stored in the file.
_DYNAMIC = ("MXFP4", "MXFP8", "FP8_PER_CHANNEL_PER_TOKEN")


def quant_config(folder: Path) -> Mapping[str, Any] | None:
    """Return `quantization` of hf_quant_config.json; None if there is no such file."""
    path = folder / QUANT_CONFIG
    if not path.is_file():
        return None
    found: Mapping[str, Any] = field(read_json(path), "quantization", dict, str(path), {})
    return found


def quantization(
    beside: Mapping[str, Any] | None, inside: Mapping[str, Any] | None
) -> CheckpointQuantization:
    """Return the declarations of hf_quant_config.json (`beside`) and config.json (`inside`).

    Raises CheckpointError for unsupported algorithms, and if the two contradict each other.
    """
    first = _declared(beside, "exclude_modules", f"quantization of {QUANT_CONFIG}")
    # config.json has the list under the key that compressed-tensors uses.
    second = _declared(inside, "ignore", f"quantization_config of {CONFIG}")
    if first is None or second is None:
        found = first or second
        if found is None:
            raise CheckpointError(f"{CONFIG} and {QUANT_CONFIG} name no quant_algo")
        return found
    if _meaning(first) != _meaning(second):
        raise CheckpointError(
            f"{QUANT_CONFIG} says {_describe(first)}, quantization_config of {CONFIG} says "
            f"{_describe(second)}; fetch both again"
        )
    return first


def read(checkpoint: Checkpoint, declared: CheckpointQuantization) -> list[CanonicalTensor]:
    """Return every tensor. Raises CheckpointError if config and tensors contradict each other."""

    def weight(
        module: str, parts: Parts, scheme: Scheme
    ) -> tuple[CanonicalTensor, Collection[str]]:
        if scheme.format == "nvfp4" and is_transposed(module, checkpoint.config):
            return _transposed(module, parts, scheme)
        return _weight(module, parts, scheme)

    return read_layers(checkpoint, declared, _mark, weight)


def _mark(parts: Parts) -> str | None:
    return next((mark for mark in ("weight_scale_2", "weight_scale") if mark in parts), None)


def _weight(module: str, parts: Parts, scheme: Scheme) -> tuple[CanonicalTensor, Collection[str]]:
    name = weight_name(module)
    if found := parts.get("pre_quant_scale"):
        raise CheckpointError(
            f"{found.file}: tensor {found.name}: layers whose inputs are scaled (AWQ) are not read"
        )
    weight, scales = part(parts, "weight", module), part(parts, "weight_scale", module)
    static = parts.get("input_scale")
    if scheme.format == "nvfp4":
        factor = part(parts, "weight_scale_2", module)
        four = ("weight", "weight_scale", "weight_scale_2", "input_scale")
        return nvfp4_weight(name, weight, scales, factor, Convention.MULTIPLY, scheme, static), four
    if scheme.format.startswith("mx"):
        used = ("weight", "weight_scale", "input_scale")
        return mx_weight(name, weight, scales, scheme, static), used
    used = ("weight", "weight_scale", "input_scale")
    return scaled_weight(name, weight, scales, scheme, static), used


def _transposed(
    module: str, parts: Parts, scheme: Scheme
) -> tuple[CanonicalTensor, Collection[str]]:
    """Return experts stored as U8 [E, in / 2, out]: quantized along their inputs, then
    transposed."""
    format, why = FORMATS["nvfp4"], f"nvfp4 of {module}"
    weight, scales = part(parts, "weight", module), part(parts, "weight_scale", module)
    factor, static = part(parts, "weight_scale_2", module), parts.get("input_scale")
    experts, half, outputs = matrix(weight, why) if len(weight.shape) == 3 else (0, 0, 0)
    blocks = 2 * half // format.block
    require(weight, ("U8",), (experts, blocks * format.block // 2, outputs), why)
    require(scales, ("F8_E4M3",), (experts, blocks, outputs), f"{why} {list(weight.shape)}")
    shape = (experts, outputs, blocks)
    found = CanonicalTensor(
        name=weight_name(module),
        shape=(experts, outputs, 2 * half),
        format=format.name,
        elements=transposed_part(weight, (*shape, format.block_bytes), "U8"),
        scales=transposed_part(scales, shape, "U8"),
        block=(1, format.block),
        tensor_scale=scalar(factor),
        stated_in=scheme.stated_in,
        input_scale=None if static is None else scalar(static),
    )
    return found, ("weight", "weight_scale", "weight_scale_2", "input_scale")


def _declared(
    raw: Mapping[str, Any] | None, list_name: str, place: str
) -> CheckpointQuantization | None:
    if raw is None:
        return None
    algorithm = field(raw, "quant_algo", str, place)
    if algorithm is None:
        return None
    excluded = names(raw, list_name, place)
    rules = list(excluding(excluded, Syntax.GLOB))
    default = None
    if algorithm == "MIXED_PRECISION":
        layers: Mapping[str, Any] = field(raw, "quantized_layers", dict, place, {})
        for layer, config in layers.items():
            there = f"{place}, quantized_layers.{layer}"
            if not isinstance(config, dict):
                raise CheckpointError(f"{there}: wanted an object, found {config!r}")
            scheme = _scheme(config.get("quant_algo"), config.get("group_size"), there)
            rules.append(Rule(pattern=layer, syntax=Syntax.HOLDER, scheme=scheme))
    else:
        default = _scheme(algorithm, raw.get("group_size"), place)
    return CheckpointQuantization(
        method=METHOD,
        default=default,
        rules=tuple(rules),
        excluded=tuple(excluded),
        cache=_cache(raw, place),
    )


def _cache(raw: Mapping[str, Any], place: str) -> ActivationFormat | None:
    """Return the cache format from `kv_cache_quant_algo`, or `kv_cache_scheme` of config.json."""
    algorithm, scheme = field(raw, "kv_cache_quant_algo", str, place), raw.get("kv_cache_scheme")
    if isinstance(scheme, dict):
        kind = "FP" if scheme.get("type") == "float" else str(scheme.get("type")).upper()
        algorithm = f"{kind}{scheme.get('num_bits')}"
    elif algorithm is None and scheme is not None:
        algorithm = str(scheme)
    if algorithm is None:
        return None
    return ActivationFormat(format=_CACHES.get(algorithm.upper(), algorithm), dynamic=False)


def _scheme(found: Any, group_size: Any, place: str) -> Scheme:
    algorithm = found.upper() if isinstance(found, str) else found
    if algorithm not in _ALGORITHMS:
        raise CheckpointError(
            f"{place}: quant_algo {found!r} is not supported; supported: "
            f"{', '.join(_ALGORITHMS)}, MIXED_PRECISION"
        )
    format, inputs, groups = _ALGORITHMS[algorithm]
    # The library writes 0 if it finds no size.
    size = group_size or next(iter(groups), None)
    if groups and size not in groups:
        raise CheckpointError(
            f"{place}: {algorithm} wants group_size {' or '.join(map(str, groups))}, found "
            f"{group_size!r}; fetch the config again"
        )
    # The library has one recipe for E8M0 scales: qtensor/mxfp4_tensor.py, mxfp8_tensor.py.
    recipe = str(ScaleRecipe.RCEIL) if format.startswith("mx") else UNSTATED
    block = None if size is None else (size if algorithm in _TILED else 1, size)
    activations = None
    if inputs is not None:
        activations = ActivationFormat(
            format=inputs,
            recipe=recipe if inputs.startswith("mx") else UNSTATED,
            dynamic=algorithm in _DYNAMIC,
        )
    return Scheme(
        format=format,
        recipe=recipe,
        activations=activations,
        block=block,
        stated_in=place,
    )


def _meaning(declared: CheckpointQuantization) -> tuple[Any, ...]:
    def scheme(found: Scheme | None) -> tuple[Any, ...] | None:
        return None if found is None else (found.format, found.block)

    rules = {(rule.pattern, scheme(rule.scheme)) for rule in declared.rules}
    return scheme(declared.default), frozenset(rules)


def _describe(declared: CheckpointQuantization) -> str:
    default = "layers one by one" if declared.default is None else declared.default.format
    return f"{default} except {', '.join(declared.excluded) or 'nothing'}"
