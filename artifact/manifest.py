"""manifest.json: the description of an artifact, written by the compiler and read by the runtime.

Every field comes from the compiled program, the checkpoint or the options. Imports no MLIR and no
IREE, so that compiler and runtime may both import it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mxc.artifact.pages import PAGE_BLOCK, PAGE_FORMATS, stored_positions
from mxc.artifact.schema import SchemaError, read_record
from mxc.artifact.versions import mxc_version
from mxc.errors import ArtifactError

#: Increased when a reader of the old manifest would misread the new one: 1 had no levels, and
#: models of 1 and 2 had functions of other names.
SCHEMA = 3

MANIFEST = "manifest.json"
MODULE = "module.vmfb"
WEIGHTS = "weights.irpa"
#: The suffix of every parameter archive.
ARCHIVE = ".irpa"
REPORT = "report.json"
SCHEDULES = "schedules.json"
TOKENIZER = "tokenizer.json"
#: Names the special tokens that a chat template prints; may hold the template itself.
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"

#: The scope of the parameters in WEIGHTS: `#flow.parameter.named<"model"::"key">` in a program.
SCOPE = "model"

#: The function of a language model, described at ModelRecord.
STEP = "step"

#: Most elements of a tensor: at 8 bytes each, they fill the 47 bits of a user-space address.
LARGEST_TENSOR = 1 << 44

#: Axes of a page: entries, positions, heads, elements.
_PAGE_RANK = 4

#: Element types with two elements per byte at the boundary, the first in the low half.
NIBBLES = ("f4E2M1FN",)

#: Prefixes of names of observed results: the input of linear layers, followed by the keys of their
#: weights, separated by ", "; and the experts, i32, of each row of the inputs of a mixture.
INPUTS, EXPERTS = "input of ", "experts of "

#: A block-quantized weight is two tensors, named by its own name and these suffixes.
BLOCKS, SCALES = "_blocks", "_scales"


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

    @property
    def stored(self) -> TensorType:
        """The type at the boundary: bytes of two elements for 4-bit types, else unchanged."""
        if self.dtype not in NIBBLES:
            return self
        return TensorType(shape=(*self.shape[:-1], self.shape[-1] // 2), dtype="i8")


@dataclass(frozen=True, kw_only=True)
class Function:
    """One callable function, with its arguments and results as they cross the boundary.

    The names come from the program, "" for a tensor without one; empty where no tensor has one.
    `in_place`: numbers of arguments, each with that of the result which takes its memory.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def own_results(self) -> int:
        """Number of outputs before the inputs of linear layers, if the function returns those."""
        observed = [name.startswith((INPUTS, EXPERTS)) for name in self.output_names]
        return observed.index(True) if True in observed else len(self.outputs)

    @property
    def unobserved(self) -> Function:
        """The function without the results that are inputs of linear layers."""
        count = self.own_results
        names = self.output_names[:count]
        return replace(self, outputs=self.outputs[:count], output_names=names if any(names) else ())


@dataclass(frozen=True, kw_only=True)
class TargetRecord:
    """The machine that the code was compiled for.

    `name`: the mxc target ("cpu", "cpu:znver4", "gfx950"). `device`: the IREE runtime driver
    ("local-task", "hip"). `chip`: LLVM's CPU or GPU name. `features`: LLVM features ("avx512f").
    """

    name: str
    device: str
    architecture: str
    chip: str
    features: tuple[str, ...] = ()


def level_name(target: str) -> str:
    """The name of a level: its target without "cpu:"."""
    return target.removeprefix("cpu:")


