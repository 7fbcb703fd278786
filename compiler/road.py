"""The road from a checkpoint, or a program, to an artifact."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mxc.compiler.artifact import Artifact, record, writing
from mxc.compiler.models.model import TEXT_FILES, Model, open_model
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.nan_scales import NanScale
from mxc.compiler.packing.pack import Packed, pack
from mxc.compiler.packing.quantised import describe_loss, loss_rows
from mxc.compiler.report import Report, require_no_fallback
from mxc.compiler.steps import Compiled, Progress, Recorder, Request
from mxc.compiler.worker import compile_program
from mxc.dialects.errors import ArtifactError, CheckpointError
from mxc.dialects.manifest import (
    MANIFEST,
    MODULE,
    REPORT,
    TOKENIZER,
    WEIGHTS,
    FileRecord,
    Manifest,
    TargetRecord,
    iree_version,
    mxc_version,
)
from mxc.dialects.targets import target as target_record

#: What a program may be in: MLIR as text or as bytecode.
PROGRAMS = (".mlir", ".mlirbc")


def compile(
    source: str | Path,
    target: str = "cpu",
    output: str | Path | None = None,
    *,
    max_sequence_length: int | None = None,
    prefill_chunk: int | None = None,
    activations: str | None = None,
    quantize_dense: str | None = None,
    recipe: str | None = None,
    weights: str = "packed",
    strict: bool = False,
    allow_nan_scales: bool = False,
    force: bool = False,
    dump_ir: str | Path | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Compile a checkpoint folder, or a .mlir program, for `target` into the folder `output`.

    `output` defaults to the source's name with .mxc, in the current folder. `weights="none"`
    leaves the weights out: such an artifact can be inspected, not run. `strict` refuses any
    fallback. `dump_ir` receives the IR after each pass and phase. Raises MxcError with the place
    and the cure; nothing is left in the place of the artifact then, nor after an interrupt.
    """
    source = Path(source)
    target_record(target)  # refuses an unknown name before anything is touched
    if weights not in ("packed", "none"):
        raise ArtifactError(f"--weights {weights}: not known; give packed or none")
    place = _default_output(source) if output is None else Path(output)
    road = Recorder(progress or Progress())
    given = {
        "max_sequence_length": max_sequence_length,
        "prefill_chunk": prefill_chunk,
        "activations": activations,
        "quantize_dense": quantize_dense,
        "recipe": recipe,
    }
    options: dict[str, Any] = {"target": target, "strict": strict}
    with writing(place, force=force) as folder:
        with road.step("reading"):
            model = _open(source, given)
            sources = {file.name: record(file) for file in model.files} if model else {}
        with road.step("building"):
            program = source.read_bytes() if model is None else model.program()
        request = Request(
            program=program,
            place=str(source),
            target=target,
            module=folder / MODULE,
            parameters=model is not None,
            dump_dir=_dump_folder(dump_ir),
        )
        compiled = compile_program(request, road.saw)
        if strict:
            require_no_fallback(Report.from_dict(compiled.report))
        archive = None
        if model is None:
            sources[source.name] = _of_bytes(program)
        else:
            options |= asdict(model.options)
            options |= {"weights": weights, "allow_nan_scales": allow_nan_scales}
            if weights == "packed":
                with road.step("packing"):
                    items = model.pack_items(compiled.panels)
                    archive = _pack(items, folder, allow_nan_scales, road.progress)
                sources |= archive.source
            for name in TEXT_FILES:
                if (model.folder / name).is_file():
                    shutil.copyfile(model.folder / name, folder / name)
        report = {**compiled.report, "steps": [asdict(step) for step in road.done]}
        if archive is not None and archive.losses:
            report["quantised"] = loss_rows(archive.losses)
        (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
        manifest = _manifest(folder, model, compiled, archive, sources, options)
        (folder / MANIFEST).write_text(manifest.to_json())
    return Artifact(place.absolute(), manifest)


def _default_output(source: Path) -> Path:
    whole = source.resolve()
    return Path((whole.name if whole.is_dir() else whole.stem) + ".mxc")


def _dump_folder(dump_ir: str | Path | None) -> Path | None:
    if dump_ir is None:
        return None
    folder = Path(dump_ir).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"--dump-ir {dump_ir}: cannot be made ({error.strerror}); give another folder"
        ) from error
    return folder


def _open(source: Path, given: dict[str, Any]) -> Model | None:
    """The model in a checkpoint folder; None where `source` is a program."""
    wanted = "give a checkpoint folder (safetensors) or a program (.mlir, .mlirbc)"
    if source.is_dir():
        return open_model(source, **given)
    if not source.exists():
        raise CheckpointError(f"{source}: does not exist; {wanted}")
    if source.suffix in (".safetensors", ".json"):
        raise CheckpointError(f"{source}: one file of a checkpoint; give the folder that holds it")
    if source.suffix not in PROGRAMS:
        kind = "GGUF is not supported" if source.suffix == ".gguf" else "of no known kind"
        raise CheckpointError(f"{source}: {kind}; {wanted}")
    for name, value in given.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise CheckpointError(f"{option} has no meaning for a program ({source}); leave it out")
    return None


def _pack(
    items: Sequence[PackItem], folder: Path, allow_nan_scales: bool, progress: Progress
) -> Packed:
    return pack(
        items,
        folder / WEIGHTS,
        allow_nan_scales=allow_nan_scales,
        progress=progress.packed,
    )


def _of_bytes(data: bytes) -> FileRecord:
    return FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _manifest(
    folder: Path,
    model: Model | None,
    compiled: Compiled,
    archive: Packed | None,
    sources: dict[str, FileRecord],
    options: dict[str, Any],
) -> Manifest:
    """What the artifact says of itself, once all its other files are in `folder`."""
    target = target_record(options["target"])
    # The archive was hashed while it was written.
    known = {} if archive is None else {WEIGHTS: archive.file}
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
        activations="as written" if model is None else model.options.activations,
        functions=compiled.functions,
        files={f.name: known.get(f.name) or record(f) for f in sorted(folder.iterdir())},
        activation_recipe=None if model is None else model.options.activation_recipe,
        weights={}
        if model is None
        else model.weights(compiled.panels, archive.losses if archive else None),
        weights_present=model is None or archive is not None,
        model=None if model is None else model.record(),
        source=sources,
        options=options,
        notes=() if model is None else _notes(model, archive),
    )


def _notes(model: Model, archive: Packed | None) -> tuple[str, ...]:
    notes = list(model.notes)
    if archive is None:
        notes.append("compiled without weights: it can be inspected, not run")
    else:
        notes += [_describe(nan) for nan in archive.nan_scales]
        notes += describe_loss(archive.losses)
    if not (model.folder / TOKENIZER).is_file():
        notes.append(
            f"the checkpoint has no {TOKENIZER}: a prompt can only be given as tokens "
            "(mxc generate --prompt-tokens)"
        )
    return tuple(notes)


def _describe(nan: NanScale) -> str:
    return (
        f"{nan.tensor}: expert {nan.expert}, row {nan.row} has {nan.count} NaN scales; every "
        "product with those blocks is NaN (--allow-nan-scales)"
    )
