"""manifest.json: what an artifact says of itself. Written by the compiler, read by the runtime.

Source of every field: the compiled program, the checkpoint and the options; nothing here is a
wish. Imports no MLIR and no IREE, so that both sides may import it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

from mxc.dialects.errors import ArtifactError

#: Bumped when a reader of the old manifest would misread the new one: it has levels since 2. An
#: artifact without levels is what it always was, and says 1.
SCHEMA = 1
SCHEMA_OF_LEVELS = 2

MANIFEST = "manifest.json"
MODULE = "module.vmfb"
WEIGHTS = "weights.irpa"
#: How the name of every parameter archive ends.
ARCHIVE = ".irpa"
REPORT = "report.json"
TOKENIZER = "tokenizer.json"
#: Names the special tokens that a chat template prints, and may hold the template itself.
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"

#: The scope of the parameters in WEIGHTS: `#flow.parameter.named<"model"::"key">` in a program.
SCOPE = "model"

#: A weight in blocks is two tensors there, whose names are its own and these.
BLOCKS, SCALES = "_blocks", "_scales"


def mxc_version() -> str:
    """The installed mxc, as the manifest states it."""
    return metadata.version("mxc")


def iree_version() -> str:
    """The installed IREE, as the manifest states it; compiler and runtime are pinned together."""
    return metadata.version("iree-base-runtime")


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """Size in bytes and SHA-256 (hex) of one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """Shape (-1 is dynamic) and MLIR element type ("f32", "bf16", "i32", "i8") at the boundary."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Function:
    """One function that a caller may call, as its arguments and results cross the boundary."""

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, kw_only=True)
class TargetRecord:
    """What the code was compiled for: "cpu" with LLVM CPU name and features, or a GPU chip.

    `name` is the mxc target ("cpu", "cpu:znver4", "gfx950"); `device` the IREE runtime driver
    ("local-task", "hip"); `features` the LLVM feature names that the code may use ("avx512f").
    """

    name: str
    device: str
    architecture: str
    chip: str
    features: tuple[str, ...] = ()


def level_name(target: str) -> str:
    """What a level is called: its target without the word "cpu:"."""
    return target.removeprefix("cpu:")


@dataclass(frozen=True, kw_only=True)
class LevelRecord:
    """The program for one level of CPU features, where an artifact holds several.

    `module` and `archives` name files of the artifact: the code, and where its parameters are.
    `layouts` has the layout and the scale layout of the weights that this level reads in another
    order than `Manifest.weights` says.
    """

    target: TargetRecord
    module: str
    archives: tuple[str, ...]
    layouts: dict[str, tuple[str, str | None]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WeightRecord:
    """How one packed tensor is meant: the promise that bytes and recipe are explicit.

    `shape` is the logical shape in elements; `format` a name of `mxc list formats` or a plain
    dtype ("bf16"); `layout` names how the bytes of `source` were reordered ("identity" if not),
    `scale_layout` those of its scales, where it has some. `recipe` is the scale recipe, "unstated"
    where the checkpoint does not say. `sqnr` is signal to noise in dB of what was quantised while
    it was packed.
    """

    source: str
    shape: tuple[int, ...]
    format: str
    block: int | None = None
    axis: int | None = None
    nibble_order: str | None = None
    recipe: str | None = None
    layout: str = "identity"
    scale_layout: str | None = None
    sqnr: float | None = None


def batch_function(size: int) -> str:
    """The function that decodes one token of each of `size` sequences."""
    return f"decode_batch_{size}"


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """What generation needs to know of a language model.

    Functions of the artifact (T = prefill_chunk, V = vocab_size, C = cache shape):
    prefill(tokens i32 [T], position i32, cache C) -> (hidden [T, hidden_size] f32, cache C);
    decode(tokens i32 [1], position i32, cache C) -> (logits f32 [1, V], cache C);
    logits(hidden [T, hidden_size]) -> f32 [T, V];
    logits_row(hidden [T, hidden_size], row i32) -> f32 [1, V];
    for each N of `batches`, ascending, decode_batch_N(tokens i32 [N], N positions i32, N caches C)
    -> (logits f32 [N, V], N caches C).
    """

    architecture: str
    vocab_size: int
    max_sequence_length: int
    prefill_chunk: int
    cache: TensorType
    eos_tokens: tuple[int, ...] = ()
    bos_token: int | None = None
    pad_token: int | None = None
    batches: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole of manifest.json.

    `activations` is the mode in which activations meet MX weights, `activation_recipe` how their
    scales are chosen where they are MX. With `levels`, `target` has the names of all of them, and
    the features that each needs.
    """

    mxc_version: str
    iree_version: str
    target: TargetRecord
    activations: str
    functions: dict[str, Function]
    files: dict[str, FileRecord]
    weights: dict[str, WeightRecord] = field(default_factory=dict)
    weights_present: bool = True
    model: ModelRecord | None = None
    source: dict[str, FileRecord] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    activation_recipe: str | None = None
    levels: dict[str, LevelRecord] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def every_level(self) -> dict[str, LevelRecord]:
        """The levels by name; the one that is meant where the artifact lists none."""
        archives = (WEIGHTS,) if WEIGHTS in self.files else ()
        only = LevelRecord(target=self.target, module=MODULE, archives=archives)
        return self.levels or {level_name(self.target.name): only}

    def at(self, level: str) -> Manifest:
        """What holds of one level: its target, and its layouts of the weights."""
        chosen = self.every_level[level]
        weights = dict(self.weights)
        for name, (layout, scale_layout) in chosen.layouts.items():
            weights[name] = replace(weights[name], layout=layout, scale_layout=scale_layout)
        return replace(self, target=chosen.target, weights=weights)

    def to_json(self) -> str:
        """Text of manifest.json."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str, place: str) -> Manifest:
        """Parse manifest.json; `place` names the file in errors. Raises ArtifactError."""
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise ArtifactError(
                f"{place}: not JSON ({error}); compile the artifact again"
            ) from error
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        if found not in (SCHEMA, SCHEMA_OF_LEVELS):
            raise ArtifactError(
                f"{place}: manifest schema {found}, this mxc reads schemas {SCHEMA} and "
                f"{SCHEMA_OF_LEVELS}; compile the artifact again with this version"
            )
        try:
            return _manifest(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(
                f"{place}: malformed manifest ({error!r}); compile the artifact again"
            ) from error


def _tensor(raw: dict[str, Any]) -> TensorType:
    return TensorType(shape=tuple(raw["shape"]), dtype=raw["dtype"])


def _target(raw: dict[str, Any]) -> TargetRecord:
    return TargetRecord(**{**raw, "features": tuple(raw["features"])})


def _level(raw: dict[str, Any]) -> LevelRecord:
    layouts = {name: (layout, scales) for name, (layout, scales) in raw["layouts"].items()}
    return LevelRecord(
        target=_target(raw["target"]),
        module=raw["module"],
        archives=tuple(raw["archives"]),
        layouts=layouts,
    )


def _manifest(raw: dict[str, Any]) -> Manifest:
    model = raw["model"]
    levels = {name: _level(each) for name, each in raw.get("levels", {}).items()}
    if bool(levels) != (raw["schema"] == SCHEMA_OF_LEVELS):
        raise ValueError(f"schema {raw['schema']} with {len(levels)} levels")
    return Manifest(
        mxc_version=raw["mxc_version"],
        iree_version=raw["iree_version"],
        target=_target(raw["target"]),
        activations=raw["activations"],
        functions={
            name: Function(
                inputs=tuple(_tensor(t) for t in f["inputs"]),
                outputs=tuple(_tensor(t) for t in f["outputs"]),
            )
            for name, f in raw["functions"].items()
        },
        files={name: FileRecord(**f) for name, f in raw["files"].items()},
        weights={
            name: WeightRecord(**{**w, "shape": tuple(w["shape"])})
            for name, w in raw["weights"].items()
        },
        weights_present=raw["weights_present"],
        model=None
        if model is None
        else ModelRecord(
            **{
                **model,
                "cache": _tensor(model["cache"]),
                "eos_tokens": tuple(model["eos_tokens"]),
                "batches": tuple(model.get("batches", ())),
            }
        ),
        source={name: FileRecord(**f) for name, f in raw["source"].items()},
        options=raw["options"],
        notes=tuple(raw["notes"]),
        activation_recipe=raw.get("activation_recipe"),
        levels=levels,
        schema=raw["schema"],
    )
