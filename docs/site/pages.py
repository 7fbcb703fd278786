"""Pages of the documentation site that are made from the project: README, commands, formats, ..

A hook of MkDocs: `on_files` adds them to what docs/ has. `make docs` builds the site.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import TypeAdapter

from mxc.compiler.cli import app, catalogue
from mxc.compiler.cli.list_passes import describe, render_pipeline
from mxc.compiler.report import Report
from mxc.passes import PASSES

ROOT = Path(__file__).resolve().parents[2]

#: What a program in Python starts from: names that are documented where they are defined.
PYTHON = {
    "Compile and quantize": (
        "mxc.compiler.compile",
        "mxc.compiler.quantize.checkpoint.quantize_checkpoint",
    ),
    "Run": (
        "mxc.runtime.session.load",
        "mxc.runtime.session.Model",
        "mxc.runtime.sequence.Sequence",
    ),
    "Values": (
        "mxc.formats.reference.quantize",
        "mxc.formats.reference.dequantize",
        "mxc.formats.reference.Quantized",
        "mxc.formats.scaling.quantize_scaled",
        "mxc.formats.scaled_tensor.dequantize_scaled",
        "mxc.formats.scaled_tensor.Scaled",
        "mxc.formats.scale_spec.ScaleSpec",
    ),
    "Errors": ("mxc.errors",),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/ does not have."""
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A block's file is its title: Python-Markdown takes no other word after the language."""
    return re.sub(r"^```(\w+) ([^\s=]+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)


def pages() -> Iterator[tuple[str, str]]:
    """The path of each page within the site, and its content."""
    for name, file in (
        ("index.md", "README.md"),
        ("contributing.md", "CONTRIBUTING.md"),
        ("changelog.md", "CHANGELOG.md"),
    ):
        yield name, within_site((ROOT / file).read_text())
    yield "reference/commands.md", "\n".join(commands())
    yield "reference/python.md", "\n".join(python())
    yield "reference/formats.md", "\n".join(formats())
    yield "reference/targets.md", "\n".join(targets())
    yield "reference/passes.md", "\n".join(passes())
    yield "reference/dialects.md", "\n".join(dialects())
    yield "reference/report.md", "\n".join(report())


def within_site(text: str) -> str:
    """A page of the top level with its links as they are inside docs/."""
    text = re.sub(r"\]\(docs/", "](", text)
    return text.replace("](CONTRIBUTING.md", "](contributing.md").replace(
        "](CHANGELOG.md", "](changelog.md"
    )


def commands() -> Iterator[str]:
    """Each command with its usage, arguments and options."""
    group = typer.main.get_command(app)
    yield "# Commands\n"
    yield "`-v` before a command shows the trace of an error.\n"
    for name, command in group.commands.items():
        context = command.make_context(f"mxc {name}", [], resilient_parsing=True)
        yield f"## mxc {name}\n\n{paragraphs(command.help or '')}\n"
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```text\nmxc {name} {usage}\n```\n"
        records = (parameter.get_help_record(context) for parameter in command.params)
        yield from (f"- `{record[0]}`: {paragraphs(record[1])}" for record in records if record)
        yield ""


def python() -> Iterator[str]:
    """The Python names that users start from, by mkdocstrings."""
    yield "# Python\n"
    yield "`import mxc` costs nothing: each name is loaded when it is first used.\n"
    for heading, names in PYTHON.items():
        yield f"## {heading}\n"
        yield from (f"::: {name}\n" for name in names)


def formats() -> Iterator[str]:
    """Block formats, and the scales that recipes choose."""
    yield "# Formats and recipes\n\n## Block formats\n"
    yield from table(catalogue.formats())
    yield "\n## Recipes\n"
    yield "The scale of an mxfp4 block by the largest magnitude in it:\n"
    yield from table(catalogue.recipes())


def targets() -> Iterator[str]:
    """Each target, and the pipeline of the two that differ most."""
    yield "# Targets\n"
    for row in catalogue.targets():
        yield f"## {row['name']}\n"
        yield f"- architecture: {row['architecture']}"
        for key in ("best", "scaled_instructions", "features"):
            value = row[key]
            words = ", ".join(f"`{each}`" for each in value) if isinstance(value, list) else value
            if words:
                yield f"- {key.replace('_', ' ')}: {words}"
        yield ""
    for target in ("cpu", "gfx950"):
        yield f"## Pipeline of {target}\n\n```text\n{render_pipeline(target, 100)}```\n"


def passes() -> Iterator[str]:
    """Every pass: what it does, its options, and all that its module says."""
    yield "# Passes\n"
    yield "`mxc opt --passes NAME FILE` runs one over a file of IR.\n"
    for described in map(describe, PASSES):
        yield f"## {described.name}\n\n{described.summary}\n"
        if described.options:
            yield "Options: " + ", ".join(f"`{each}`" for each in described.options) + "\n"
        if described.text:
            yield f"```text\n{described.text}\n```\n"


def dialects() -> Iterator[str]:
    """The shapes of IR that mxc builds and matches, from the modules of dialects/."""
    yield "# Dialects\n"
    yield "mxc defines no dialect in MLIR. Programs are in dialects of MLIR and IREE, and"
    yield "attributes whose names begin with `mxc.` hold what mxc knows of an operation. Each"
    yield "module of `dialects/` builds one shape of IR, or recognizes it, or both.\n"
    for path in sorted((ROOT / "dialects").glob("[!_]*.py")):
        source = path.read_text()
        summary, _, rest = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
        yield f"## {path.stem}\n\n{paragraphs(summary)}\n"
        names = sorted(set(re.findall(r'"(mxc\.[a-z_]+)"', source)))
        if names:
            yield "Attributes: " + ", ".join(f"`{each}`" for each in names) + "\n"
        if rest:
            yield f"```text\n{rest}\n```\n"


def report() -> Iterator[str]:
    """The JSON Schema of report.json, from the record that reads it."""
    schema = TypeAdapter(Report).json_schema()
    yield "# report.json\n"
    yield "`mxc report OUT.mxc --json` prints it. An artifact of several levels has one under"
    yield "`levels` for each.\n"
    for name, record in {"Report": schema, **schema["$defs"]}.items():
        yield f"## {name}\n\n{paragraphs(record.get('description', ''))}\n"
        for key in record.get("properties", {}):
            yield f"- `{key}`"
        yield ""
    yield f"## JSON Schema\n\n```json\n{json.dumps(schema, indent=1)}\n```\n"


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Rows of equal keys as a table."""
    yield line(key.replace("_", " ") for key in rows[0])
    yield line("---" for _ in rows[0])
    for row in rows:
        yield line(f"{v:g}" if isinstance(v, float) else f"{v}" for v in row.values())


def line(cells: Iterable[str]) -> str:
    """One row of a table."""
    return "| " + " | ".join(cells) + " |"


def paragraphs(text: str) -> str:
    """Docstring text: what is in backquotes stays, what Markdown would read otherwise does not."""
    return re.sub(r"[*<]", r"\\\g<0>", text.replace("\b", ""))
