"""A model to be compiled: an opened checkpoint with its options.

For every architecture, `compile` needs the same four results: the program, the tensors to pack, and
the manifest's records of the weights and of the model.
"""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import (
    CHAT_TEMPLATE,
    TOKENIZER,
    TOKENIZER_CONFIG,
    ModelRecord,
    PageRecord,
    TensorType,
    WeightRecord,
)
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.dialects.gguf import NAME as GGUF
from mxc.compiler.checkpoints.files.safetensors import (
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    read_json,
)
from mxc.compiler.checkpoints.layers.quantization import ActivationFormat, CheckpointQuantization
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.models.binding import BoundParameter, DenseQuantization, bind, formats_of
from mxc.compiler.models.blocks.activations import MX, NVFP4, preparation_key
from mxc.compiler.models.blocks.devices import Device, devices_of
from mxc.compiler.models.blocks.self_attention import SelfAttention
from mxc.compiler.models.builder import Builder
from mxc.compiler.models.cache_scales import CacheScale, require_pages, settle_scales
from mxc.compiler.models.configs.fields import ConfigFields
from mxc.compiler.models.configs.gguf import unstated
from mxc.compiler.models.configs.gguf_rope import DIVISORS, FACTORS
from mxc.compiler.models.configs.longrope import LongropeScaling
from mxc.compiler.models.decoder import PAGE, Decoder
from mxc.compiler.models.division import (
    device_weights,
    require_blocks,
    require_devices,
    why_by_number,
)
from mxc.compiler.models.fused_layers import split_fused
from mxc.compiler.models.gguf import read_gguf_decoder
from mxc.compiler.models.language_model import read_language_model, settle_head
from mxc.compiler.models.options import STEP_ROWS, Options, choose
from mxc.compiler.models.packed import array_items, pack_items, weight_records
from mxc.compiler.models.unread import describe_unread
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.quantized import Loss
from mxc.compiler.report import DeviceWeights
from mxc.compiler.tokenizers.from_gguf import text_files
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS
from mxc.formats.panels import are_one_order
from mxc.formats.recipes import scale_recipe
from mxc.targets.gpu import GroupRows
from mxc.targets.matrix_unit import MatrixUnit

#: Files of a checkpoint that generation needs; the artifact gets copies.
TEXT_FILES = (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE)

#: Bytes of an element in memory, by its type.
_BYTES = {"f32": 4, "bf16": 2, "i8": 1}


