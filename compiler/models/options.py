"""How a model is laid out: the choices that shape its program, checked against the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from mxc.artifact.pages import PAGE_FORMATS
from mxc.compiler.checkpoints.canonical.tensor import UNSTATED
from mxc.compiler.checkpoints.layers.quantization import Activations
from mxc.compiler.models.blocks.activations import FLOATS, MODES, MX, NVFP4
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.formats.recipes import ScaleRecipe, scale_recipe

#: What `--quantize-dense` may be -> the format, and the recipe of its scales unless another is
#: asked for: the one with which nothing saturates.
DENSE = {
    "mxfp8": ("mxfp8e4m3", ScaleRecipe.RCEIL),
    "mxint8": ("mxint8", ScaleRecipe.RCEIL),
}

#: What `--kv-cache` may be -> the type of floats, or the packed format, of keys and values.
KV_CACHE = {
    "bf16": "bf16",
    "f32": "f32",
    "fp8": "fp8e4m3",
    "mxint8": "mxint8",
    "mxfp8": "mxfp8e4m3",
}

#: Tokens that a sequence may hold where neither the user nor the checkpoint asks for fewer.
DEFAULT_SEQUENCE_LENGTH = 4096

#: Rows of a call that a prompt is cut into: enough that a weight is read for many.
STEP_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class Options:
    """Tokens a sequence may hold, and how numbers are written.

    `activations` is the mode in which they meet MX weights, `floats` what they are rounded to
    where they meet plain weights. `kv_cache`: what keys and values are in, one of the values of
    KV_CACHE: as `floats` unless asked for. `quantize_dense` names the format that dense
    weights are packed in, `recipe` that of their scales; None where they are packed as they are.
    `observe_inputs`: `step` returns the inputs of linear layers too, for calibration.
    `declared_recipe`: that of the scales of MX activations, where the checkpoint states one.
    `devices`: how many compute the model together.
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
        """What pages are packed in, by `kv_cache`; None where they have floats."""
        return self.kv_cache if self.kv_cache in PAGE_FORMATS else None

    @property
    def dense_format(self) -> BlockFormat | None:
        """The format of `quantize_dense`."""
        return None if self.quantize_dense is None else FORMATS[self.quantize_dense]

    @property
    def activation_recipe(self) -> str | None:
        """How scales of activations are chosen, where they are MX."""
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
    declared: frozenset[Activations | None] = frozenset(),
) -> tuple[Options, tuple[str, ...]]:
    """The options, and a note for each that was not asked for or means more than it says.

    `longest` is what the checkpoint was trained for; `dense` the safetensors dtypes of its dense
    weights; `declared` what its config says that activations are quantized to, of every weight in
    blocks. Raises CheckpointError for options that the model cannot have.
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
    declared: frozenset[Activations | None], asked: str | None
) -> tuple[str | None, list[str]]:
    """The mode that the checkpoint declares, if it is one of ours, and what is to be said of it."""
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


def _name(activations: Activations) -> str:
    how = "" if activations.dynamic else ", with scales of its own"
    return f"{activations.format} with recipe {activations.recipe}{how}"


def _recipe(declared: frozenset[Activations | None]) -> str | None:
    """The recipe of the one declaration, where it states one."""
    (one,) = declared
    return None if one is None or one.recipe == UNSTATED else str(scale_recipe(one.recipe))


def _dense(wanted: str | None, recipe: str | None) -> tuple[str | None, str | None, list[str]]:
    """The format and the recipe of dense weights, and what is to be said of them."""
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
    """What a mode that quantizes leaves as it is."""
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
