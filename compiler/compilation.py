"""`compile`: compile a checkpoint or a program into an artifact."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import MANIFEST, REPORT, SCHEDULES, TOKENIZER, FileRecord, Manifest
from mxc.artifact.versions import iree_version, mxc_version
from mxc.compiler.artifact import Artifact, record, writing
from mxc.compiler.checkpoints.hub import located, origin
from mxc.compiler.levels import (
    LevelArchives,
    LevelProgram,
    common_target,
    compile_level,
    level_records,
    pack_shared,
    report_of,
    target_of,
    targets_of,
    unit_of,
)
from mxc.compiler.models.model import BoundModel, open_model
from mxc.compiler.packing.nan_scales import NanScale
from mxc.compiler.packing.quantized import describe_loss, loss_rows
from mxc.compiler.page import KernelTexts, write_page
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.programs.imported import ImportedProgram
from mxc.compiler.programs.opening import ForeignProgram, foreign_program, imported
from mxc.compiler.report import Report, require_no_fallback
from mxc.compiler.steps import CompileRequest, Progress, Recorder, require_timeout
from mxc.compiler.tokenizers.check import check_texts
from mxc.errors import ArtifactError, CheckpointError
from mxc.targets.matrix_unit import MatrixUnit

#: File name suffixes of MLIR programs, as text or as bytecode.
PROGRAMS = (".mlir", ".mlirbc")

_WITHOUT = ("compiled without weights: it can be inspected, not run",)
_UNLISTED = ("compiled without a listing: the report has not looked for kernels in assembly",)


def compile(
    source: Any,
    target: str | Sequence[str] = "cpu",
    output: str | Path | None = None,
    *,
    max_sequence_length: int | None = None,
    activations: str | None = None,
    quantize_dense: str | None = None,
    recipe: str | None = None,
    kv_cache: str | None = None,
    weights: str = "packed",
    revision: str | None = None,
    strict: bool = False,
    allow_nan_scales: bool = False,
    force: bool = False,
    dump_ir: str | Path | None = None,
    html: str | Path | None = None,
    listing: bool = True,
    schedule: str | Path | None = None,
    observe_inputs: bool = False,
    devices: int = 1,
    phase_timeout: float | None = None,
    cache: bool = True,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Compile a checkpoint folder, or a program, for `target` into the folder `output`.

    A program is a file (.mlir, .stablehlo, .pt2, .onnx), a `jax.export.Exported`, a
    `torch.export.ExportedProgram`, or a dict from function names to such objects or files; its
    weights are packed.

    If `source` does not exist and reads ORG/NAME, it is a repository of the Hugging Face hub at
    `revision`, taken from the local hub cache or downloaded (checkpoints/hub.py).

    - `target`: several CPU targets make one artifact with one program for each of these levels of
      CPU features; at load, the best level that the machine supports is chosen.
    - `output`: the name of the source with .mxc in the current folder by default.
    - `kv_cache`: format of cached keys and values: bf16, f32, fp8, mxint8 or mxfp8. The default is
      bf16 or f32, as activations are.
    - `weights="none"` leaves the weights out: such an artifact can be inspected, not run.
    - `strict` refuses any fallback.
    - `dump_ir`: folder for the IR after each pass and phase, with a subfolder for each of several
      targets.
    - `html`: file for the report as a page, with the assembly of kernels and the IR of `dump_ir`.
    - `listing`: put the instructions and registers of kernels into the report; LLVM generates their
      code twice for this. Without it the compilation is faster, and a note says that the report has
      no kernels. `strict` and `html` imply it.
    - `schedule`: a file of schedules (passes/kernels/given_schedules.py), which the artifact keeps.
    - `observe_inputs`: functions of a model also return the inputs of its linear layers (mxc
      quantize --calibrate).
    - `devices`: number of devices that compute a model together, each with its share of the weights
      (docs/devices.md).
    - `phase_timeout`: limit in seconds for each phase of the compiler, one hour by default.
    - `cache`: take a program that was compiled before with the same options from the cache
      (cache.py).
    - `workers` pack the weights; the default is threads of this process. If one is lost, its
      results are kept and the next compilation of the same source and options resumes.

    Raises MxcError, which says where the error is and how to fix it. Nothing is left at `output`
    after an error or an interrupt.
    """
    foreign = foreign_program(source)
    source = Path(foreign.place) if foreign is not None else located(source, revision)
    timeout = require_timeout(phase_timeout)
    targets = targets_of(target)  # refuses a wrong target before anything is written
    if weights not in ("packed", "none"):
        raise ArtifactError(f"--weights {weights}: not known; give packed or none")
    place = _default_output(source) if output is None else Path(output)
    recorder = Recorder(progress or Progress())
    names = [record.name for record in targets.values()]
    given = {
        "max_sequence_length": max_sequence_length,
        "activations": activations,
        "quantize_dense": quantize_dense,
        "recipe": recipe,
        "kv_cache": kv_cache,
        "observe_inputs": observe_inputs or None,
        "devices": None if devices == 1 else devices,
    }
    options: dict[str, Any] = {"target": names if len(names) > 1 else names[0], "strict": strict}
    if schedule is not None and not Path(schedule).is_file():
        raise ArtifactError(f"--schedule {schedule}: is no file; give one with schedules as JSON")
    with writing(place, force=force) as folder, ExitStack() as stack:
        with recorder.step("reading"):
            model = _opened(source, given, foreign, unit=unit_of(targets.values()))
            sources = {file.name: record(file) for file in model.files} if model else {}
            notes = [] if model is None else _texts(model, folder)
            if (found := origin(source)) is not None:
                options["repository"], options["revision"] = found
                notes.append(f"source: {' at '.join(found)}, of the Hugging Face hub")
        with recorder.step("building"):
            code = b""
            if model is not None:
                # Several targets are levels of a CPU, and none of them has groups.
                code = model.program(next(iter(targets.values())).group_rows)
            elif foreign is None:
                code = source.read_bytes()
        weighted: BoundModel | ImportedProgram | None = model
        if foreign is not None:
            weighted = stack.enter_context(imported(foreign, timeout, recorder))
            code = weighted.program
        request = CompileRequest(
            program=code,
            place=str(source),
            target="",
            module=folder,
            parameters=weighted is not None,
            dump_dir=_dump_folder(dump_ir),
            schedules="" if schedule is None else str(Path(schedule).absolute()),
            assembly=html is not None,
            listed=listing or strict or html is not None,
            phase_timeout=timeout,
            cached=cache,
            devices=1 if model is None else model.options.devices,
        )
        programs = {
            level: compile_level(request, level, each, recorder, several=len(targets) > 1)
            for level, each in targets.items()
        }
        if strict:
            for program in programs.values():
                require_no_fallback(Report.from_dict(program.compiled.report))
        archives = None
        if foreign is not None:
            sources = {
                name: _of_bytes(each) if isinstance(each, bytes) else record(each)
                for name, each in foreign.functions.items()
                if isinstance(each, bytes | Path)
            }
        elif model is None:
            sources[source.name] = _of_bytes(code)
        if model is not None:
            # As they are read back from JSON: lists for tuples.
            options |= {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in asdict(model.options).items()
            }
        if weighted is not None:
            options |= {"weights": weights, "allow_nan_scales": allow_nan_scales}
            if weights == "packed":
                archives = pack_shared(
                    weighted, programs, folder, place, allow_nan_scales, workers, recorder
                )
                for packed in archives.packed.values():
                    sources |= packed.source
        if schedule is not None:
            sources[Path(schedule).name] = record(Path(schedule))
            shutil.copyfile(schedule, folder / SCHEDULES)
        report = report_of(programs, archives, recorder)
        if archives is not None and archives.losses:
            report["quantized"] = loss_rows(archives.losses)
        if model is not None and model.options.devices > 1:
            (first, *_) = programs.values()
            report["devices"] = [
                asdict(each) for each in model.device_weights(first.compiled.panels)
            ]
        said = (
            *dict.fromkeys(note for each in programs.values() for note in each.compiled.notes),
            *(() if model is None else _notes(model, archives, notes)),
            *(_WITHOUT if weighted is not None and archives is None else ()),
            *(() if request.listed else _UNLISTED),
        )
        report["notes"] = list(said)
        (folder / REPORT).write_text(json.dumps(report, indent=1) + "\n")
        if not request.listed:
            options["listing"] = False
        manifest = _manifest(folder, model, weighted, programs, archives, sources, options, said)
        (folder / MANIFEST).write_text(manifest.to_json())
        if html is not None:
            code_of = {
                level if len(programs) > 1 else "": KernelTexts(
                    program.compiled.assembly, program.compiled.nests
                )
                for level, program in programs.items()
            }
            write_page(Path(html), folder, code=code_of, dump=request.dump_dir, name=place.name)
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