@dataclass(frozen=True)
class BoundModel:
    """A checkpoint with the options that it is compiled with, and its tensors bound to parameters.

    `place`: its folder or file. `cache_scales`: the scales of fp8 pages, by parameter. `texts`: the
    contents of the tokenizer and chat template files of a GGUF, by the file names of a folder.
    """

    place: Path
    decoder: Decoder
    bound: tuple[BoundParameter, ...]
    cache_scales: Mapping[str, CacheScale]
    eos_tokens: tuple[int, ...]
    options: Options
    notes: tuple[str, ...]
    texts: Mapping[str, bytes]

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that compute the model together."""
        return devices_of(self.options.devices)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read besides the tensors: configs, index, tokenizer and template."""
        names = (CONFIG, GENERATION_CONFIG, INDEX, *TEXT_FILES)
        return tuple(file for name in names if (file := self.place / name).is_file())

    def write_texts(self, folder: Path) -> None:
        """Write the tokenizer and chat template files to `folder`, as far as they exist."""
        for name in TEXT_FILES:
            if name in self.texts:
                (folder / name).write_bytes(self.texts[name])
            elif (self.place / name).is_file():
                shutil.copyfile(self.place / name, folder / name)

    def program(self, group_rows: GroupRows = ()) -> bytes:
        """Return the module as MLIR bytecode, without weights. group_rows: see blocks/scope.py."""
        formats = formats_of(self.bound, self._generated(), self.devices)
        module = Builder(self.decoder, formats, self.options, group_rows).build()
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
        return buffer.getvalue()

    def pack_items(
        self, panels: Mapping[str, str], matrices: Mapping[str, tuple[int, int]] | None = None
    ) -> tuple[PackItem, ...]:
        """Return every tensor of the archive, including computed ones.

        panels: the panel layouts of the tensors that kernels read in panels, by name. matrices: the
        number of matrices that these have for the kernels, and the rows of each.
        """
        items = [
            item
            for each in self.bound
            for device in self.devices
            for item in pack_items(each, panels, device)
        ]
        for item in items:
            wanted = (matrices or {}).get(item.key, item.matrix[:2])
            if not are_one_order({wanted, item.matrix[:2]}):
                raise AssertionError(
                    f"{item.place}: kernels read {wanted[0]} matrices of {wanted[1]} rows, and "
                    f"{item.matrix[0]} of {item.matrix[1]} are packed"
                )
        return (*items, *array_items(self._generated()))

    def device_weights(self, panels: Mapping[str, str]) -> list[DeviceWeights]:
        """Return the bytes of weights on each of several devices; panels: see pack_items."""
        return device_weights(self.bound, self._generated(), self.devices, panels)

    def weights(
        self, panels: Mapping[str, str], losses: Mapping[str, Loss] | None = None
    ) -> dict[str, WeightRecord]:
        """Return the manifest's record of every tensor; losses: errors of quantizing, by key."""
        records: dict[str, WeightRecord] = {}
        for each in self.bound:
            for device in self.devices:
                records |= weight_records(each, panels, losses or {}, device)
        sources = {
            f"{device.prefix}{key}": scale.source
            for device in self.devices
            for key, scale in self.cache_scales.items()
        }
        for key, array in self._generated().items():
            source = sources.get(key, "generated")
            records[key] = WeightRecord(source=source, shape=array.shape, format="f32")
        return records

    def _generated(self) -> dict[str, NDArray[np.float32]]:
        """Return the parameters that the compiler computes, such as rotary tables, by key."""
        share = self.decoder.share(self.options.devices)
        arrays = share.generated(self.options.max_sequence_length)
        found: dict[str, NDArray[np.float32]] = {}
        for device in self.devices:
            scales = {
                key: np.split(scale.values, device.count)[device.number]
                for key, scale in self.cache_scales.items()
            }
            found |= {f"{device.prefix}{key}": array for key, array in (arrays | scales).items()}
        return found

    def record(self) -> ModelRecord:
        """Return the manifest's record of the model, which generation reads."""
        decoder, o = self.decoder.share(self.options.devices), self.options
        format, dtype = o.page_format, o.kv_cache if o.page_format is None else "i8"
        pages = tuple(
            PageRecord(window=kind.window, shape=kind.shape, dtype=dtype, format=format)
            for kind in decoder.pages
        )
        states = {
            name: TensorType(shape=state, dtype="f32") for name, state in decoder.states.items()
        }
        return ModelRecord(
            architecture=decoder.architecture,
            vocab_size=self.decoder.vocab_size,
            max_sequence_length=o.max_sequence_length,
            rows=min(STEP_ROWS, o.max_sequence_length),
            page_size=PAGE,
            pages=pages,
            states=states,
            bytes_per_token=sum(
                o.devices * prod(page.stored.shape) * _BYTES[page.dtype] // PAGE for page in pages
            ),
            bytes_per_sequence=sum(
                o.devices * prod(s.shape) * _BYTES[s.dtype] for s in states.values()
            ),
            eos_tokens=self.eos_tokens,
            bos_token=decoder.bos_token,
            pad_token=decoder.pad_token,
            devices=o.devices,
        )


