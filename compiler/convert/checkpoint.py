"""A checkpoint written in another dialect, where every value can be kept exactly.

    open -> plan (names, dtypes, shapes; refusals) -> temporary name -> tensors -> its own name

Tensors are streamed, a few MiB at a time, and nothing appears under the name of the output before
it is whole. Going back gives the bytes of every tensor again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from mxc.compiler.checkpoints.canonical.codecs import narrowed
from mxc.compiler.checkpoints.canonical.stored import InRows, Interleaved, Stored
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.dialects.gguf import NAME as GGUF
from mxc.compiler.checkpoints.files.safetensors import CONFIG, INDEX, SINGLE
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.checkpoints.source import Source
from mxc.compiler.convert.gguf import CONFIG_KEY, DTYPES_KEY, plan_gguf
from mxc.compiler.convert.gguf_header import header
from mxc.compiler.convert.layers import plan_compressed_tensors, plan_gpt_oss, plan_quark
from mxc.compiler.convert.libraries import plan_modelopt, plan_torchao
from mxc.compiler.convert.plan import Bytes, Plan, Written
from mxc.compiler.leftovers import partial_folder
from mxc.compiler.models.architectures import read_decoder
from mxc.compiler.models.configs.gguf import published_config, stores_norms
from mxc.compiler.models.configs.gguf_rope import DIVISORS, FACTORS
from mxc.compiler.packing.archive_file import archive_file
from mxc.compiler.quantize.outputs import Tensor
from mxc.compiler.quantize.write import layout
from mxc.compiler.tokenizers.from_gguf import text_files
from mxc.errors import CheckpointError, RequestError

PLANS: Mapping[str, Callable[[Source], Plan]] = {
    "gpt-oss": plan_gpt_oss,
    "quark": plan_quark,
    "compressed-tensors": plan_compressed_tensors,
    GGUF: plan_gguf,
    "modelopt": plan_modelopt,
    "torchao": plan_torchao,
}

#: Files that are copied from folder to folder.
_COPIED = (
    "generation_config.json",
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    "special_tokens_map.json",
)

#: Bytes of tensors in one safetensors file.
_SHARD = 4 << 30

#: Called with the bytes that are written, of how many, and the tensor that was last.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What was written: tensors, bytes of tensors, and what the output could not say."""

    dialect: str
    tensors: int
    bytes: int
    notes: tuple[str, ...]


def convert(
    path: Path, to: str, output: Path, *, force: bool = False, progress: Progress | None = None
) -> Converted:
    """Write the checkpoint `path` as `output` in the dialect `to`, a key of PLANS.

    `output` is a folder, of gguf a file. Raises RequestError for an unknown dialect; ArtifactError
    or RequestError where the output exists (unless `force`) or cannot be written; CheckpointError
    for what cannot be read, and by name for the first tensor that the dialect cannot hold with
    every value kept. Nothing is left behind then.
    """
    if to not in PLANS:
        raise RequestError(f"unknown dialect {to!r}; mxc writes {', '.join(PLANS)}")
    source = open_checkpoint(path)
    if output.exists() and not force:
        raise RequestError(f"{output}: exists; choose another output, or pass --force")
    if output.resolve() in (path.resolve(), *path.resolve().parents):
        raise RequestError(f"{output}: holds the source; choose another output")
    texts: Mapping[str, bytes] = {}
    if to != GGUF:
        if source.dialect == GGUF:
            texts = text_files(source.config, str(path))
        source = _with_config(source)
    elif source.dialect == GGUF:
        raise RequestError(f"{path}: is GGUF already; copy it")
    plan = PLANS[to](source)
    whole = sum(tensor.bytes for tensor in plan.tensors)
    report = progress or (lambda done, total, tensor: None)
    if to == GGUF:
        _write_gguf(plan, output, whole, report)
    else:
        _write_folder(plan, source, texts, output, whole, report)
    return Converted(dialect=to, tensors=len(plan.tensors), bytes=whole, notes=plan.notes)


def _with_config(source: Source) -> Source:
    """The source with a config.json, and with the dtypes that its tensors had before GGUF."""
    if source.dialect != GGUF:
        return source
    kept = source.config.get(CONFIG_KEY)
    if not isinstance(kept, str) or stores_norms(source.config):
        place = str(source.path)
        made, tensors = published_config(source.config, source.tensors, place)
        made.pop("quantization_config", None)
        # What is incomplete is refused here, not by who reads the output.
        read_decoder(made, place)
        return replace(source, config=made, tensors=tensors)
    config = _json(kept, source, CONFIG_KEY)
    dtypes = _json(str(source.config.get(DTYPES_KEY, "{}")), source, DTYPES_KEY)
    tensors = {
        name: _narrowed(tensor, dtypes.get(name), source)
        for name, tensor in source.tensors.items()
        if name not in (DIVISORS, *FACTORS)  # which config.json says
    }
    return replace(source, config=config, tensors=tensors)


