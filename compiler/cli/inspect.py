"""`mxc inspect`: prints the contents of a path, or the differences of two checkpoints."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table

from mxc.artifact.manifest import MANIFEST, read_manifest
from mxc.compiler.cli.terminal import Name, Prose, fits, table_console, titled
from mxc.compiler.inspect.compare import DIFFERENT, SAME_BYTES
from mxc.compiler.inspect.contents import inspect, inspect_against
from mxc.runtime.levels import choose_level, obstacles

#: State of the level that is inspected by default.
_TAKEN = "runs here"


def command(
    path: Path,
    tensor: str | None = None,
    level: str | None = None,
    against: Path | None = None,
    *,
    json: bool = False,
    wide: bool = False,
) -> int:
    """Print the contents of a checkpoint, tensor file, archive or artifact, or one tensor's
    statistics.

    With `against`, print the comparison with another checkpoint; the returned status is 1 if values
    differ. Raises as `mxc.compiler.inspect.contents.inspect`.
    """
    if against is not None:
        compared = inspect_against(path, against, tensor)
        if json:
            print(json_text.dumps(compared, indent=1))
        else:
            _print_comparison(table_console(wide=wide), compared)
        return int(compared["result"] == DIFFERENT)
    levels = _levels(path)
    taken = next((name for name, state in levels.items() if state == _TAKEN), None)
    found = inspect(path, tensor, level or taken)
    if "manifest" in found and levels:
        found["levels_here"] = levels
    if json:
        print(json_text.dumps(found, indent=1))
        return 0
    console = table_console(wide=wide)
    if tensor is not None:
        _print_tensor(console, found["tensor"])
    else:
        if "manifest" in found:
            _print_manifest(console, found["manifest"], found.get("levels_here", {}))
        _print_tensors(console, found)
    return 0


def _print_tensors(console: Console, found: dict[str, Any]) -> None:
    """Print a row per tensor; if that does not fit, layout and recipe are below the name."""
    kind = f"{found['kind']}, {found['dialect']}" if "dialect" in found else found["kind"]
    title = f"{found['path']} ({kind}): {len(found['tensors'])} tensors, {_size(found['bytes'])}"
    table = _tensors(found["tensors"], wide=True)
    if not fits(console, table):
        table = _tensors(found["tensors"], wide=False)
    console.print(titled(title, table))
    for line in _declarations(found.get("quantization", {})):
        console.print(Prose(line))


def _tensors(rows: list[dict[str, Any]], *, wide: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("tensor")
    for column in ("format", "shape", "layout", "recipe") if wide else ("format", "shape"):
        table.add_column(column, no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for row in rows:
        shape = "x".join(map(str, row["shape"])) or "scalar"
        layout, recipe = row["layout"], _recipe(row)
        words = [layout] if layout != "identity" else []
        words += [f"recipe {recipe}"] if recipe else []
        said = [] if wide or not words else [Name(f"  {', '.join(words)}")]
        stored = [layout, recipe] if wide else []
        name = Group(Name(row["name"]), *said)
        table.add_row(name, row["format"], shape, *stored, f"{row['bytes']:,}")
    return table


def _recipe(row: dict[str, Any]) -> str:
    if row["recipe"] is None:
        return ""
    return f"{row['recipe']} (inferred)" if row["recipe_source"] == "inferred" else row["recipe"]


def _declarations(said: dict[str, Any]) -> list[str]:
    lines = []
    if (activations := said.get("activations")) is not None:
        when = "dynamic" if activations["dynamic"] else "static"
        lines.append(
            f"activations: {activations['format']}, recipe {activations['recipe']}, {when}"
        )
    if said.get("excluded"):
        lines.append(f"not quantized: {', '.join(said['excluded'])}")
    return lines


def _print_comparison(console: Console, found: dict[str, Any]) -> None:
    same = [row for row in found["tensors"] if row["result"] != DIFFERENT]
    by_bytes = sum(row["result"] == SAME_BYTES for row in same)
    lines = [
        f"{found['path']} ({found['dialects'][0]}) and {found['against']} "
        f"({found['dialects'][1]}): {by_bytes} tensors of the same bytes, "
        f"{len(same) - by_bytes} of the same values, {len(found['tensors']) - len(same)} differ"
    ]
    for row in found["tensors"]:
        if row["result"] == DIFFERENT:
            lines += _difference(row)
    for key, path in (("only_in_first", found["path"]), ("only_in_second", found["against"])):
        if names := found[key]:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            lines.append(f"only in {path}: {', '.join(names[:8])}{more}")
    for line in lines:
        console.print(Prose(line))


def _difference(row: dict[str, Any]) -> list[str]:
    if "shapes" in row:
        first, second = ("x".join(map(str, shape)) for shape in row["shapes"])
        return [f"{row['name']}: shape {first} and {second}"]
    formats = " and ".join(dict.fromkeys(row["formats"]))
    head = (
        f"{row['name']} ({formats}): {row['elements']:,} elements differ, by at most "
        f"{row['largest_difference']}"
    )
    return [head] + [
        f"  row {place['row']}, column {place['column']}: {place['values'][0]} and "
        f"{place['values'][1]}"
        for place in row["first"]
    ]


def _print_tensor(console: Console, row: dict[str, Any]) -> None:
    table = Table(show_header=False)
    for key, value in row.items():
        if key not in ("name", "first", "scale_exponents") and value not in (None, ""):
            table.add_row(key.replace("_", " "), f"{value:,}" if type(value) is int else str(value))
    numbers = [x if isinstance(x, str) else f"{x:g}" for x in row["first"]]
    table.add_row(f"first {len(numbers)}", " ".join(numbers))
    console.print(titled(row["name"], table))
    if "scale_exponents" in row:
        _print_scales(console, row["scale_exponents"])


def _print_scales(console: Console, exponents: dict[str, int]) -> None:
    table = Table("scale", "blocks", "", title="scales", title_justify="left")
    most = max(exponents.values(), default=1)
    for exponent in sorted(exponents, key=lambda e: -1000 if e == "zero" else int(e)):
        count = exponents[exponent]
        name = exponent if exponent == "zero" else f"2^{exponent}"
        table.add_row(name, f"{count:,}", "█" * max(1, round(32 * count / most)))
    console.print(table)


def _levels(path: Path) -> dict[str, str]:
    """Return the state of each level on this machine; {} for artifacts without levels."""
    if not (path / MANIFEST).is_file():
        return {}
    manifest = read_manifest(path)
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