def _opened(
    source: Path, given: dict[str, Any], foreign: ForeignProgram | None, *, unit: MatrixUnit | None
) -> BoundModel | None:
    if foreign is None:
        return opened(source, given, unit=unit)
    require_no_options(given, foreign.place)
    return None


def require_no_options(given: Mapping[str, Any], source: str | Path) -> None:
    """Raise CheckpointError if an option of models is given for a program."""
    for name, value in given.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise CheckpointError(f"{option} has no meaning for a program ({source}); leave it out")


def opened(source: Path, given: dict[str, Any], *, unit: MatrixUnit | None) -> BoundModel | None:
    """Return the model in a checkpoint folder or a .gguf file; None for a program.

    The model is for a GPU with the matrix instructions `unit`, or for CPUs if that is None. Raises
    CheckpointError for a source that does not exist or is of no known kind.
    """
    wanted = "give a checkpoint folder, a .gguf or a program (.mlir, .stablehlo, .pt2, .onnx)"
    if source.is_dir() or source.suffix == ".gguf":
        return open_model(source, unit=unit, **given)
    if not source.exists():
        raise CheckpointError(f"{source}: does not exist; {wanted}")
    if source.suffix in (".safetensors", ".json"):
        raise CheckpointError(f"{source}: one file of a checkpoint; give the folder that holds it")
    if source.suffix not in PROGRAMS:
        raise CheckpointError(f"{source}: of no known kind; {wanted}")
    require_no_options(given, source)
    return None