@dataclass(frozen=True, kw_only=True)
class LevelRecord:
    """The program for one level of CPU features, where an artifact holds several.

    `module` and `archives` name files of the artifact with the code and its parameters. `layouts`
    has the layout and the scale layout of the weights that this level reads in another order than
    `Manifest.weights` states.
    """

    target: TargetRecord
    module: str
    archives: tuple[str, ...]
    layouts: dict[str, tuple[str, str | None]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WeightRecord:
    """How the bytes of one packed tensor are to be read.

    `shape` is the logical shape in elements; `format` a name of `mxc list formats` or a plain dtype
    ("bf16"); `block` elements of each of `rows` consecutive rows (None: of one) share a scale;
    `layout` names how the bytes of `source` were reordered ("identity" if not), `scale_layout` the
    same for its scales, if it has any. `recipe` is the scale recipe, "unstated" where the
    checkpoint does not state it. `sqnr` is the signal-to-noise ratio in dB of a weight that was
    quantized while it was packed.
    """

    source: str
    shape: tuple[int, ...]
    format: str
    block: int | None = None
    rows: int | None = None
    axis: int | None = None
    nibble_order: str | None = None
    recipe: str | None = None
    layout: str = "identity"
    scale_layout: str | None = None
    sqnr: float | None = None


@dataclass(frozen=True, kw_only=True)
class PageRecord:
    """Pages of keys and values of the layers of one kind.

    `window`: number of positions a token attends to, including itself; None: all before it. `shape`
    [E, B, V, D] and `dtype` describe one page: E entries (keys or values of a layer) for each of B
    positions, V heads of D elements. `format`: the packed format, one of PAGE_FORMATS, whose bytes
    have `dtype` "i8"; None for plain numbers of `dtype`.
    """

    window: int | None
    shape: tuple[int, ...]
    dtype: str
    format: str | None = None

    @property
    def stored(self) -> TensorType:
        """A page as it lies in memory. In an MX format: bytes [E, B + B / 32, V, D], where the
        scales of an entry, [V, D / 32, B], follow its B positions."""
        entries, positions, *row = self.shape
        rows = stored_positions(self.format, positions)
        return TensorType(shape=(entries, rows, *row), dtype=self.dtype)


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """The facts about a language model that generation needs.

    Its function computes T rows of S runs and returns R rows of logits; i32 but for the memory:
    step(tokens [T], positions [T], runs [S, 3], rows [R],
         slots [T], lists [S, P] of each kind of `pages`, places [S] where there are `states`,
         a pool [N, E, B, V, D] of each kind (PageRecord.stored), [M, ..] of each state)
    -> (logits f32 [R, vocab_size], the pools, the states).
    `mxc.runtime.steps.StepPlan` describes their contents. T, S, R, P, and the numbers N of pages
    and M of sequences with states, are known at the call.

    `page_size`: B. `rows`: most rows T of a call; longer prompts are split. `states`: tensors that
    a sequence keeps beside its pages, by name; their size does not grow with the sequence.
    `bytes_per_token`: bytes of pages per token. `bytes_per_sequence`: bytes of states per sequence.
    `devices`: number of devices that compute the model together. Each has its own pools, with its
    share of the heads, and returns logits of its share of the vocabulary, in the order of the
    devices; `pages` describes the pages of one device.
    """

    architecture: str
    vocab_size: int
    max_sequence_length: int
    page_size: int
    pages: tuple[PageRecord, ...]
    rows: int
    eos_tokens: tuple[int, ...] = ()
    bos_token: int | None = None
    pad_token: int | None = None
    states: dict[str, TensorType] = field(default_factory=dict)
    bytes_per_token: int = 0
    bytes_per_sequence: int = 0
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of manifest.json.

    `activations` is the mode in which activations meet MX weights, `activation_recipe` how their
    scales are chosen where they are MX. With `levels`, `target` has the names of all levels and the
    features that each needs.
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
        """The levels by name; an artifact that lists none has one, made from its own target."""
        archives = (WEIGHTS,) if WEIGHTS in self.files else ()
        only = LevelRecord(target=self.target, module=MODULE, archives=archives)
        return self.levels or {level_name(self.target.name): only}

    def at(self, level: str) -> Manifest:
        """The manifest of one level: with its target, and its layouts of the weights."""
        chosen = self.every_level[level]
        weights = dict(self.weights)
        for name, (layout, scale_layout) in chosen.layouts.items():
            weights[name] = replace(weights[name], layout=layout, scale_layout=scale_layout)
        return replace(self, target=chosen.target, weights=weights)

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_json(text: str, place: str) -> Manifest:
        """Parse manifest.json; `place` names the file in errors.

        Raises ArtifactError for text that is not JSON, another schema, a key that is missing,
        unknown or of a wrong type, and fields that contradict each other.
        """
        raw = read_json(text, place)
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        if type(found) is not int or found != SCHEMA:
            raise ArtifactError(
                f"{place}: manifest schema {str(found)[:20]}, this mxc reads schema {SCHEMA}; "
                "compile the artifact again with this version"
            )
        try:
            manifest = read_record(Manifest, raw)
            manifest._check()
        except SchemaError as error:
            wrote = str(raw.get("mxc_version"))[:20]
            by = (
                "" if wrote == mxc_version() else f" (of mxc {wrote}, installed is {mxc_version()})"
            )
            raise ArtifactError(
                f"{place}: malformed manifest{by}: {error}; compile the artifact again"
            ) from error
        return manifest

    def _check(self) -> None:
        """Raise SchemaError where fields of the right types contradict each other."""
        for name, level in self.levels.items():
            for weight in level.layouts:
                if weight not in self.weights:
                    raise SchemaError(f"levels.{name}.layouts.{weight}: no such weight")
        for name, function in self.functions.items():
            for side, tensors in (("inputs", function.inputs), ("outputs", function.outputs)):
                for index, tensor in enumerate(tensors):
                    _check_shape(tensor.shape, f"functions.{name}.{side}[{index}].shape", least=-1)
            for argument, result in function.in_place:
                ranges = range(len(function.inputs)), range(len(function.outputs))
                if argument not in ranges[0] or result not in ranges[1]:
                    raise SchemaError(
                        f"functions.{name}.in_place: wants numbers of an argument and a result, "
                        f"found {argument} and {result}"
                    )
        for name, weight_record in self.weights.items():
            _check_shape(weight_record.shape, f"weights.{name}.shape")
        for side, files in (("files", self.files), ("source", self.source)):
            for name, file in files.items():
                if file.bytes < 0:
                    raise SchemaError(f"{side}.{name}.bytes: {file.bytes} is negative")
        if self.model is not None:
            _check_model(self.model)


def _check_model(model: ModelRecord) -> None:
    for key in ("vocab_size", "max_sequence_length", "page_size", "rows", "devices"):
        if getattr(model, key) < 1:
            raise SchemaError(f"model.{key}: wants at least 1")
    if not model.pages:
        raise SchemaError("model.pages: wants at least one kind")
    for index, kind in enumerate(model.pages):
        key = f"model.pages[{index}]"
        _check_shape(kind.shape, f"{key}.shape")
        if len(kind.shape) != _PAGE_RANK or kind.shape[1] != model.page_size:
            raise SchemaError(
                f"{key}.shape: wants [entries, {model.page_size}, heads, elements], found "
                f"{list(kind.shape)}"
            )
        if kind.format is not None:
            if kind.format not in PAGE_FORMATS or kind.dtype != "i8":
                raise SchemaError(
                    f"{key}.format: wants {' or '.join(PAGE_FORMATS)} in i8, found "
                    f"{kind.format[:20]} in {kind.dtype[:20]}"
                )
            if kind.shape[1] % PAGE_BLOCK or kind.shape[-1] % PAGE_BLOCK:
                raise SchemaError(
                    f"{key}.shape: wants positions and elements in multiples of {PAGE_BLOCK}, "
                    f"found {list(kind.shape)}"
                )
        if kind.window is not None and kind.window < 1:
            raise SchemaError(f"{key}.window: wants at least 1, found {kind.window}")
    for name, state in model.states.items():
        _check_shape(state.shape, f"model.states.{name}.shape")


def _check_shape(shape: tuple[int, ...], key: str, least: int = 0) -> None:
    """Raise SchemaError for an extent below `least`, and for a shape that no memory can hold."""
    if any(extent < least for extent in shape):
        raise SchemaError(f"{key}: wants extents of at least {least}, found {list(shape)}")
    if math.prod(extent for extent in shape if extent > 0) > LARGEST_TENSOR:
        raise SchemaError(f"{key}: more elements than {LARGEST_TENSOR}, found {list(shape)}")


def read_json(text: str, place: str) -> Any:
    """Parse the text of a JSON file of an artifact. `place` names the file. Raises ArtifactError.

    Refuses unpaired surrogates, which a JSON escape can hold but no file or terminal accepts.
    """
    try:
        raw = json.loads(text)
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise ArtifactError(
            f"{place}: a string is not Unicode: it holds {half}; compile the artifact again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{place}: not JSON ({error}); compile the artifact again") from error
    return raw


def read_manifest(path: Path) -> Manifest:
    """Read manifest.json of the artifact folder `path`. Raises ArtifactError where it cannot."""
    file = path / MANIFEST
    try:
        if not path.exists():
            raise ArtifactError(f"{path}: no such artifact")
        if not file.is_file():
            source = (path / "config.json").is_file() or path.suffix == ".gguf"
            first = "; a checkpoint is compiled first, by `mxc compile`" if source else ""
            raise ArtifactError(f"{path}: not an artifact: it holds no {MANIFEST}{first}")
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a path with a NUL
        raise ArtifactError(f"{file}: cannot be read ({error})") from error
    return Manifest.from_json(text, str(file))
