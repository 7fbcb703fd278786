"""The dialects that checkpoints are written in, and which one a checkpoint speaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxc.compiler.checkpoints import gpt_oss_experts
from mxc.compiler.checkpoints.canonical import CanonicalTensor, plain
from mxc.compiler.checkpoints.quantisation import Quantisation
from mxc.compiler.checkpoints.safetensors_files import CONFIG, read_checkpoint, read_file
from mxc.compiler.checkpoints.source import Source, by_name
from mxc.compiler.checkpoints.tensors import Checkpoint
from mxc.dialects.errors import CheckpointError

#: Files that hold pickles: to load one is to run the program in it.
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

Read = Callable[[Checkpoint], tuple[list[CanonicalTensor], Quantisation]]


@dataclass(frozen=True)
class Dialect:
    """A dialect of safetensors checkpoints: is this one, and what is in it."""

    name: str
    recognises: Callable[[Checkpoint], bool]
    read: Read


def _method(checkpoint: Checkpoint) -> str | None:
    declared = quantization_config(checkpoint.config)
    method = None if declared is None else declared.get("quant_method")
    return method if isinstance(method, str) else None


def quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`quantization_config`, of the model or of the language model inside it."""
    for holder in (config, config.get("text_config")):
        if isinstance(holder, dict) and isinstance(holder.get("quantization_config"), dict):
            found: Mapping[str, Any] = holder["quantization_config"]
            return found
    return None


def _read_gpt_oss(checkpoint: Checkpoint) -> tuple[list[CanonicalTensor], Quantisation]:
    declared = gpt_oss_experts.quantisation(quantization_config(checkpoint.config) or {})
    return gpt_oss_experts.read(checkpoint, declared), declared


def _read_plain(checkpoint: Checkpoint) -> tuple[list[CanonicalTensor], Quantisation]:
    return [plain(record) for record in checkpoint.tensors.values()], Quantisation()


#: Asked in this order; the first that recognises a checkpoint reads it.
DIALECTS: tuple[Dialect, ...] = (
    Dialect("gpt-oss", lambda c: _method(c) == gpt_oss_experts.METHOD, _read_gpt_oss),
    Dialect("plain", lambda c: _method(c) is None, _read_plain),
)


def open_checkpoint(path: Path) -> Source:
    """Open a checkpoint: a folder with config.json and safetensors, or one .safetensors file.

    Reads headers and configs only. Raises CheckpointError: none of these, an unknown dialect,
    damaged files, or a config that contradicts the tensors.
    """
    checkpoint = _container(path)
    for dialect in DIALECTS:
        if dialect.recognises(checkpoint):
            tensors, quantisation = dialect.read(checkpoint)
            return Source(
                path=path,
                dialect=dialect.name,
                config=checkpoint.config,
                tensors=by_name(tensors, path),
                quantisation=quantisation,
                files=checkpoint.files,
            )
    raise CheckpointError(
        f"{path}: quantisation method {_method(checkpoint)!r} is not supported; supported: "
        f"{', '.join(d.name for d in DIALECTS)}"
    )


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
        f"{path}: wanted a checkpoint folder (with {CONFIG}) or a .safetensors file; found "
        f"{'another kind of file' if path.exists() else 'nothing there'}"
    )
