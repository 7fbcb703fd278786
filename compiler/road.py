"""The road from a checkpoint, or a program, to an artifact."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mxc.compiler.artifact import Artifact, record, writing
from mxc.compiler.models.model import Model, open_model
from mxc.compiler.pack import NanScale, pack
from mxc.compiler.report import Report, require_no_fallback
from mxc.compiler.steps import Compiled, Request, Step
from mxc.compiler.worker import compile_program
from mxc.dialects.errors import ArtifactError, CheckpointError
from mxc.dialects.manifest import (
    CHAT_TEMPLATE,
    MANIFEST,
    MODULE,
    REPORT,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    FileRecord,
    Manifest,
    TargetRecord,
    iree_version,
    mxc_version,
)
from mxc.dialects.targets import Target
from mxc.dialects.targets import target as target_record

#: Files of a checkpoint that generation needs, copied as they are.
TEXT_FILES = (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE)


@dataclass(frozen=True)
class Progress:
    """What a caller may show: steps as they begin and end, bytes as they are packed."""

    step: Callable[[Step], None] = lambda step: None
    packed: Callable[[int, int, str], None] = lambda done, total, tensor: None


def compile(
    source: str | Path,
    target: str = "cpu",
    output: str | Path | None = None,
    *,
    max_sequence_length: int | None = None,
    prefill_chunk: int | None = None,
    activations: str | None = None,
    weights: str = "packed",
    strict: bool = False,
    allow_nan_scales: bool = False,
    force: bool = False,
    dump_ir: str | Path | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Compile a checkpoint folder, or a .mlir program, for `target` into the folder `output`.

    `output` defaults to the source's name with .mxc, here. `weights="none"` leaves the weights
    out: such an artifact can be inspected, not run. `strict` refuses any fallback. `dump_ir`
    receives the IR after each pass and phase. Raises MxcError with the place and the cure.
    """
    source = Path(source)
    record_of_target = target_record(target)
    place = Path(f"{source.absolute().stem}.mxc") if output is None else Path(output)
    show = progress or Progress()
    dump = None if dump_ir is None else Path(dump_ir)
    if weights not in ("packed", "none"):
        raise ArtifactError(f"--weights {weights}: not known; give packed or none")
    with writing(place, force=force) as folder:
        with _shown(show, "reading"):
            model = _open(source, max_sequence_length, prefill_chunk, activations)
        with _shown(show, "building"):
            program = source.read_bytes() if model is None else model.program()
        request = Request(program=program, target=target, module=folder / MODULE, dump_dir=dump)
        compiled = compile_program(request, show.step)
        report = Report.from_dict(compiled.report)
        if strict:
            require_no_fallback(report)
        (folder / REPORT).write_text(report.to_json())
        manifest = _finish(
            folder,
            model,
            compiled,
            record_of_target,
            packed=weights == "packed",
            allow_nan_scales=allow_nan_scales,
            show=show,
        )
        (folder / MANIFEST).write_text(manifest.to_json())
    return Artifact(place.absolute(), manifest)


def _open(
    source: Path,
    max_sequence_length: int | None,
    prefill_chunk: int | None,
    activations: str | None,
) -> Model | None:
    """The model in a checkpoint folder; None where `source` is a program."""
    if source.is_dir():
        return open_model(
            source,
            max_sequence_length=max_sequence_length,
            prefill_chunk=prefill_chunk,
            activations=activations,
        )
    if not source.exists():
        raise CheckpointError(f"{source}: does not exist; give a checkpoint folder or a .mlir file")
    if source.suffix not in (".mlir", ".mlirbc"):
        raise CheckpointError(
            f"{source}: neither a checkpoint folder nor a .mlir file; a checkpoint is given by "
            "the folder that holds its config.json"
        )
    for option, value in (
        ("--max-sequence-length", max_sequence_length),
        ("--prefill-chunk", prefill_chunk),
        ("--activations", activations),
    ):
        if value is not None:
            raise CheckpointError(f"{option} has no meaning for a program ({source})")
    return None


def _finish(
    folder: Path,
    model: Model | None,
    compiled: Compiled,
    target: Target,
    *,
    packed: bool,
    allow_nan_scales: bool,
    show: Progress,
) -> Manifest:
    """Pack the weights, copy what text needs, and write down what the artifact is."""
    notes: list[str] = []
    source: dict[str, FileRecord] = {}
    files: dict[str, FileRecord] = {}
    if model is not None:
        notes += model.notes
        if packed:
            with _shown(show, "packing"):
                archive = pack(
                    model.pack_items(),
                    folder / WEIGHTS,
                    allow_nan_scales=allow_nan_scales,
                    progress=show.packed,
                )
            files[WEIGHTS] = archive.file
            source |= archive.source
            notes += [_describe(nan) for nan in archive.nan_scales]
        else:
            notes.append("compiled without weights: it can be inspected, not run")
        for name in TEXT_FILES:
            if (model.folder / name).is_file():
                shutil.copyfile(model.folder / name, folder / name)
        source |= {file.name: record(file) for file in sorted(model.folder.glob("*.json*"))}
    files |= {file.name: record(file) for file in folder.iterdir() if file.name not in files}
    return Manifest(
        mxc_version=mxc_version(),
        iree_version=iree_version(),
        target=TargetRecord(
            name=target.name,
            device=target.device,
            architecture=target.architecture,
            chip=compiled.chip,
            features=compiled.features,
        ),
        activations="f32" if model is None else model.options.activations,
        functions=compiled.functions,
        files=files,
        weights={} if model is None else model.weights(),
        weights_present=model is None or packed,
        model=None if model is None else model.record(),
        source=source,
        options={"steps": {s.name: s.seconds for s in compiled.steps}},
        notes=tuple(notes),
    )


def _describe(nan: NanScale) -> str:
    return (
        f"{nan.tensor}: expert {nan.expert}, row {nan.row} has {nan.count} NaN scales; every "
        "product with those blocks is NaN (--allow-nan-scales)"
    )


@contextmanager
def _shown(progress: Progress, name: str) -> Iterator[None]:
    """Tell when a step of the road begins, and how long it took."""
    progress.step(Step(kind="road", name=name))
    start = time.perf_counter()
    yield
    progress.step(Step(kind="road", name=name, seconds=time.perf_counter() - start))
