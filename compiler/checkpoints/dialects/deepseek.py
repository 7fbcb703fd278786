"""The dialect of DeepSeek: fp8 in tiles of 128 x 128, and experts in fp4.

`X.weight` F8_E4M3 [out, in] with one scale per tile, `X.weight_scale_inv` F32 (V3) or `X.scale`
F8_E8M0 (V4); despite its name the former is multiplied too. Experts of V4: `X.weight` I8 or U8
[out, in / 2], the even element in the low nibble, with `X.scale` F8_E8M0 [out, in / 32]. Source:
config.json (`quant_method: "fp8"`, `weight_block_size`, `scale_fmt`, `expert_dtype`) and
inference/kernel.py of the published models; transformers 5.23 integrations/finegrained_fp8.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.files.safetensors import CONFIG
from mxc.compiler.checkpoints.files.tensors import Checkpoint, TensorRecord
from mxc.compiler.checkpoints.layers.modules import FLOATS, Parts, field, names, read_layers
from mxc.compiler.checkpoints.layers.quantization import (
    ActivationFormat,
    CheckpointQuantization,
    Scheme,
    Syntax,
    excluding,
)
from mxc.compiler.checkpoints.layers.weights import mx_weight, scaled_weight
from mxc.errors import CheckpointError

METHOD = "fp8"

#: Names of the scales of a layer.
_SCALES = ("weight_scale_inv", "scale", "weight_scale")
_EXPERTS = ".experts."


def quantization(
    raw: Mapping[str, Any], config: Mapping[str, Any], place: str = CONFIG
) -> CheckpointQuantization:
    """Return the declarations of a `quantization_config` of method fp8 in the config.json
    `config`."""
    there = f"quantization_config of {place}"
    if field(raw, "fmt", str, there, "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise CheckpointError(f"{there}: fmt {raw['fmt']!r} is not supported; supported: e4m3")
    experts = config.get("expert_dtype", raw.get("expert_dtype"))
    if experts not in (None, "fp4", "fp8"):
        raise CheckpointError(
            f"{place}: expert_dtype {experts!r} is not supported; supported: fp4, fp8"
        )
    excluded = names(raw, "modules_to_not_convert", there) + names(raw, "ignored_layers", there)
    dynamic = field(raw, "activation_scheme", str, there, "dynamic") == "dynamic"
    scheme = Scheme(
        format="f8_e4m3",
        activations=ActivationFormat(format="f8_e4m3", dynamic=dynamic),
        block=_tile(raw.get("weight_block_size"), there),
        stated_in=there,
    )
    return CheckpointQuantization(
        method=METHOD,
        default=scheme,
        rules=excluding(excluded, Syntax.PREFIX),
        excluded=tuple(excluded),
    )


def read(
    checkpoint: Checkpoint, declared: CheckpointQuantization, expert_dtype: str | None = None
) -> list[CanonicalTensor]:
    """Return every tensor; `expert_dtype` is that of config.json.

    Raises CheckpointError if config and tensors contradict each other.
    """

    def weight(
        module: str, parts: Parts, scheme: Scheme
    ) -> tuple[CanonicalTensor, Collection[str]]:
        return _weight(module, parts, scheme, expert_dtype)

    # DeepSeek-V3 lists no excluded layers, although its head and routers are not quantized.
    unlisted = not declared.excluded
    return read_layers(checkpoint, declared, _mark, weight, unlisted=unlisted)


def _mark(parts: Parts) -> str | None:
    weight = parts.get("weight")
    if weight is None or weight.dtype in FLOATS:
        # Other layers, whose weights are floats, have parts called `scale` too.
        return None
    return next((mark for mark in _SCALES if mark in parts), None)


def _weight(
    module: str, parts: Parts, scheme: Scheme, expert_dtype: str | None
) -> tuple[CanonicalTensor, Collection[str]]:
    weight, name = parts["weight"], f"{module}.weight"
    found = [mark for mark in _SCALES if mark in parts]
    if len(found) > 1:
        raise CheckpointError(
            f"{weight.file}: {module} has {' and '.join(found)}; which one is meant? Fetch the "
            "file again"
        )
    scales = parts[found[0]]
    used = ("weight", found[0], "input_scale", "activation_scale")
    if weight.dtype in ("I8", "U8"):
        _require_fp4(module, weight, expert_dtype)
        return mx_weight(name, weight, scales, replace(scheme, format="mxfp4")), used
    if expert_dtype == "fp4" and _is_routed(module):
        raise CheckpointError(
            f"{CONFIG} says expert_dtype fp4; in {weight.file} tensor {weight.name} is "
            f"{weight.describe()}; fetch the config that belongs to these weights"
        )
    static = parts.get("input_scale", parts.get("activation_scale"))
    return scaled_weight(name, weight, scales, scheme, static), used


def _is_routed(module: str) -> bool:
    return _EXPERTS in module and "shared" not in module


def _require_fp4(module: str, weight: TensorRecord, expert_dtype: str | None) -> None:
    if expert_dtype != "fp4" or not _is_routed(module):
        raise CheckpointError(
            f"{weight.file}: tensor {weight.name} is {weight.describe()}, two fp4 a byte as only "
            f"the experts of a model with expert_dtype fp4 are; {CONFIG} says {expert_dtype!r}; "
            "fetch the config that belongs to these weights"
        )


def _tile(size: Any, place: str) -> tuple[int, int] | None:
    if size is None:
        return None
    if isinstance(size, list) and len(size) == 2 and all(type(n) is int and n > 0 for n in size):
        return size[0], size[1]
    raise CheckpointError(
        f"{place}: wanted two sizes for weight_block_size, found {size!r}; fetch config.json again"
    )
