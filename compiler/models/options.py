"""Options that shape the program of a model, checked against the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.artifact.pages import PAGE_FORMATS
from mxc.compiler.checkpoints.canonical.tensor import UNSTATED
from mxc.compiler.checkpoints.layers.quantization import ActivationFormat
from mxc.compiler.models.blocks.activations import FLOATS, MODES, MX, NVFP4
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.formats.recipes import ScaleRecipe, scale_recipe

#: Values of `--quantize-dense` -> the format and the default recipe of its scales, with which no
#: element saturates.
DENSE = {
    "mxfp8": ("mxfp8e4m3", ScaleRecipe.RCEIL),
    "mxint8": ("mxint8", ScaleRecipe.RCEIL),
}

#: Values of `--kv-cache` -> the float type or the packed format of keys and values.
KV_CACHE = {
    "bf16": "bf16",
    "f32": "f32",
    "fp8": "fp8e4m3",
    "mxint8": "mxint8",
    "mxfp8": "mxfp8e4m3",
}

#: Default of the maximum sequence length in tokens, unless the checkpoint allows fewer.
DEFAULT_SEQUENCE_LENGTH = 4096

#: The most rows of a call: a prompt is cut into so many rows, which share each read of a weight.
STEP_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class Options:
    """The maximum sequence length, and the formats of activations, weights and KV cache.

    `activations`: the mode of activations that multiply MX weights. `floats`: the type to which
    activations are rounded that multiply plain weights. `kv_cache`: the format of keys and values,
    one of the values of KV_CACHE, by default `floats`. `quantize_dense` and `recipe`: the format of
    dense weights and the recipe of their scales; None where they are packed as they are stored.
    `declared_recipe`: the recipe of the scales of MX activations, where the checkpoint states one.
    `observe_inputs`: `step` returns the inputs of linear layers too, for calibration. `devices`:
    number of devices that compute the model together.
    """

    max_sequence_length: int
    activations: str
    floats: str
    kv_cache: str
    quantize_dense: str | None = None
    recipe: str | None = None
    declared_recipe: str | None = None
    observe_inputs: bool = False
    devices: int = 1

    @property
    def page_format(self) -> str | None:
        """The packed format of pages; None where pages hold floats."""
        return self.kv_cache if self.kv_cache in PAGE_FORMATS else None

    @property
    def dense_format(self) -> BlockFormat | None:
        """The format of `quantize_dense`."""
        return None if self.quantize_dense is None else FORMATS[self.quantize_dense]

    @property
    def activation_recipe(self) -> str | None:
        """The recipe of the scales of MX activations; None in other modes."""
        if self.activations not in MX:
            return None
        return self.declared_recipe or str(MX[self.activations][1])


def choose(
    max_sequence_length: int | None,
    activations: str | None,
    quantize_dense: str | None = None,
    recipe: str | None = None,
    kv_cache: str | None = None,
    *,
    longest: int,
    dense: set[str],
    declared: frozenset[ActivationFormat | None] = frozenset(),
) -> tuple[Options, tuple[str, ...]]:
    """Return the options, and notes about defaults and about effects of options.

    longest: the model's maximum number of positions. dense: the safetensors dtypes of its dense
    weights. declared: the activation formats that its config states for weights in block formats.
    Raises CheckpointError for options that the model cannot have.
    """
    notes = []
    length = max_sequence_length
    if length is None:
        length = min(DEFAULT_SEQUENCE_LENGTH, longest)
        notes.append(
            f"sequences hold up to {length} tokens (the model allows {longest}); "
            "choose with --max-sequence-length"
        )
    if not 1 <= length <= longest:
        raise CheckpointError(
            f"--max-sequence-length {length}: the checkpoint's max_position_embeddings is "
            f"{longest}; give 1 to {longest}"
        )
    floats = "bf16" if dense == {"BF16"} else "f32"
    stated, said = _declared(declared, activations)
    mode, notes = activations or stated or floats, notes + said
    if activations is None and stated is None:
        notes.append(
            f"activations are {mode} where they meet weights, as the checkpoint's dense "
            "weights are; choose with --activations"
        )
    if mode not in MODES:
        raise CheckpointError(
            f"--activations {mode}: not supported; supported are {', '.join(MODES)}"
        )
    floats = mode if mode in FLOATS else floats
    if kv_cache is not None and kv_cache not in KV_CACHE:
        raise CheckpointError(
            f"--kv-cache {kv_cache}: not supported; supported are {', '.join(KV_CACHE)}"
        )
    cache = KV_CACHE[kv_cache or floats]
    format, chosen, note = _dense(quantize_dense, recipe)
    notes += note
    recipe_stated = _recipe(declared) if mode == stated else None
    notes += _quantized(mode, floats, cache, quantize_dense, recipe_stated)
    return Options(
        max_sequence_length=length,
        activations=mode,
        floats=floats,
        kv_cache=cache,
        quantize_dense=format,
        recipe=chosen,
        declared_recipe=recipe_stated,
    ), tuple(notes)


def _declared(
    declared: frozenset[ActivationFormat | None], asked: str | None
) -> tuple[str | None, list[str]]:
    """Return the activation mode that the checkpoint declares, if it is supported, and notes."""
    found = [each for each in declared if each is not None]
    if not found:
        return None, []
    names = ", ".join(sorted(_name(each) for each in found))
    names += ", and of some weights none" if None in declared else ""
    says = f"the checkpoint's config says that activations are quantized to {names}"
    if asked == NVFP4 and {each.format for each in found} == {NVFP4}:
        return None, [f"{says}; here each row has one of its own, and those of the file are unread"]
    mode = next((mode for mode, (format, _) in MX.items() if format == found[0].format), None)
    if len(declared) > 1 or not found[0].dynamic or mode is None:
        what = "one format for all weights in blocks, with scales computed as the program runs"
        return None, [f"{says}; wanted {what} ({', '.join(MX)}): it is not followed"]
    if asked is not None and asked != mode:
        return mode, [f"{says}; --activations says {asked}"]
    return mode, [f"{says}, and so they are"]


def _name(activations: ActivationFormat) -> str:
    how = "" if activations.dynamic else ", with scales of its own"
    return f"{activations.format} with recipe {activations.recipe}{how}"


def _recipe(declared: frozenset[ActivationFormat | None]) -> str | None:
    """Return the recipe of the single declaration; None where it states none."""
    (one,) = declared
    return None if one is None or one.recipe == UNSTATED else str(scale_recipe(one.recipe))


def _dense(wanted: str | None, recipe: str | None) -> tuple[str | None, str | None, list[str]]:
    """Return the format and the recipe of dense weights, and notes."""
    if wanted is None:
        if recipe is not None:
            raise CheckpointError(
                f"--recipe {recipe}: nothing is quantized; give --quantize-dense, or leave it out"
            )
        return None, None, []
    if wanted not in DENSE:
        raise CheckpointError(
            f"--quantize-dense {wanted}: not supported; supported are {', '.join(DENSE)}"
        )
    format, default = DENSE[wanted]
    if recipe is not None:
        return format, str(scale_recipe(recipe)), []
    note = f"dense weights are quantized with the recipe {default}; choose with --recipe"
    return format, str(default), [note]


def _quantized(
    mode: str, floats: str, cache: str, dense: str | None, recipe: str | None
) -> list[str]:
    """Return a note on what a quantizing mode quantizes and what it leaves in floats."""
    if mode in FLOATS:
        return []
    plain = "the router" if dense is not None else "dense weights (attention, router, LM head)"
    plain += " and the key/value cache" if cache == floats else ""
    also = "" if dense is not None else "; --quantize-dense quantizes all but the router"
    if mode == NVFP4:
        return [
            "activations are quantized to nvfp4, in blocks of 16 and with a float32 scale for each "
            f"row, where they meet nvfp4 weights, on CPUs by code of IREE: mxc has a kernel for it "
            f"on GPUs alone; MX weights, {plain} see {floats}"
        ]
    how = "int8 with a float32 scale"
    if mode in MX:
        format, usual = MX[mode]
        how = f"{format} with recipe {recipe or usual}"
    return [
        f"activations are quantized to {how}, in blocks of 32, where they meet MX weights; {plain} "
        f"see {floats}{also}"
    ]
