"""The dialects in which checkpoints are written, and the recognition of a checkpoint's dialect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import BLOCKS, SCALES
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, plain
from mxc.compiler.checkpoints.dialects import (
    auto_round,
    compressed_tensors,
    deepseek,
    gpt_oss,
    gpt_oss_original,
    modelopt,
    quark,
    torchao,
)
from mxc.compiler.checkpoints.dialects.gguf import open_gguf
from mxc.compiler.checkpoints.files.safetensors import (
    CONFIG,
    found_instead,
    read_checkpoint,
    read_file,
)
from mxc.compiler.checkpoints.files.tensors import Checkpoint
from mxc.compiler.checkpoints.layers.experts import as_weight
from mxc.compiler.checkpoints.layers.quantization import CheckpointQuantization
from mxc.compiler.checkpoints.source import CheckpointSource, by_name, language_config
from mxc.errors import CheckpointError

#: Suffixes of pickles, which are refused: loading one runs the program in it.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

#: Key of the safetensors metadata in which `mxc quantize` records how files were made.
MADE = "mxc.quantize"
#: Recipes in this metadata that no dialect's config can express.
SEARCHES = ("search", "gptq")

#: What a dialect returns: tensors, declarations, and config.json as transformers would have it.
Found = tuple[list[CanonicalTensor], CheckpointQuantization, Mapping[str, Any]]
Read = Callable[[Checkpoint], Found]


@dataclass(frozen=True)
class CheckpointDialect:
    """A dialect of safetensors checkpoints: a predicate, and a reader."""

    name: str
    recognises: Callable[[Checkpoint], bool]
    read: Read


def _method(checkpoint: Checkpoint) -> str | None:
    declared = quantization_config(checkpoint.config)
    method = None if declared is None else declared.get("quant_method")
    return method if isinstance(method, str) else None


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return `quantization_config` of the model, or of the language model inside it; or None."""
    inner = language_config(config)
    for holder in (config, {} if inner is None else inner[1]):
        if isinstance(holder.get("quantization_config"), dict):
            found: Mapping[str, Any] = holder["quantization_config"]
            return found
    return None


def _config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    return quantization_config(checkpoint.config) or {}


def _is_gpt_oss(checkpoint: Checkpoint) -> bool:
    if checkpoint.config:
        return _method(checkpoint) == gpt_oss.METHOD
    # A file without a config is recognised by its pairs of tensors.
    return any(
        name.endswith(BLOCKS) and name.removesuffix(BLOCKS) + SCALES in checkpoint.tensors
        for name in checkpoint.tensors
    )


def _read_gpt_oss(checkpoint: Checkpoint) -> Found:
    declared = gpt_oss.quantization(_config(checkpoint))
    # Tensors in blocks are already [E, out, in].
    tensors = [
        tensor if tensor.block is not None else as_weight(tensor, checkpoint.config)
        for tensor in gpt_oss.read(checkpoint, declared)
    ]
    return tensors, declared, checkpoint.config


def _read_quark(checkpoint: Checkpoint) -> Found:
    declared = quark.quantization(_config(checkpoint))
    return quark.read(checkpoint, declared), declared, checkpoint.config


def _read_auto_round(checkpoint: Checkpoint) -> Found:
    declared = auto_round.quantization(_config(checkpoint))
    return auto_round.read(checkpoint, declared), declared, checkpoint.config


def _read_compressed_tensors(checkpoint: Checkpoint) -> Found:
    declared = compressed_tensors.quantization(_config(checkpoint))
    return compressed_tensors.read(checkpoint, declared), declared, checkpoint.config


def _read_modelopt(checkpoint: Checkpoint) -> Found:
    beside = modelopt.quant_config(checkpoint.folder)
    inside = _config(checkpoint) if _method(checkpoint) == modelopt.METHOD else None
    declared = modelopt.quantization(beside, inside)
    return modelopt.read(checkpoint, declared), declared, checkpoint.config


def _is_modelopt(checkpoint: Checkpoint) -> bool:
    if _method(checkpoint) == modelopt.METHOD:
        return True
    return _method(checkpoint) is None and modelopt.quant_config(checkpoint.folder) is not None


def _read_deepseek(checkpoint: Checkpoint) -> Found:
    raw = _config(checkpoint)
    declared = deepseek.quantization(raw, checkpoint.config)
    experts = checkpoint.config.get("expert_dtype", raw.get("expert_dtype"))
    return deepseek.read(checkpoint, declared, experts), declared, checkpoint.config