def _json(text: str, source: Source, key: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source.path}: {key} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{source.path}: {key} is no JSON object")
    return value


def _narrowed(tensor: CanonicalTensor, dtype: Any, source: Source) -> CanonicalTensor:
    if dtype is None:
        return tensor
    if dtype not in ("BF16", "F16") or tensor.dtype != "F32":
        raise CheckpointError(
            f"{source.path}: {DTYPES_KEY} says {tensor.name} was {dtype!r}, it is {tensor.dtype}; "
            "the file is damaged"
        )
    codec = narrowed(DTYPES[str(dtype)])

    def narrow(part: InRows) -> Stored:
        if not isinstance(part, Stored):
            raise AssertionError(f"{part.name} is of no GGUF")
        return replace(part, dtype=str(dtype), codec=codec)

    elements = tensor.elements
    if isinstance(elements, Interleaved):
        interleaved = replace(
            elements, parts=tuple(narrow(part) for part in elements.parts), dtype=str(dtype)
        )
        return replace(tensor, elements=interleaved, format=str(dtype).lower())
    return replace(tensor, elements=narrow(elements), format=str(dtype).lower())


def _write_gguf(plan: Plan, output: Path, whole: int, report: Progress) -> None:
    head, starts, size = header(plan)
    with _taking_place(output), archive_file(output, size) as file:
        file.write(np.frombuffer(head, np.uint8))
        done = 0
        for tensor, start in zip(plan.tensors, starts, strict=True):
            file.write(np.zeros(start - file.position, np.uint8))
            for data in _checked(tensor):
                file.write(data)
                done += data.size
                report(done, whole, tensor.name)
        file.write(np.zeros(size - file.position, np.uint8))


def _write_folder(
    plan: Plan,
    source: Source,
    texts: Mapping[str, bytes],
    output: Path,
    whole: int,
    report: Progress,
) -> None:
    with partial_folder(output) as temporary:
        text = json.dumps(dict(plan.config), indent=2) + "\n"
        (temporary / CONFIG).write_text(text)
        if source.path.is_dir():
            for name in _COPIED:
                if (source.path / name).is_file():
                    shutil.copyfile(source.path / name, temporary / name)
        for name, said in plan.files.items():
            (temporary / name).write_text(json.dumps(said, indent=2) + "\n")
        for name, content in texts.items():
            (temporary / name).write_bytes(content)
        _write_shards(plan, temporary, whole, report)
        with _taking_place(output):
            os.rename(temporary, output)


def _write_shards(plan: Plan, folder: Path, whole: int, report: Progress) -> None:
    shards = list(_shards(plan.tensors))
    weight_map: dict[str, str] = {}
    done = 0
    for index, shard in enumerate(shards, 1):
        name = SINGLE if len(shards) == 1 else f"model-{index:05}-of-{len(shards):05}.safetensors"
        described = [Tensor(t.name, t.dtype, t.shape) for t in shard]
        head, _, size = layout(described, {"format": "pt", **plan.metadata})
        with archive_file(folder / name, size) as file:
            file.write(np.frombuffer(head, np.uint8))
            for tensor in shard:
                for data in _checked(tensor):
                    file.write(data)
                    done += data.size
                    report(done, whole, tensor.name)
        weight_map |= dict.fromkeys((t.name for t in shard), name)
    if len(shards) > 1:
        index_text = {"metadata": {"total_size": whole}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index_text, indent=2) + "\n")


def _shards(tensors: Sequence[Written]) -> Iterator[list[Written]]:
    shard: list[Written] = []
    size = 0
    for tensor in tensors:
        if shard and size + tensor.bytes > _SHARD:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.bytes
    yield shard


def _checked(tensor: Written) -> Iterator[Bytes]:
    """The bytes of a tensor, which have to be as many as the header says."""
    left = tensor.bytes
    for data in tensor.data():
        left -= data.size
        yield data.reshape(-1)
    if left:
        raise AssertionError(f"{tensor.name}: {left} bytes of {tensor.bytes} are missing")


@contextmanager
def _taking_place(output: Path) -> Iterator[None]:
    """What is at `output` goes only where what takes its place is whole, and else comes back."""
    if not output.exists():
        yield
        return
    aside = output.with_name(f".{output.name}.replaced-{os.getpid()}")
    os.rename(output, aside)
    try:
        yield
    except BaseException:
        os.rename(aside, output)
        raise
    if aside.is_dir():
        shutil.rmtree(aside)
    else:
        aside.unlink()