def open_model(
    place: Path,
    *,
    max_sequence_length: int | None = None,
    activations: str | None = None,
    quantize_dense: str | None = None,
    recipe: str | None = None,
    kv_cache: str | None = None,
    unit: MatrixUnit | None = None,
    observe_inputs: bool | None = None,
    devices: int | None = None,
) -> BoundModel:
    """Open the checkpoint at `place`, a folder or a GGUF file, and settle the options.

    unit: the matrix unit of the target GPU; None for CPUs. observe_inputs: `step` returns the
    inputs of linear layers too. devices: how many devices compute the model together; one by
    default. Reads headers only. Raises CheckpointError for a checkpoint that cannot be read, and
    for options that do not fit it.
    """
    read = _read(open_checkpoint(place))
    decoder, source = read.decoder, read.source
    eos_tokens = _eos_tokens(place, decoder)
    options, notes = choose(
        max_sequence_length,
        activations,
        quantize_dense,
        recipe,
        kv_cache,
        longest=decoder.max_position_embeddings,
        dense=_plain_dtypes(source),
        declared=_declared(source),
    )
    count = 1 if devices is None else devices
    options = replace(options, observe_inputs=bool(observe_inputs), devices=count)
    require_pages(decoder, options, unit, kv_cache)
    require_devices(decoder, options)
    dense = None
    if options.dense_format is not None and options.recipe is not None:
        dense = DenseQuantization(format=options.dense_format, recipe=scale_recipe(options.recipe))
    bound, left = bind(decoder, source, dense, unit, count)
    if why := why_by_number(options.devices, bound):
        decoder, notes = decoder.with_experts_by_number(), (*notes, why)
        bound, left = bind(decoder, source, dense, unit, count)
    _require_nvfp4(bound, options, place)
    require_blocks(decoder, options.devices, bound)
    scales, unread = describe_unread(decoder, left)
    cache_scales, said = settle_scales(decoder, scales, source.quantization.cache, options.kv_cache)
    notes = (
        *read.notes,
        *notes,
        *_wider_rows(decoder),
        *_longrope(decoder, options),
        *_float_scales(bound, source.quantization, options.activations),
        *said,
        *unread,
    )
    return BoundModel(place, decoder, bound, cache_scales, eos_tokens, options, notes, read.texts)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """The model of a checkpoint, the source of its parameters, and the text files of a GGUF."""

    decoder: Decoder
    source: CheckpointSource
    texts: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


def _read(source: CheckpointSource) -> _Read:
    if source.dialect != GGUF:
        model = read_language_model(source)
        head = settle_head(model.decoder, split_fused(model.decoder, model.source))
        notes = (*model.notes, *head.notes)
        return _Read(decoder=head.decoder, source=head.source, texts={}, notes=notes)
    place = str(source.path)
    names = [name for name in (DIVISORS, *FACTORS) if name in source.tensors]
    rotary = {name: source.tensors[name].values().reshape(-1) for name in names}
    decoder = read_gguf_decoder(source.config, source.tensors, rotary, place)
    left = {name: tensor for name, tensor in source.tensors.items() if name not in rotary}
    return _Read(
        decoder=decoder,
        source=replace(source, tensors=left),
        texts=text_files(source.config, place),
        notes=unstated(source.config),
    )


def _require_nvfp4(bound: Sequence[BoundParameter], options: Options, place: Path) -> None:
    """Raise CheckpointError for nvfp4 activations without any nvfp4 weight to multiply with."""
    block = FORMATS[NVFP4].block
    if options.activations == NVFP4 and not any(
        each.blocks is not None and each.blocks.block == block for each in bound
    ):
        raise CheckpointError(
            f"--activations nvfp4: wanted weights in nvfp4, found none in {place}; two scales of a "
            "product share their block, so choose the mode of its weights"
        )


def _plain_dtypes(source: CheckpointSource) -> set[str]:
    """Return the dtypes of the plain tensors of rank 2 or more."""
    plain = (t for t in source.tensors.values() if t.is_plain)
    return {tensor.dtype for tensor in plain if len(tensor.shape) > 1}