def _read_torchao(checkpoint: Checkpoint) -> Found:
    tensors, declared = torchao.read(checkpoint)
    config = checkpoint.config
    return [as_weight(tensor, config) for tensor in tensors], declared, config


def _read_plain(checkpoint: Checkpoint) -> Found:
    for name, record in checkpoint.tensors.items():
        stem = name.removesuffix(BLOCKS)
        if stem != name and stem + SCALES in checkpoint.tensors and record.dtype == "U8":
            raise CheckpointError(
                f"{record.file}: tensor {name} has blocks, {stem + SCALES} their scales, and "
                f"{CONFIG} has no quantization_config that says of which format (gpt-oss: mxfp4); "
                "fetch the config that belongs to these weights"
            )
    config = checkpoint.config
    tensors = [as_weight(plain(record), config) for record in checkpoint.tensors.values()]
    return tensors, CheckpointQuantization(), config


def _by_method(name: str, read: Read) -> CheckpointDialect:
    return CheckpointDialect(name, lambda checkpoint: _method(checkpoint) == name, read)


#: Tried in this order: the first dialect that recognises a checkpoint reads it. GGUF is recognised
#: by the suffix.
DIALECTS: tuple[CheckpointDialect, ...] = (
    CheckpointDialect(
        "gpt-oss-original", gpt_oss_original.recognises, gpt_oss_original.read_original
    ),
    CheckpointDialect("gpt-oss", _is_gpt_oss, _read_gpt_oss),
    _by_method(quark.METHOD, _read_quark),
    _by_method(compressed_tensors.METHOD, _read_compressed_tensors),
    CheckpointDialect(
        auto_round.METHOD, lambda c: _method(c) in auto_round.METHODS, _read_auto_round
    ),
    CheckpointDialect(modelopt.METHOD, _is_modelopt, _read_modelopt),
    CheckpointDialect("deepseek", lambda c: _method(c) == deepseek.METHOD, _read_deepseek),
    CheckpointDialect(torchao.METHOD, torchao.recognises, _read_torchao),
    CheckpointDialect("plain", lambda c: _method(c) is None, _read_plain),
)


def open_checkpoint(path: Path) -> CheckpointSource:
    """Open a checkpoint: a folder with config.json and safetensors, a .safetensors or .gguf file.

    Reads headers and configs only. Raises CheckpointError for another kind of path, an unknown
    dialect, damaged files, or a config that contradicts the tensors.
    """
    if _is_gguf(path):
        return open_gguf(path)
    checkpoint = _container(path)
    for dialect in DIALECTS:
        if dialect.recognises(checkpoint):
            tensors, quantization, config = dialect.read(checkpoint)
            return CheckpointSource(
                path=path,
                dialect=dialect.name,
                config=config,
                tensors=by_name(_as_made(tensors, checkpoint), path),
                quantization=quantization,
            )
    raise CheckpointError(
        f"{path}: quantization method {_method(checkpoint)!r} is not supported; supported: "
        f"{', '.join(d.name for d in DIALECTS)}"
    )


def _as_made(tensors: list[CanonicalTensor], checkpoint: Checkpoint) -> list[CanonicalTensor]:
    """Return the tensors with the recipe that mxc recorded in the files, if no config can express
    it.

    Raises CheckpointError if the record is not JSON.
    """
    try:
        made = json.loads(checkpoint.metadata.get(MADE, "{}"))
        recipe = made.get("recipe")
    except (ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{checkpoint.folder}: wanted a JSON object in the metadata {MADE}, found another text "
            f"({error}); fetch the files again"
        ) from error
    if recipe not in SEARCHES:
        return tensors
    if "rotation" in made:
        recipe = f"{recipe}, rotated by {made['rotation']}"
    return [
        tensor if tensor.block is None else replace(tensor, recipe=recipe) for tensor in tensors
    ]


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and not path.is_dir()


def _container(path: Path) -> Checkpoint:
    if path.suffix in _PICKLES:
        raise CheckpointError(
            f"{path}: a pickle, which runs whatever program is in it when it is loaded; mxc loads "
            "none: convert it to safetensors"
        )
    if path.suffix == ".safetensors" and not path.is_dir():
        records, metadata = read_file(path)
        return Checkpoint(folder=path, config={}, tensors=records, files=(path,), metadata=metadata)
    if path.is_dir() and (path / CONFIG).is_file():
        return read_checkpoint(path)
    raise CheckpointError(
        f"{path}: wanted a checkpoint folder (with {CONFIG}), a .safetensors or a .gguf file; "
        f"found {found_instead(path)}"
    )
