"""Writes a checkpoint in another dialect, if the dialect can hold every value exactly.

  open -> plan (names, dtypes, shapes; refusals) -> hidden folder -> tensors -> rename to output

Tensors are written in pieces, a few MiB at a time, and the output appears when it is complete.
Converting back restores the bytes of every tensor.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mxc.artifact.manifest import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from mxc.compiler.checkpoints.dialects.gguf import NAME as GGUF
from mxc.compiler.checkpoints.files.safetensors import CONFIG, INDEX
from mxc.compiler.convert.replaceable import require_replaceable
from mxc.compiler.convert.request import ConversionRequest, PreparedConversion
from mxc.compiler.convert.writing import GGUF_FILE, Progress
from mxc.compiler.leftovers import JOURNAL, resumable_folder
from mxc.compiler.pieces.run import Runner, digest_of, files_of
from mxc.compiler.pieces.workers import Workers
from mxc.errors import RequestError

#: Files that are copied from the source folder.
_COPIED = (
    "generation_config.json",
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    "special_tokens_map.json",
)


@dataclass(frozen=True, kw_only=True)
class ConversionResult:
    """The result: number and bytes of the tensors written, and notes on what the output cannot
    express."""

    dialect: str
    tensors: int
    bytes: int
    notes: tuple[str, ...]


def convert(
    path: Path,
    to: str,
    output: Path,
    *,
    force: bool = False,
    workers: Workers | None = None,
    progress: Progress | None = None,
    made_of: str | None = None,
) -> ConversionResult:
    """Write the checkpoint `path` as `output` in the dialect `to`, a key of PLANS.

    `output` is a folder, or a file for gguf. The bytes do not depend on `workers`, by default
    threads of this process. An interrupted run of the same request is resumed (pieces/run.py).
    `made_of`: the digest of the request that wrote `path`; by default names, sizes and times of its
    files tell whether it is the same. Raises RequestError for an unknown dialect; ArtifactError or
    RequestError if the output cannot be written or exists, unless `force` is set and mxc wrote it;
    CheckpointError if the source cannot be read, and for the first tensor, by name, that the
    dialect cannot hold exactly. Nothing is left behind then. Raises WorkerError if a worker is
    lost; finished pieces are kept.
    """
    workers = workers or Workers()
    request = ConversionRequest(source=path.absolute(), to=to)
    planned = request.planned()
    if output.resolve() in (path.resolve(), *path.resolve().parents):
        raise RequestError(f"{output}: holds the source; choose another output")
    require_replaceable(output, gguf=to == GGUF, force=force)
    writing, plan = planned.writing, planned.plan
    digest = digest_of(request, made_of or files_of(path))
    report = progress or (lambda done, total, tensor: None)
    with resumable_folder(output, digest) as folder:
        with Runner(request, writing, folder, digest, workers, output) as runner:
            writing.write(runner, report)
        if to != GGUF:
            _write_others(planned, path, folder)
        # Another process may have created something else meanwhile.
        require_replaceable(output, gguf=to == GGUF, force=force)
        with _taking_place(output):
            (folder / JOURNAL).unlink()
            (folder / GGUF_FILE if to == GGUF else folder).rename(output)
    return ConversionResult(
        dialect=to, tensors=len(plan.tensors), bytes=writing.total, notes=plan.notes
    )


def _write_others(planned: PreparedConversion, source: Path, folder: Path) -> None:
    """Write the files of a checkpoint folder beside its tensors."""
    plan, weight_map = planned.plan, planned.writing.weight_map
    (folder / CONFIG).write_text(json.dumps(dict(plan.config), indent=2) + "\n")
    if source.is_dir():
        for name in _COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
    for name, said in plan.files.items():
        (folder / name).write_text(json.dumps(said, indent=2) + "\n")
    for name, content in planned.texts.items():
        (folder / name).write_bytes(content)
    if len(planned.writing.files) > 1:
        index = {"metadata": {"total_size": planned.writing.total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


@contextmanager
def _taking_place(output: Path) -> Iterator[None]:
    """Move an existing `output` aside, and restore it if the block raises; else remove it."""
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
