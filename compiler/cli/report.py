"""`mxc report`: prints the lowering of each contraction, and checks the artifact."""

from __future__ import annotations

import json as json_text
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxc.artifact.manifest import REPORT, read_json
from mxc.compiler.cli.terminal import Wide
from mxc.errors import ArtifactError, RequestError

if TYPE_CHECKING:
    from mxc.compiler.report import Reports

_CURE = "compile the artifact again"


def command(
    artifact: Annotated[Path, typer.Argument(help="An artifact.", show_default=False)],
    level: Annotated[
        str | None,
        typer.Option(help="One level of an artifact that has several.", show_default="all"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print report.json as it is.")] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 1 where a contraction fell back or a kernel spills, as docs/report.md "
            "says.",
        ),
    ] = False,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Of a GPU, list the kernels without contraction too.")
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it as one self-contained HTML page too."),
    ] = None,
    wide: Wide = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all checksums, those of large weights too.")
    ] = False,
) -> None:
    """Show how each contraction was lowered, and why where it fell back."""
    from mxc.artifact.manifest import read_manifest
    from mxc.compiler.cli.report_kernels import show_kernels
    from mxc.compiler.cli.report_samples import show_samples
    from mxc.compiler.cli.report_table import print_memory, show_report
    from mxc.compiler.cli.report_times import show_times
    from mxc.compiler.cli.terminal import print_notes, table_console
    from mxc.compiler.report import Reports
    from mxc.runtime.integrity import check_files

    manifest = read_manifest(artifact)
    if verify:
        check_files(artifact, manifest, verify=True)
    if level is not None and level not in manifest.every_level:
        known = ", ".join(manifest.every_level)
        raise RequestError(f"{artifact}: no level {level!r}; it has: {known}")
    raw = _read(artifact / REPORT)
    reports = Reports.from_dict(raw, str(artifact / REPORT))
    if level is not None:
        raw, reports = _one_level(raw, reports, level, artifact / REPORT)
    if html is not None:
        from mxc.compiler.page import write_page

        write_page(html, artifact)
    if json:
        print(json_text.dumps(raw, indent=1))
    else:
        console = table_console(wide=wide)
        show_report(console, reports)
        show_samples(console, reports)
        show_kernels(console, reports, every=kernels)
        show_times(console, reports, every=kernels)
        print_memory(console, manifest.model)
        print_notes(console, manifest.notes)
    if strict and any(report.fallbacks or report.spilling for report in reports.levels.values()):
        raise typer.Exit(1)


def _one_level(
    raw: dict[str, Any], reports: Reports, level: str, file: Path
) -> tuple[dict[str, Any], Reports]:
    """Return the JSON and the report of one level; all of it for an artifact of one target."""
    if "levels" not in raw:
        return raw, reports
    if level not in reports.levels:
        raise ArtifactError(f"{file}: lacks level {level}; {_CURE}")
    return raw["levels"][level], replace(reports, levels={"": reports.levels[level]}, archives=())


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ArtifactError(f"{file}: missing; {_CURE}") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from error
    raw = read_json(text, str(file))
    if not isinstance(raw, dict):
        raise ArtifactError(f"{file}: not a report; {_CURE}")
    return raw
