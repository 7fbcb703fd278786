"""`mxc inspect`: print what compiler/inspect.py finds."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from mxc.compiler.inspect import inspect
from mxc.dialects.manifest import MANIFEST, Manifest
from mxc.runtime.levels import choose_level, obstacles

#: What is said of the level that is taken where nobody names one.
_TAKEN = "runs here"

#: Columns of output that is not a screen.
_WIDE = 200


def command(
    path: Path, tensor: str | None = None, json: bool = False, level: str | None = None
) -> None:
    """Show what a checkpoint, tensor file, archive or artifact holds, or what one tensor is like.

    Raises what `mxc.compiler.inspect.inspect` raises.
    """
    levels = _levels(path)
    taken = next((name for name, state in levels.items() if state == _TAKEN), None)
    found = inspect(path, tensor, level or taken)
    if "manifest" in found and levels:
        found["levels_here"] = levels
    if json:
        print(json_text.dumps(found, indent=1))
        return
    # Into a file or a pipe nothing is folded to the width of a screen that is not there.
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    if tensor is not None:
        _print_tensor(console, found["tensor"])
    else:
        if "manifest" in found:
            _print_manifest(console, found["manifest"], found.get("levels_here", {}))
        _print_tensors(console, found)


def _print_tensors(console: Console, found: dict[str, Any]) -> None:
    title = f"{found['path']} ({found['kind']}): {len(found['tensors'])} tensors, "
    # Names are what people copy from here: folded where they must be, never cut.
    table = Table(title=title + _size(found["bytes"]), title_justify="left", box=SIMPLE)
    table.add_column("tensor", overflow="fold")
    for column in ("format", "shape", "layout"):
        table.add_column(column, no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for row in found["tensors"]:
        shape = "x".join(map(str, row["shape"])) or "scalar"
        table.add_row(row["name"], row["format"], shape, row["layout"], f"{row['bytes']:,}")
    console.print(table)


def _print_tensor(console: Console, row: dict[str, Any]) -> None:
    table = Table(title=row["name"], title_justify="left", show_header=False)
    for key, value in row.items():
        if key not in ("name", "first", "scale_exponents"):
            table.add_row(key.replace("_", " "), f"{value:,}" if type(value) is int else str(value))
    numbers = [x if isinstance(x, str) else f"{x:g}" for x in row["first"]]
    table.add_row(f"first {len(numbers)}", " ".join(numbers))
    console.print(table)
    if "scale_exponents" in row:
        _print_scales(console, row["scale_exponents"])


def _print_scales(console: Console, exponents: dict[str, int]) -> None:
    table = Table("scale", "blocks", "", title="scales", title_justify="left")
    most = max(exponents.values(), default=1)
    for exponent in sorted(exponents, key=int):
        count = exponents[exponent]
        table.add_row(f"2^{exponent}", f"{count:,}", "█" * max(1, round(32 * count / most)))
    console.print(table)


def _levels(path: Path) -> dict[str, str]:
    """What this machine makes of each level of an artifact that has several; {} for others."""
    if not (path / MANIFEST).is_file():
        return {}
    manifest = Manifest.from_json((path / MANIFEST).read_text(), str(path / MANIFEST))
    if not manifest.levels:
        return {}
    reasons = obstacles(manifest)
    states = {name: reason or "may run here" for name, reason in reasons.items()}
    if not all(reasons.values()):
        states[choose_level(manifest, None, str(path))] = _TAKEN
    return states


def _print_manifest(console: Console, manifest: dict[str, Any], levels: dict[str, str]) -> None:
    table = Table(title="artifact", title_justify="left", show_header=False)
    target = manifest["target"]
    table.add_row("target", f"{target['name']} ({target['chip']}, {target['device']})")
    for name, state in levels.items():
        table.add_row(f"level {name}", state)
    table.add_row("activations", manifest["activations"])
    table.add_row("functions", ", ".join(manifest["functions"]))
    for name, record in manifest["files"].items():
        table.add_row(name, f"{_size(record['bytes'])}, sha256 {record['sha256'][:16]}")
    table.add_row("versions", f"mxc {manifest['mxc_version']}, IREE {manifest['iree_version']}")
    for note in manifest["notes"]:
        table.add_row("note", note)
    console.print(table)


def _size(count: int) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count} bytes"
