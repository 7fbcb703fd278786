"""Plans of the safetensors dialects gpt-oss, Quark and compressed-tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mxc.artifact.manifest import BLOCKS, SCALES
from mxc.compiler.checkpoints.canonical.tensor import UNSTATED, CanonicalTensor, Convention
from mxc.compiler.checkpoints.layers.quantization import ActivationFormat
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.convert.experts import as_it_is, split_experts, together
from mxc.compiler.convert.fp8 import (
    Fp8,
    compressed_group,
    fp8_of,
    fp8_parts,
    quark_layer,
    require_held,
    sayable,
)
from mxc.compiler.convert.plan import (
    ConversionPlan,
    ConvertedTensor,
    factors,
    number,
    part_of,
    refuse,
)
from mxc.compiler.quantize.outputs import EIGHT_BITS, OUTPUTS, OutputDialect
from mxc.formats.formats import FORMATS, block_format
from mxc.formats.recipes import ScaleRecipe, scale_recipe

#: Values of scale_calculation_mode; Quark itself computes scales with all of them but rceil.
_QUARK_RECIPES = tuple(ScaleRecipe)


def plan_gpt_oss(source: CheckpointSource) -> ConversionPlan:
    """Plan mxfp4 weights of experts as blocks and scales, everything else unchanged.

    Raises CheckpointError for any other weight in blocks.
    """
    source = together(source)
    tensors: list[ConvertedTensor] = []
    notes = undeclared_notes(source, "gpt-oss")
    for tensor in source.tensors.values():
        if tensor.is_plain:
            tensors.append(as_it_is(tensor, source))
            continue
        if tensor.format != "mxfp4" or len(tensor.shape) < 3 or tensor.scales is None:
            raise refuse(tensor, "gpt-oss", "only weights of all experts together are in mxfp4")
        elements, scales = tensor.elements, tensor.scales
        tensors.append(part_of(elements, tensor.name + BLOCKS, "U8", elements.shape))
        tensors.append(part_of(scales, tensor.name + SCALES, "U8", scales.shape))
    # The layers listed as not quantized are dense here, as they were in the source.
    blocks = any(not tensor.is_plain for tensor in source.tensors.values())
    declared = OUTPUTS["gpt-oss"].config(block_format("mxfp4"), None, []) if blocks else None
    return ConversionPlan(tensors=tensors, config=config_of(source, declared), notes=notes)


def plan_quark(source: CheckpointSource) -> ConversionPlan:
    """Plan `X.weight` and `X.weight_scale` of layers in MX formats and fp8, the rest unchanged.

    Raises CheckpointError for weights that Quark's layers cannot hold.
    """
    able = OUTPUTS["quark"]
    # Quark has gate and up of an expert of gpt-oss in one layer.
    gpt_oss = source.config.get("model_type") == "gpt_oss"
    source = split_experts(together(source), split=not gpt_oss)
    weights = weights_of(source, able)
    tensors: list[ConvertedTensor] = []
    for tensor in source.tensors.values():
        if tensor.name not in weights:
            tensors.append(as_it_is(tensor, source))
        elif (fp8 := fp8_of(tensor)) is not None:
            tensors += fp8_parts(tensor, fp8, vector=False)
        else:
            tensors += _elements_and_scales(tensor, tensor.name, "U8")
    declared = _quark_config(able, source, weights)
    notes = _unstated_activations(source, weights, "quark")
    return ConversionPlan(tensors=tensors, config=config_of(source, declared), notes=notes)


def plan_compressed_tensors(source: CheckpointSource) -> ConversionPlan:
    """Plan `X.weight_packed` (8 bits: `X.weight`) and scales of quantized layers, the rest
    unchanged.

    Raises CheckpointError for weights that its formats cannot hold, and for tensor scales whose
    reciprocal would be rounded.
    """
    able = OUTPUTS["compressed-tensors"]
    source = split_experts(together(source), split=True)
    weights = weights_of(source, able)
    tensors: list[ConvertedTensor] = []
    for tensor in source.tensors.values():
        if tensor.name not in weights:
            tensors.append(as_it_is(tensor, source))
            continue
        if (fp8 := fp8_of(tensor)) is not None:
            tensors += fp8_parts(tensor, fp8, vector=True)
            continue
        format = block_format(tensor.format)
        name = tensor.name if format.element.bits == 8 else f"{tensor.name}_packed"
        tensors += _elements_and_scales(tensor, name, "F8_E4M3" if format.tensor_scale else "U8")
        module = tensor.name.removesuffix(".weight")
        if format.tensor_scale:
            if tensor.tensor_scale is None:
                raise refuse(tensor, able.name, "it has no tensor scale")
            values = factors(tensor.tensor_scale, Convention.DIVIDE, tensor, able.name)
            tensors.append(number(f"{module}.weight_global_scale", values, (1,)))
        if tensor.input_scale is not None:
            values = factors(tensor.input_scale, Convention.DIVIDE, tensor, able.name)
            tensors.append(number(f"{module}.input_global_scale", values, (1,)))
    declared = _compressed_config(able, source, weights)
    notes = (*_unstated_recipes(weights), *_unstated_activations(source, weights, able.name))
    return ConversionPlan(tensors=tensors, config=config_of(source, declared), notes=notes)


def weights_of(source: CheckpointSource, able: OutputDialect) -> dict[str, CanonicalTensor]:
    """Return the quantized weights by name. Raises CheckpointError if `able` cannot hold one."""
    found = {}
    for tensor in source.tensors.values():
        if tensor.is_plain:
            continue
        fp8 = fp8_of(tensor)
        if fp8 is not None:
            require_held(tensor, fp8, able.name)
        elif tensor.format not in able.formats:
            raise refuse(tensor, able.name, f"it holds {', '.join(able.formats)}")
        if len(tensor.shape) != 2 or not tensor.name.endswith(".weight"):
            raise refuse(tensor, able.name, "it holds the weights of single linear layers")
        if tensor.input_scale is not None and fp8 is None and tensor.format != "nvfp4":
            raise refuse(tensor, able.name, "it has no place for the scale of its inputs")
        found[tensor.name] = tensor
    return found


def _elements_and_scales(
    tensor: CanonicalTensor, name: str, scale_dtype: str
) -> list[ConvertedTensor]:
    format = FORMATS[tensor.format]
    rows, depth = tensor.shape
    if tensor.scales is None:
        raise AssertionError(f"{tensor.name} has no scales")
    dtype = EIGHT_BITS.get(format.element.name, "U8")
    blocks = (rows, format.blocks(depth))
    return [
        part_of(tensor.elements, name, dtype, (rows, format.packed_bytes(depth))),
        part_of(tensor.scales, f"{tensor.name}_scale", scale_dtype, blocks),
    ]


def kept_layers(source: CheckpointSource, weights: Mapping[str, CanonicalTensor]) -> list[str]:
    """Return the layers with an unquantized matrix, which have to be excluded in the config."""
    return [
        tensor.name.removesuffix(".weight")
        for tensor in source.tensors.values()
        if tensor.name not in weights and tensor.name.endswith(".weight") and len(tensor.shape) == 2
    ]


def _quark_config(
    able: OutputDialect, source: CheckpointSource, weights: Mapping[str, CanonicalTensor]
) -> dict[str, Any] | None:
    if not weights:
        return None

    def layer(tensor: CanonicalTensor) -> dict[str, Any]:
        activations = _declared_activations(source, tensor)
        if (fp8 := fp8_of(tensor)) is not None:
            return quark_layer(fp8, activations)
        known = None if tensor.recipe not in _QUARK_RECIPES else scale_recipe(tensor.recipe)
        made = able.config(block_format(tensor.format), known, [])["global_quant_config"]
        if activations is not None:
            mode = None if activations.recipe == UNSTATED else scale_recipe(activations.recipe)
            inputs = able.config(block_format(activations.format), mode, [])
            made["input_tensors"] = {**inputs["global_quant_config"]["weight"], "is_dynamic": True}
        result: dict[str, Any] = made
        return result

    def key(tensor: CanonicalTensor) -> tuple[object, ...]:
        return tensor.format, tensor.recipe, fp8_of(tensor), _declared_activations(source, tensor)

    common = Counter(key(tensor) for tensor in weights.values()).most_common(1)[0][0]
    declared = able.config(block_format("mxfp4"), None, kept_layers(source, weights))
    first = next(tensor for tensor in weights.values() if key(tensor) == common)
    declared["global_quant_config"] = layer(first)
    for name, tensor in weights.items():
        if key(tensor) != common:
            declared["layer_quant_config"][name.removesuffix(".weight")] = layer(tensor)
    return declared


def _compressed_config(
    able: OutputDialect, source: CheckpointSource, weights: Mapping[str, CanonicalTensor]
) -> dict[str, Any] | None:
    groups: dict[tuple[str, Fp8 | None, ActivationFormat | None], list[str]] = {}
    for name, tensor in weights.items():
        key = tensor.format, fp8_of(tensor), _declared_activations(source, tensor)
        groups.setdefault(key, []).append(name.removesuffix(".weight"))
    made = [_compressed_group(able, *key) for key in groups]
    if not made:
        return None
    if len(made) > 1:
        for group, modules in zip(made, groups.values(), strict=True):
            group["targets"] = modules
    declared = able.config(block_format("mxfp4"), None, kept_layers(source, weights))
    declared["format"] = made[0]["format"] if len(made) == 1 else "mixed-precision"
    declared["config_groups"] = {f"group_{index}": group for index, group in enumerate(made)}
    return declared


def _compressed_group(
    able: OutputDialect, format: str, fp8: Fp8 | None, activations: ActivationFormat | None
) -> dict[str, Any]:
    if fp8 is not None:
        return compressed_group(fp8, activations)
    made = able.config(block_format(format), None, [])["config_groups"]["group_0"]
    if activations is not None:
        inputs = able.config(block_format(activations.format), None, [])
        arguments = inputs["config_groups"]["group_0"]["weights"]
        dynamic = True if activations.dynamic else "local"
        made["input_activations"] = {**arguments, "dynamic": dynamic}
    group: dict[str, Any] = made
    return group


def _declared_activations(
    source: CheckpointSource, tensor: CanonicalTensor
) -> ActivationFormat | None:
    """Return the activations of a weight if the output can declare them, else None."""
    activations = source.quantization.activations(tensor.name.removesuffix(".weight"))
    if activations is None or (fp8 := fp8_of(tensor)) is None:
        known = activations is not None and _sayable(activations)
        return activations if known else None
    return activations if sayable(fp8, activations) else None


def _sayable(activations: ActivationFormat) -> bool:
    known = activations.recipe in (UNSTATED, *_QUARK_RECIPES)
    return activations.format in FORMATS and known


def config_of(source: CheckpointSource, declared: dict[str, Any] | None) -> dict[str, Any]:
    """Return config.json of the source with the quantization_config `declared`, or without one."""
    config = {k: v for k, v in source.config.items() if k != "quantization_config"}
    if declared is not None:
        config["quantization_config"] = declared
    return config


def _unstated_recipes(weights: Mapping[str, CanonicalTensor]) -> tuple[str, ...]:
    lost = {tensor.recipe for tensor in weights.values()} - {UNSTATED}
    if not lost:
        return ()
    return (f"the output has no word for the recipe of the scales: {', '.join(sorted(lost))}",)


def _unstated_activations(
    source: CheckpointSource, weights: Mapping[str, CanonicalTensor], dialect: str
) -> tuple[str, ...]:
    found: dict[ActivationFormat, None] = {}
    for name, tensor in weights.items():
        activations = source.quantization.activations(name.removesuffix(".weight"))
        if activations is not None and _declared_activations(source, tensor) is None:
            found[activations] = None
    return tuple(
        f"{dialect} does not say what the source says of activations: {each.format}, "
        f"recipe {each.recipe}"
        for each in found
    )


def undeclared_notes(source: CheckpointSource, dialect: str) -> tuple[str, ...]:
    """Return notes on recipes and activations, which the dialect cannot declare."""
    default = source.quantization.default
    notes = []
    recipes = {t.recipe for t in source.tensors.values() if t.block is not None} - {UNSTATED}
    if recipes:
        notes.append(f"{dialect} has no word for the recipe: {', '.join(sorted(recipes))}")
    if default is not None and default.activations is not None:
        notes.append(f"{dialect} has no word for activations: {default.activations.format}")
    return tuple(notes)
