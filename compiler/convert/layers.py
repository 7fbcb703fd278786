"""Plans of the dialects in safetensors that are written: gpt-oss, Quark, compressed-tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from mxc.compiler.checkpoints.canonical.tensor import UNSTATED, CanonicalTensor, Convention
from mxc.compiler.checkpoints.layers.quantisation import Activations
from mxc.compiler.checkpoints.source import Source
from mxc.compiler.convert.experts import apart, as_it_is, together
from mxc.compiler.convert.plan import Plan, Written, factors, number, part_of, refuse
from mxc.compiler.quantize.outputs import EIGHT_BITS, OUTPUTS, Output
from mxc.dialects.formats import FORMATS, block_format
from mxc.dialects.manifest import BLOCKS, SCALES
from mxc.dialects.recipes import ScaleRecipe, scale_recipe

#: What scale_calculation_mode may say; Quark itself makes scales by all of them but rceil.
_QUARK_RECIPES = tuple(ScaleRecipe)


def plan_gpt_oss(source: Source) -> Plan:
    """Weights of experts in mxfp4 as blocks and scales, everything else as it is.

    Raises CheckpointError for any other weight in blocks.
    """
    source = together(source)
    tensors: list[Written] = []
    notes = unsaid(source, "gpt-oss")
    for tensor in source.tensors.values():
        if _is_plain(tensor):
            tensors.append(as_it_is(tensor, source))
            continue
        if tensor.format != "mxfp4" or len(tensor.shape) < 3 or tensor.scales is None:
            raise refuse(tensor, "gpt-oss", "only weights of all experts together are in mxfp4")
        elements, scales = tensor.elements, tensor.scales
        tensors.append(part_of(elements, tensor.name + BLOCKS, "U8", elements.shape))
        tensors.append(part_of(scales, tensor.name + SCALES, "U8", scales.shape))
    # Everything that the list names is dense here: it was so in the source.
    blocks = any(not _is_plain(tensor) for tensor in source.tensors.values())
    declared = OUTPUTS["gpt-oss"].config(block_format("mxfp4"), None, []) if blocks else None
    return Plan(tensors=tensors, config=config_of(source, declared), notes=notes)


def plan_quark(source: Source) -> Plan:
    """`X.weight` and `X.weight_scale` of the layers in MX formats, the rest as it is.

    Raises CheckpointError for weights that Quark's layers cannot hold.
    """
    able = OUTPUTS["quark"]
    # Of an expert Quark has gate and up of gpt-oss in one layer.
    gpt_oss = source.config.get("model_type") == "gpt_oss"
    source = apart(together(source), split=not gpt_oss)
    weights = weights_of(source, able)
    tensors: list[Written] = []
    for tensor in source.tensors.values():
        if tensor.name not in weights:
            tensors.append(as_it_is(tensor, source))
            continue
        tensors += _elements_and_scales(tensor, tensor.name, "U8")
    common = _most_common(weights, _with_recipe)
    declared = _quark_config(able, source, weights, common)
    notes = _activations_unsaid(source, "quark")
    return Plan(tensors=tensors, config=config_of(source, declared), notes=notes)


def plan_compressed_tensors(source: Source) -> Plan:
    """`X.weight_packed` (8 bits: `X.weight`) and scales of MX and nvfp4 layers, the rest as it is.

    Raises CheckpointError for weights that its formats cannot hold, and for tensor scales whose
    reciprocal would be rounded.
    """
    able = OUTPUTS["compressed-tensors"]
    source = apart(together(source), split=True)
    weights = weights_of(source, able)
    tensors: list[Written] = []
    for tensor in source.tensors.values():
        if tensor.name not in weights:
            tensors.append(as_it_is(tensor, source))
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
    notes = (*_recipes_unsaid(weights), *_activations_unsaid(source, able.name))
    return Plan(tensors=tensors, config=config_of(source, declared), notes=notes)


def weights_of(source: Source, able: Output) -> dict[str, CanonicalTensor]:
    """The weights in blocks by name. Raises CheckpointError for one that `able` cannot hold."""
    found = {}
    for tensor in source.tensors.values():
        if _is_plain(tensor):
            continue
        if tensor.format not in able.formats:
            raise refuse(tensor, able.name, f"it holds {', '.join(able.formats)}")
        if len(tensor.shape) != 2 or not tensor.name.endswith(".weight"):
            raise refuse(tensor, able.name, "it holds the weights of single linear layers")
        if tensor.input_scale is not None and tensor.format != "nvfp4":
            raise refuse(tensor, able.name, "it has no place for the scale of its inputs")
        found[tensor.name] = tensor
    return found


def _is_plain(tensor: CanonicalTensor) -> bool:
    return tensor.scales is None and tensor.tensor_scale is None


def _elements_and_scales(tensor: CanonicalTensor, name: str, scale_dtype: str) -> list[Written]:
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


def _with_recipe(tensor: CanonicalTensor) -> tuple[str, str]:
    return tensor.format, tensor.recipe


def _most_common(
    weights: Mapping[str, CanonicalTensor], key: Callable[[CanonicalTensor], tuple[str, str]]
) -> tuple[str, str] | None:
    counted = Counter(key(tensor) for tensor in weights.values()).most_common(1)
    return counted[0][0] if counted else None


def kept_layers(source: Source, weights: Mapping[str, CanonicalTensor]) -> list[str]:
    """Layers whose matrix stays as it is: excluded, so that nobody expects scales there."""
    return [
        tensor.name.removesuffix(".weight")
        for tensor in source.tensors.values()
        if tensor.name not in weights and tensor.name.endswith(".weight") and len(tensor.shape) == 2
    ]


def _quark_config(
    able: Output,
    source: Source,
    weights: Mapping[str, CanonicalTensor],
    common: tuple[str, str] | None,
) -> dict[str, Any] | None:
    if common is None:
        return None

    def layer(format: str, recipe: str, activations: Activations | None) -> dict[str, Any]:
        known = None if recipe not in _QUARK_RECIPES else scale_recipe(recipe)
        made = able.config(block_format(format), known, [])["global_quant_config"]
        if activations is not None and _sayable(activations):
            mode = None if activations.recipe == UNSTATED else scale_recipe(activations.recipe)
            inputs = able.config(block_format(activations.format), mode, [])
            made["input_tensors"] = {**inputs["global_quant_config"]["weight"], "is_dynamic": True}
        result: dict[str, Any] = made
        return result

    declared = able.config(block_format(common[0]), None, kept_layers(source, weights))
    of_common = [n for n, t in weights.items() if _with_recipe(t) == common]
    first = _activations(source, of_common[0])
    declared["global_quant_config"] = layer(*common, first)
    for name, tensor in weights.items():
        activations = _activations(source, name)
        if _with_recipe(tensor) != common or activations != first:
            module = name.removesuffix(".weight")
            config = layer(tensor.format, tensor.recipe, activations)
            declared["layer_quant_config"][module] = config
    return declared


def _compressed_config(
    able: Output, source: Source, weights: Mapping[str, CanonicalTensor]
) -> dict[str, Any] | None:
    groups: dict[tuple[str, Activations | None], list[str]] = {}
    for name, tensor in weights.items():
        activations = _activations(source, name)
        if activations is not None and not _sayable(activations):
            activations = None
        groups.setdefault((tensor.format, activations), []).append(name.removesuffix(".weight"))
    declared: dict[str, Any] | None = None
    for index, ((format, activations), modules) in enumerate(groups.items()):
        made = able.config(block_format(format), None, kept_layers(source, weights))
        group = made["config_groups"]["group_0"]
        if activations is not None:
            inputs = able.config(block_format(activations.format), None, [])
            arguments = inputs["config_groups"]["group_0"]["weights"]
            dynamic = True if activations.dynamic else "local"
            group["input_activations"] = {**arguments, "dynamic": dynamic}
        if len(groups) > 1:
            group["targets"] = modules
        if declared is None:
            declared = made
        else:
            declared["format"] = "mixed-precision"
        declared["config_groups"][f"group_{index}"] = group
    return declared


def _activations(source: Source, name: str) -> Activations | None:
    return source.quantisation.activations(name.removesuffix(".weight"))


def _sayable(activations: Activations) -> bool:
    known = activations.recipe in (UNSTATED, *_QUARK_RECIPES)
    return activations.format in FORMATS and known


def config_of(source: Source, declared: dict[str, Any] | None) -> dict[str, Any]:
    """config.json of the source with what `declared` says of quantisation, or without a word."""
    config = {k: v for k, v in source.config.items() if k != "quantization_config"}
    if declared is not None:
        config["quantization_config"] = declared
    return config


def _recipes_unsaid(weights: Mapping[str, CanonicalTensor]) -> tuple[str, ...]:
    lost = {tensor.recipe for tensor in weights.values()} - {UNSTATED}
    if not lost:
        return ()
    return (f"the output has no word for the recipe of the scales: {', '.join(sorted(lost))}",)


def _activations_unsaid(source: Source, dialect: str) -> tuple[str, ...]:
    default = source.quantisation.default
    activations = None if default is None else default.activations
    if activations is None or _sayable(activations):
        return ()
    return (
        f"{dialect} does not say what the source says of activations: {activations.format}, "
        f"recipe {activations.recipe}",
    )


def unsaid(source: Source, dialect: str) -> tuple[str, ...]:
    """What a dialect without recipes and activations leaves out."""
    default = source.quantisation.default
    notes = []
    recipes = {t.recipe for t in source.tensors.values() if t.block is not None} - {UNSTATED}
    if recipes:
        notes.append(f"{dialect} has no word for the recipe: {', '.join(sorted(recipes))}")
    if default is not None and default.activations is not None:
        notes.append(f"{dialect} has no word for activations: {default.activations.format}")
    return tuple(notes)
