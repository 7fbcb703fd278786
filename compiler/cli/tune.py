"""`mxc tune`: measures the schedules of an artifact on this machine, and keeps the fastest."""

from __future__ import annotations

import json as json_text
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxc.artifact.manifest import SCHEDULES, Manifest, read_manifest
from mxc.artifact.schema import SchemaError, read_record
from mxc.errors import ArtifactError, CheckpointError, RequestError

if TYPE_CHECKING:
    from mxc.compiler.artifact import Artifact

#: Number of prompt tokens that are measured, beside a single token.
_PROMPT = 128

NOTHING = "had nothing to choose: no product has several schedules"


@dataclass(frozen=True, kw_only=True)
class _Recorded:
    """The options in a manifest with which a model is compiled again."""

    target: str
    max_sequence_length: int
    activations: str
    quantize_dense: str | None
    recipe: str | None
    kv_cache: str
    devices: int
    strict: bool
    allow_nan_scales: bool


def command(
    artifact: Annotated[
        Path, typer.Argument(help="An artifact of a language model.", show_default=False)
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            help="The checkpoint of which it was compiled: a folder, a .gguf, or ORG/NAME.",
            show_default="the repository of the hub from which it came",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report for programs.")] = False,
) -> None:
    """Measure the schedules of an artifact's products on this CPU, and keep the fastest.

    The artifact is compiled again with the options that it was compiled with, and replaced.

    Example: mxc tune gpt-oss-20b.mxc --source gpt-oss-20b
    """
    from rich.console import Console

    from mxc.compiler import compilation
    from mxc.compiler.checkpoints.hub import located
    from mxc.compiler.cli.compile import show_artifact
    from mxc.compiler.cli.progress import showing
    from mxc.compiler.cli.signals import ending_cleanly

    manifest = read_manifest(artifact)
    options = _recorded(artifact, manifest)
    place = _place(artifact, manifest) if source is None else located(source)
    _require_same(artifact, manifest, place)

    with ending_cleanly(), showing(Console(stderr=True)) as progress:

        def compile(output: Path, schedule: Path) -> Artifact:
            made = compilation.compile(
                place,
                options.target,
                output,
                max_sequence_length=options.max_sequence_length,
                activations=options.activations,
                quantize_dense=options.quantize_dense,
                recipe=options.recipe,
                kv_cache=_kv_cache(options.kv_cache),
                devices=options.devices,
                strict=options.strict,
                allow_nan_scales=options.allow_nan_scales,
                listing=bool(manifest.options.get("listing", True)),
                schedule=schedule,
                force=True,
                progress=progress,
            )
            if made.manifest.target != manifest.target:
                raise RequestError(
                    f"{artifact}: is for {manifest.target.chip}, and {options.target} is "
                    f"{made.manifest.target.chip} here; compile it again, with --tune"
                )
            return made

        with measured_schedules(compile, artifact) as file:
            made = None if file is None else compile(artifact, file)
    if made is None:
        typer.echo(f"note: {artifact} {NOTHING}; it is as it was", err=True)
    else:
        show_artifact(made, json=json)


@contextmanager
def measured_schedules(compile: Callable[..., Artifact], output: Path) -> Iterator[Path | None]:
    """Yield a file of the fastest schedules, or None if no product has several. It is beside
    `output`, and removed at the end.

    `compile(output=.., schedule=..)` makes the artifacts that are measured. Raises RequestError for
    a program that is no language model.
    """
    from mxc.compiler.cli.bench import measured_profiles
    from mxc.compiler.leftovers import partial_folder
    from mxc.compiler.tuning import tune

    def measure(artifact: Path) -> list[dict[str, float]]:
        model = read_manifest(artifact).model
        assert model is not None  # checked by `made`
        prompt = min(_PROMPT, model.max_sequence_length - 1)
        profiles = measured_profiles(artifact, prompt, None, None, None)
        return [{row.name: row.milliseconds for row in each.operations} for each in profiles]

    def made(file: Path, to: Path) -> Artifact:
        artifact = compile(output=to, schedule=file)
        if artifact.manifest.model is None:
            raise RequestError(
                "schedules are measured with a prompt and a token, and this is no language model; "
                "leave --tune out"
            )
        return artifact

    with partial_folder(output.absolute()) as folder:
        found = tune(made, measure, folder)
        file = folder / SCHEDULES
        file.write_text(json_text.dumps(found, indent=1) + "\n")
        yield file if found else None


def _recorded(artifact: Path, manifest: Manifest) -> _Recorded:
    """Return the options of an artifact that can be tuned. Raises RequestError for others."""
    if manifest.model is None or not manifest.weights_present or len(manifest.every_level) > 1:
        raise RequestError(
            f"{artifact}: schedules are measured on an artifact of a language model for one "
            "target, with its weights; this one is none"
        )
    if manifest.target.device != "local-task":
        raise RequestError(
            f"{artifact}: is for {manifest.target.name}; schedules of CPUs are measured"
        )
    names = {field.name for field in fields(_Recorded)}
    try:
        return read_record(
            _Recorded,
            {name: value for name, value in manifest.options.items() if name in names},
            "options",
        )
    except SchemaError as error:
        raise ArtifactError(f"{artifact}: {error}; compile it again, with --tune") from error


def _kv_cache(format: str) -> str:
    """Return the value of --kv-cache for the format in a manifest."""
    from mxc.compiler.models.options import KV_CACHE

    return next((name for name, each in KV_CACHE.items() if each == format), format)


def _place(artifact: Path, manifest: Manifest) -> Path:
    """Return the place of the checkpoint, if it came from the hub."""
    from mxc.compiler.checkpoints.hub import located

    repository, revision = (manifest.options.get(name) for name in ("repository", "revision"))
    if not isinstance(repository, str) or not isinstance(revision, str):
        raise RequestError(
            f"{artifact}: does not say where its checkpoint is; give the checkpoint with --source"
        )
    return located(repository, revision)


def _require_same(artifact: Path, manifest: Manifest, place: Path) -> None:
    """Raise CheckpointError unless `place` holds the files of which the artifact was compiled."""
    from mxc.compiler.artifact import record

    if not place.exists():
        raise CheckpointError(f"{place}: does not exist; give the checkpoint with --source")
    folder = place if place.is_dir() else place.parent
    # A file of schedules is a source too; the artifact has its copy.
    known = {
        name: file
        for name, file in manifest.source.items()
        if file != manifest.files.get(SCHEDULES)
    }
    for name, wanted in sorted(known.items(), key=lambda each: each[1].bytes):
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file}: is missing, and {artifact} was compiled of it")
        try:
            same = file.stat().st_size == wanted.bytes and record(file) == wanted
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from error
        if not same:
            raise CheckpointError(
                f"{file}: is not the file of which {artifact} was compiled (another SHA-256); "
                "give that checkpoint with --source, or compile this one"
            )
