"""`mxc list`: the formats, recipes, targets, passes and pipelines of mxc."""

from __future__ import annotations

import json as json_text
from enum import StrEnum
from typing import Annotated, Any

import typer

from mxc.compiler.cli.terminal import Wide

#: Largest magnitudes of an mxfp4 block for which the recipes choose different scales.
_AMAX = (4.0, 5.0, 6.0, 6.5, 7.0, 8.0)


class CatalogueKind(StrEnum):
    """The kinds of things that can be listed."""

    FORMATS = "formats"
    RECIPES = "recipes"
    TARGETS = "targets"
    PASSES = "passes"
    PIPELINE = "pipeline"


def command(
    kind: Annotated[CatalogueKind, typer.Argument(help="What to list.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="Whose pipeline (for `pipeline`).")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="All that each pass says of itself (for `passes`).")
    ] = False,
    wide: Wide = False,
    json: Annotated[bool, typer.Option("--json", help="Print it for programs.")] = False,
) -> None:
    """List the formats, recipes, targets or passes of mxc, or the pipeline of a target."""
    from mxc.compiler.cli.terminal import table_console

    console = table_console(wide=wide)
    if kind in (CatalogueKind.PASSES, CatalogueKind.PIPELINE):
        from mxc.compiler.cli.list_passes import command as list_compiled

        list_compiled(kind.value, console.width, target=target, full=full, json=json)
        return
    rows = {
        CatalogueKind.FORMATS: formats,
        CatalogueKind.RECIPES: recipes,
        CatalogueKind.TARGETS: targets,
    }[kind]()
    if json:
        print(json_text.dumps(rows, indent=1))
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if kind is CatalogueKind.TARGETS:
        rows = [_short(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in rows[0]:
        table.add_column(heading.replace("_", "\n"), no_wrap=heading not in ("scale", "has"))
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console.print(table)
    if kind is CatalogueKind.RECIPES:
        console.print("scale of an mxfp4 block by the largest magnitude in it")


def formats() -> list[dict[str, Any]]:
    """Return one row per block format."""
    from mxc.formats.formats import FORMATS

    return [
        {
            "name": name,
            "element": format.element.name,
            "bits": format.element.bits,
            "largest": format.element.max,
            "smallest": format.element.min_positive,
            "block": format.block,
            "scale": format.scale.name + (" and f32 of the tensor" if format.tensor_scale else ""),
            "bits_per_element": format.element.bits + format.scale.bits / format.block,
            "mlir": format.element.mlir,
        }
        for name, format in FORMATS.items()
    ]


def recipes() -> list[dict[str, Any]]:
    """Return one row per scale recipe, with the scales that it chooses for the magnitudes
    in _AMAX."""
    import numpy as np

    from mxc.formats.formats import E2M1, E8M0
    from mxc.formats.recipes import ScaleRecipe, scale_bytes

    amax = np.array(_AMAX, np.float32)
    return [
        {"name": recipe.value}
        | {
            f"{value:g}": float(E8M0.values[byte])
            for value, byte in zip(_AMAX, scale_bytes(amax, E2M1, recipe), strict=True)
        }
        for recipe in ScaleRecipe
    ]


def targets() -> list[dict[str, Any]]:
    """Return one row per target."""
    from mxc.targets.target import TARGETS

    return [
        {
            "name": name,
            "architecture": target.architecture,
            "best": target.multipliers[0].kind if target.is_gpu else "",
            "scaled_instructions": [each.mnemonic for each in target.scaled_instructions],
            "features": list(target.features),
        }
        for name, target in TARGETS.items()
    ]


def _short(target: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a target with its instructions and features in one column."""
    best, scaled = target["best"], ", ".join(target["scaled_instructions"])
    has = f"{best}: {scaled}" if scaled else best or ", ".join(target["features"])
    return {"name": target["name"], "architecture": target["architecture"], "has": has}


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