def _declared(source: CheckpointSource) -> frozenset[ActivationFormat | None]:
    """Return the config's activation formats of the modules with weights in block formats."""
    blocked = [name for name, tensor in source.tensors.items() if tensor.format in FORMATS]
    modules = {name.removesuffix(".weight") for name in blocked}
    return frozenset(source.quantization.activations(module) for module in modules)


def _float_scales(
    bound: Sequence[BoundParameter], quantization: CheckpointQuantization, mode: str
) -> list[str]:
    """Return notes about weights under float scales: which ones no kernel reads and why, and the
    config's activation formats that are not followed, in the `mode` of activations."""
    weights: dict[tuple[str, str], list[str]] = {}
    near = set()
    packed: Counter[tuple[str, str]] = Counter()
    for each in bound:
        format = each.stored or each.tensors[0].format
        names = [tensor.name for tensor in each.tensors]
        if each.decoded is not None:
            so = f"{each.decoded.text}, so that their numbers are packed as {each.format}"
            weights.setdefault((format, so), []).extend(names)
            packed[format, so] += prod(each.parameter.shape) * _BYTES[each.format]
        elif format not in FORMATS and each.blocks is not None and each.dense is None:
            weights.setdefault((format, ""), []).extend(names)
            if preparation_key(each.blocks).mx_quantizes and mode not in MX:
                near.add(format)
    notes = []
    for (format, reason), names in sorted(weights.items()):
        inputs = {quantization.activations(name.removesuffix(".weight")) for name in names}
        declared = sorted({activations.format for activations in inputs if activations})
        so = f"they do not meet activations in {', '.join(declared)}, as the config says"
        so += "; --activations mxfp8 is near it" if format in near and not reason else ""
        found = [f"{reason}, {packed[format, reason] / 2**20:.1f} MiB"] if reason else []
        if found or declared:
            what = "; ".join([*found, *([so] if declared else [])])
            notes.append(f"{len({*names})} weights are {format} in the checkpoint: {what}")
    return notes


def _wider_rows(decoder: Decoder) -> list[str]:
    """Return notes about heads that are padded in the cache."""
    heads = [one.attention for one in decoder.layers if isinstance(one.attention, SelfAttention)]
    found = {(each.depth, each.row.depth) for each in heads if each.row.depth > each.depth}
    return [
        f"keys and values of {depth} elements a head take {row} in the cache, as kernels of "
        "attention read whole tiles"
        for depth, row in sorted(found)
    ]


def _longrope(decoder: Decoder, options: Options) -> list[str]:
    """Return a note on whether a LongRoPE model uses its short or its long factors."""
    scalings = [r.scaling for r in decoder.ropes if isinstance(r.scaling, LongropeScaling)]
    if not scalings:
        return []
    original, length = scalings[0].original_max_position_embeddings, options.max_sequence_length
    if length <= original:
        return [
            f"rotary positions are those of the model's short factors: sequences hold up to "
            f"{length} tokens, and the long ones begin behind {original}"
        ]
    return [
        f"rotary positions are those of the model's long factors, since sequences may hold "
        f"{length} tokens; transformers takes the short ones while there are at most {original}: "
        f"--max-sequence-length {original} gives these"
    ]


def _eos_tokens(place: Path, decoder: Decoder) -> tuple[int, ...]:
    """Return the eos tokens of generation_config.json, else of config.json, checked for range."""
    path, found = place / GENERATION_CONFIG, decoder.eos_tokens
    if path.exists():
        found = ConfigFields(read_json(path), str(path)).tokens("eos_token_id") or found
    for token in found:
        if token >= decoder.vocab_size:
            raise CheckpointError(
                f"{place}: eos_token_id {token} is outside of the vocabulary, which is 0 to "
                f"{decoder.vocab_size - 1}; generation would never end. Fetch the config.json and "
                "generation_config.json that belong to the checkpoint"
            )
    return found