def _of_bytes(data: bytes) -> FileRecord:
    return FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _manifest(
    folder: Path,
    model: BoundModel | None,
    weighted: BoundModel | ImportedProgram | None,
    programs: Mapping[str, LevelProgram],
    archives: LevelArchives | None,
    sources: dict[str, FileRecord],
    options: dict[str, Any],
    notes: tuple[str, ...],
) -> Manifest:
    """Return the manifest of the artifact in `folder`, which holds all its other files."""
    # The digests of the archives were computed while they were written.
    known = {name: packed.file for name, packed in archives.packed.items()} if archives else {}
    files = {
        file.relative_to(folder).as_posix(): file
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
    first, *others = programs.values()
    if any(each.compiled.functions != first.compiled.functions for each in others):
        raise ArtifactError(f"{folder}: the levels have different functions; report this")
    levels = level_records(weighted, programs, archives) if others else {}
    return Manifest(
        mxc_version=mxc_version(),
        iree_version=iree_version(),
        target=common_target([target_of(each) for each in programs.values()]),
        activations="as written" if model is None else model.options.activations,
        functions=first.compiled.functions,
        files={name: known.get(name) or record(file) for name, file in files.items()},
        activation_recipe=None if model is None else model.options.activation_recipe,
        weights={}
        if weighted is None
        else weighted.weights(first.compiled.panels, archives.losses if archives else None),
        weights_present=weighted is None or archives is not None,
        model=None if model is None else model.record(),
        source=sources,
        options=options,
        notes=notes,
        levels=levels,
    )


def _texts(model: BoundModel, folder: Path) -> list[str]:
    """Copy tokenizer and chat template into the artifact, try them, and return notes about them.

    Raises CheckpointError if they are broken or do not belong to the model.
    """
    model.write_texts(folder)
    size, ends = model.decoder.vocab_size, model.eos_tokens
    return check_texts(folder, model.place, vocab_size=size, eos_tokens=ends)


def _notes(
    model: BoundModel, archives: LevelArchives | None, texts: Sequence[str]
) -> tuple[str, ...]:
    notes = [*model.notes, *texts]
    if archives is not None:
        found = [nan for packed in archives.packed.values() for nan in packed.nan_scales]
        notes += dict.fromkeys(_describe(nan) for nan in found)
        notes += describe_loss(archives.losses)
    if TOKENIZER not in model.texts and not (model.place / TOKENIZER).is_file():
        notes.append(
            f"the checkpoint has no {TOKENIZER}: a prompt can only be given as tokens "
            "(mxc generate --prompt-tokens)"
        )
    return tuple(notes)


def _describe(nan: NanScale) -> str:
    return (
        f"{nan.tensor}: {nan.place(', ')} has {nan.count} NaN scales; every "
        "product with those blocks is NaN (--allow-nan-scales)"
    )
