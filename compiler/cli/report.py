"""`mxc report`: what became of each contraction, and whether the artifact is whole."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from mxc.dialects.errors import ArtifactError, RequestError
from mxc.dialects.manifest import REPORT, Manifest


def command(
    artifact: Annotated[Path, typer.Argument(help="An artifact.", show_default=False)],
    level: Annotated[
        str | None,
        typer.Option(help="One level of an artifact that has several.", show_default="all"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print report.json as it is.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 where a contraction fell back.")
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Of a GPU, list the kernels without contraction too.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all checksums, those of large weights too.")
    ] = False,
) -> None:
    """Show how each contraction was lowered, and why where it fell back."""
    from mxc.runtime.integrity import check_files, read_manifest

    manifest = read_manifest(artifact)
    if verify:
        check_files(artifact, manifest, verify=True)
    raw = _read(artifact / REPORT)
    if level is not None:
        raw = _one_level(raw, level, manifest, artifact)
    if json:
        print(json_text.dumps(raw, indent=1))
    else:
        _show(raw, artifact / REPORT, manifest, every=kernels)
    reports = raw["levels"].values() if "levels" in raw else (raw,)
    if strict and any(m["fallback"] is not None for each in reports for m in each["matmuls"]):
        raise typer.Exit(1)


def _one_level(raw: dict[str, Any], level: str, manifest: Manifest, place: Path) -> dict[str, Any]:
    if level not in manifest.every_level:
        known = ", ".join(manifest.every_level)
        raise RequestError(f"{place}: no level {level!r}; it has: {known}")
    own: dict[str, Any] = raw["levels"][level] if "levels" in raw else raw
    return own


def _read(file: Path) -> dict[str, Any]:
    try:
        raw = json_text.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{file}: missing; compile the artifact again") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from error
    whole = isinstance(raw, dict) and isinstance(raw.get("levels", {}), dict)
    reports = raw.get("levels", {"": raw}).values() if whole else ()
    lists = [isinstance(r, dict) and isinstance(r.get("matmuls"), list) for r in reports]
    if not lists or not all(lists):
        raise ArtifactError(f"{file}: not a report; compile the artifact again")
    report: dict[str, Any] = raw
    return report


def _show(raw: dict[str, Any], file: Path, manifest: Manifest, *, every: bool) -> None:
    from mxc.compiler.cli.report_kernels import show_kernels
    from mxc.compiler.cli.report_table import print_notes, show_report, table_console

    console = table_console()
    try:
        show_report(console, raw)
        show_kernels(console, raw, every=every)
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{file}: malformed ({error}); compile the artifact again") from error
    print_notes(console, manifest.notes)
