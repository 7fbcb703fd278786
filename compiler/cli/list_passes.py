"""`mxc list passes` and `mxc list pipeline`: print the documentation of passes."""

from __future__ import annotations

import dataclasses
import inspect
import json as json_text
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields

from mxc.compiler.pipelines import pipeline
from mxc.errors import TargetError
from mxc.passes import PASSES
from mxc.passes.base import Pass, option_text


def command(
    kind: str, width: int, *, target: str | None = None, full: bool = False, json: bool = False
) -> None:
    """Print the passes (`full`: their whole documentation), or the pipeline of `target`.

    The output is text with lines of at most `width` columns, or JSON. Raises TargetError if the
    target is unknown, or missing for a pipeline.
    """
    if kind == "passes":
        described = [dataclasses.asdict(describe(cls)) for cls in PASSES]
        text = json_text.dumps(described, indent=1) if json else render_passes(width, full=full)
        print(text, end="")
        return
    if target is None:
        raise TargetError("whose pipeline? give --target, one of `mxc list targets`")
    stages = [
        {
            "stage": s.name,
            "after_phase": s.phase,
            "invariant": s.invariant,
            "passes": [str(p) for p in s.passes],
        }
        for s in pipeline(target).stages
    ]
    print(json_text.dumps(stages, indent=1) if json else render_pipeline(target, width), end="")


@dataclass(frozen=True)
class PassText:
    """Documentation of one pass, from the docstring of its module and its fields."""

    name: str
    summary: str
    options: tuple[str, ...]
    text: str


def describe(cls: type[Pass]) -> PassText:
    """Return the documentation of a pass. Its module docstring starts with `name: one
    sentence.`."""
    module = inspect.getmodule(cls)
    text = inspect.cleandoc(module.__doc__ or "") if module is not None else ""
    first, _, rest = text.partition("\n")
    summary = first.removeprefix(f"{cls.name}:").strip()
    options = tuple(f"{f.name.replace('_', '-')}={option_text(f.default)}" for f in fields(cls))
    return PassText(cls.name, summary, options, rest.strip())


def render_passes(width: int, known: Sequence[type[Pass]] = PASSES, *, full: bool = False) -> str:
    """Return name and summary of each pass; with `full` also the rest of its documentation."""
    described = [describe(cls) for cls in known]
    name = max(len(p.name) for p in described)
    lines = []
    for p in described:
        options = f"  options: {' '.join(p.options)}" if p.options else ""
        lines.append(_fill(f"{p.name:<{name}}  {p.summary}{options}", width, name + 2))
        if full:
            lines.append("\n" + textwrap.indent(p.text, "    ") + "\n")
    return "\n".join(lines) + "\n"


def render_pipeline(target: str, width: int) -> str:
    """Return the stages of a target with their invariants, and their passes as specs.

    Raises TargetError if the target is unknown.
    """
    lines = []
    for stage in pipeline(target).stages:
        after = "" if stage.phase is None else f" (after IREE's phase {stage.phase})"
        lines.append(_fill(f"{stage.name}{after}: {stage.invariant}", width, 2))
        lines += [_fill(f"    {item}", width, 6) for item in stage.passes]
    return "\n".join(lines) + "\n"


def _fill(text: str, width: int, indent: int) -> str:
    return textwrap.fill(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
