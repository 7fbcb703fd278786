"""`mxc report`: what became of each contraction, and whether the artifact is whole."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from mxc.dialects.errors import ArtifactError
from mxc.dialects.manifest import REPORT, Manifest


def command(
    artifact: Annotated[Path, typer.Argument(help="An artifact.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print report.json as it is.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 where a contraction fell back.")
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
    if json:
        print(json_text.dumps(raw, indent=1))
    else:
        _show(raw, artifact / REPORT, manifest)
    if strict and any(matmul["fallback"] is not None for matmul in raw["matmuls"]):
        raise typer.Exit(1)


def _read(file: Path) -> dict[str, Any]:
    try:
        raw = json_text.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{file}: missing; compile the artifact again") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("matmuls"), list):
        raise ArtifactError(f"{file}: not a report; compile the artifact again")
    return raw


def _show(raw: dict[str, Any], file: Path, manifest: Manifest) -> None:
    from mxc.compiler.cli.report_table import print_notes, render, table_console
    from mxc.compiler.report import Report

    try:
        report = Report.from_dict(raw)
    except (KeyError, TypeError) as error:
        raise ArtifactError(f"{file}: malformed ({error}); compile the artifact again") from error
    console = table_console()
    console.print(render(report, console.width))
    print_notes(console, manifest.notes)
