"""safetensors on disk: one file, or shards with an index. Everything is checked before use.

Headers are parsed here because packing streams byte ranges, and `safe_open` of the safetensors
package does not give the offset of a tensor in its file. The tests compare this reader with
`safe_open`: names, dtypes, shapes and bytes.

Format: https://github.com/huggingface/safetensors#format: u64 little-endian header length, JSON
header, then the tensors back to back in the order of their offsets.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import MANIFEST
from mxc.compiler.checkpoints.files.tensors import DTYPES, Checkpoint, TensorRecord
from mxc.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"

#: The safetensors library has the same limit (MAX_HEADER_SIZE in tensor.rs).
_MAX_HEADER = 100_000_000

#: No model has tensors of higher rank; a product of very many sizes would take long.
_MAX_RANK = 16


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file. CheckpointError if it is absent, no JSON or no object."""
    try:
        return _object(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: not found; the checkpoint folder must hold it") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def found_instead(path: Path) -> str:
    """Return what is at a path without a checkpoint, and advice, for messages."""
    if not path.exists():
        return "nothing there; check the path"
    if (path / MANIFEST).is_file():
        return "a compiled artifact; give the checkpoint that it was compiled from"
    if (path / "model_index.json").is_file():
        return "a pipeline of diffusers; of diffusion models nothing is compiled"
    if path.is_dir():
        return (
            f"a folder without {CONFIG}; fetch it from where the weights are from, or give one of "
            "the files in the folder"
        )
    if path.suffix == ".safetensors":
        return f"one file of weights; give the folder with its {CONFIG}"
    if path.suffix == ".gguf":
        return "a .gguf file; `mxc convert` makes a checkpoint folder of it"
    return "another kind of file; convert it to safetensors"


def read_file(path: Path) -> tuple[dict[str, TensorRecord], dict[str, str]]:
    """Return the tensors of one .safetensors file, in file order, and its metadata.

    Raises CheckpointError for a truncated file, a malformed header, an unknown dtype, and offsets
    that overlap, leave holes or contradict dtype and shape.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > min(size - 8, _MAX_HEADER):
                raise CheckpointError(
                    f"{path}: wanted a safetensors header of at most {_MAX_HEADER} bytes, found "
                    f"header length {length} in a file of {size} bytes; the file is truncated or "
                    "not safetensors: fetch it again"
                )
            header = _object(file.read(length), f"{path} (header)")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: not found; fetch the missing file") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(
            f"{path} (header): wanted texts in __metadata__, found {str(metadata)[:80]!r}; the "
            "file is damaged: fetch it again"
        )
    records = [_record(path, name, entry, 8 + length) for name, entry in header.items()]
    records.sort(key=lambda r: (r.offset, r.bytes))
    _check_extent(path, records, 8 + length, size)
    return {record.name: record for record in records}, metadata


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint in `folder`: config.json and model.safetensors, or the shards of its
    index.

    Raises CheckpointError for anything that is missing, ambiguous or contradictory.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: not a folder; give the folder that holds {CONFIG}")
    config = read_json(folder / CONFIG)
    single, index = folder / SINGLE, folder / INDEX
    if single.exists() and index.exists():
        raise CheckpointError(
            f"{folder}: holds both {SINGLE} and {INDEX}; which one is meant? Remove the other"
        )
    metadata: dict[str, str] = {}
    if index.exists():
        tensors = _read_shards(folder, index, metadata)
    elif single.exists():
        tensors, metadata = read_file(single)
    else:
        raise CheckpointError(
            f"{folder}: no weights; wanted {SINGLE}, or {INDEX} with its shards "
            "(other containers must be converted to safetensors first)"
        )
    files = tuple(dict.fromkeys(record.file for record in tensors.values()))
    return Checkpoint(folder=folder, config=config, tensors=tensors, files=files, metadata=metadata)


def _object(text: bytes, place: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # json silently keeps the last of two equal keys, which would drop a tensor.
        result = dict(pairs)
        if len(result) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            raise CheckpointError(f"{place}: key {twice!r} is there twice; the file is damaged")
        return result

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a ValueError
        raise CheckpointError(f"{place}: not JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{place}: wanted a JSON object, found {type(value).__name__}")
    return value


def _record(path: Path, name: str, entry: Any, data_start: int) -> TensorRecord:
    place = f"{path}: tensor {name}"
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        numbers = (*shape, begin, end)
        if len(shape) > _MAX_RANK or not all(type(n) is int and 0 <= n < 1 << 63 for n in numbers):
            raise ValueError(f"not all of {str(numbers)[:80]} are sizes")
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{place}: header entry needs dtype, shape and data_offsets, found "
            f"{repr(entry)[:80]} ({error}); the file is damaged: fetch it again"
        ) from error
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(
            f"{place}: dtype {str(dtype)[:80]!r} is not supported; supported: {', '.join(DTYPES)}"
        )
    wanted = prod(shape) * DTYPES[dtype].itemsize
    if end - begin != wanted:
        raise CheckpointError(
            f"{place}: {dtype} {list(shape)} takes {wanted} bytes, its offsets [{begin}, {end}] "
            f"hold {end - begin}; the file is damaged: fetch it again"
        )
    return TensorRecord(
        name=name, dtype=dtype, shape=shape, file=path, offset=data_start + begin, bytes=wanted
    )


def _check_extent(path: Path, records: list[TensorRecord], start: int, size: int) -> None:
    end = max((r.offset + r.bytes for r in records), default=start)
    if end != size:
        what = "truncated" if end > size else "longer than its header says"
        raise CheckpointError(
            f"{path}: {what}: the header promises {end} bytes, the file has {size}; fetch it again"
        )
    first = records[0].offset if records else start
    if first != start:
        raise CheckpointError(
            f"{path}: {first - start} bytes before the first tensor {records[0].name} belong to "
            "none; the file is damaged: fetch it again"
        )
    for before, after in pairwise(records):
        gap = after.offset - (before.offset + before.bytes)
        if gap:
            what = "overlaps" if gap < 0 else f"leaves a hole of {gap} bytes after"
            raise CheckpointError(
                f"{path}: tensor {after.name} {what} tensor {before.name}; "
                "the file is damaged: fetch it again"
            )


def _read_shards(folder: Path, index: Path, metadata: dict[str, str]) -> dict[str, TensorRecord]:
    # metadata.total_size is not compared: some published indices have the size in another dtype,
    # and every shard is checked against its own header here.
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise CheckpointError(f"{index}: wanted `weight_map` from tensor name to file name")
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{index}: shard {name!r} lies outside of {folder}")
    # Compared with the listing: a name that no file can have is reported as missing too.
    present = {path.name for path in folder.iterdir() if path.is_file()}
    missing = [name for name in names if name not in present]
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of the {len(names)} shards named by {INDEX} missing: "
            f"{', '.join(missing[:4])}{', ...' if len(missing) > 4 else ''}; fetch them"
        )
    unnamed = sorted({p.name for p in folder.glob("model-*.safetensors")} - set(names))
    if unnamed:
        raise CheckpointError(
            f"{folder}: {', '.join(unnamed)} not named by {INDEX}; "
            "remove the stray file, or fetch the index that belongs to it"
        )
    tensors: dict[str, TensorRecord] = {}
    for name in names:
        records, told_beside = read_file(folder / name)
        metadata.update(told_beside)
        for record in records.values():
            told = weight_map.get(record.name)
            if told != name:
                says = "does not name it" if told is None else f"says it is in {told}"
                raise CheckpointError(
                    f"{folder / name}: holds tensor {record.name}, but {INDEX} {says}; "
                    "the index belongs to other shards: fetch both again"
                )
            tensors[record.name] = record
    for tensor, name in weight_map.items():
        if tensor not in tensors:
            raise CheckpointError(
                f"{index}: says tensor {tensor} is in {name}, which does not hold it; "
                "the index belongs to other shards: fetch both again"
            )
    return tensors
