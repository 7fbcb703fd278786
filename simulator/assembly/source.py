"""Splits assembly text into statements with their lines, without comments.

Source of the syntax: LLVM, User Guide for AMDGPU Backend (Assembler), and GNU as for directives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mxc.simulator.errors import AssemblyError

_LABEL = re.compile(r"\s*([A-Za-z_.$][\w.$]*|\d+):(?!\S*\])")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_OPEN, _CLOSE = "[({", "])}"
#: Directives around the metadata block, which is YAML.
_METADATA, _END_METADATA = ".amdgpu_metadata", ".end_amdgpu_metadata"


class SourceLine(NamedTuple):
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return the place as compilers write it: "kernel.s:12"."""
        return f"{self.file}:{self.line}"


def refuse(place: SourceLine, message: str) -> AssemblyError:
    """Return the error to raise for something at a place."""
    return AssemblyError(f"{place}: {message}")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement. kind: "label", "directive", "instruction" or "metadata".

    name: the label, directive or instruction. text: the rest; for metadata the lines of the block.
    """

    kind: str
    name: str
    text: str
    place: SourceLine


def statements(text: str, file: str) -> Iterator[Statement]:
    """Yield the statements of a file. Raises AssemblyError for an unterminated block or comment."""
    block: list[str] | None = None
    start = SourceLine(file, 1)
    for place, line in _lines(text, file):
        if block is not None:
            if line.strip() == _END_METADATA:
                yield Statement("metadata", _METADATA, "\n".join(block), start)
                block = None
            else:
                block.append(line)
            continue
        rest = line
        while label := _LABEL.match(rest):
            yield Statement("label", label[1], "", place)
            rest = rest[label.end() :]
        name, _, tail = rest.strip().partition(" ")
        if name == _METADATA:
            block, start = [], place
        elif name:
            kind = "directive" if name.startswith(".") else "instruction"
            yield Statement(kind, name, tail.strip(), place)
    if block is not None:
        raise refuse(start, f"{_METADATA} without {_END_METADATA}")


def _lines(text: str, file: str) -> Iterator[tuple[SourceLine, str]]:
    """Yield lines without comments; lines of a metadata block are unchanged."""
    inside = False
    opened: SourceLine | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        place, line = SourceLine(file, number), raw
        if opened is not None:
            _, found, line = line.partition("*/")
            if not found:
                continue
            opened = None
        if inside:
            inside = line.strip() != _END_METADATA
            yield place, line
            continue
        while (at := _uncommented(line).find("/*")) >= 0:
            end = line.find("*/", at)
            if end < 0:
                opened, line = place, line[:at]
                break
            line = f"{line[:at]} {line[end + 2 :]}"
        line = _uncommented(line).replace("\t", " ")
        inside = line.strip() == _METADATA
        yield place, line
    if opened is not None:
        raise refuse(opened, "a comment /* without its */")


def _uncommented(line: str) -> str:
    """Remove the comment after ";" or "//", or the whole line if it begins with "#"."""
    if line.lstrip().startswith("#"):
        return ""
    hidden = _QUOTED.sub(lambda m: "_" * len(m[0]), line)
    ends = [at for at in (hidden.find(";"), hidden.find("//")) if at >= 0]
    return line[: min(ends)] if ends else line


def split(text: str, separator: str = ",") -> list[str]:
    """Split text at a separator outside of brackets and quotes; stripped parts, [] for nothing."""
    parts, depth, start = [], 0, 0
    hidden = _QUOTED.sub(lambda m: "_" * len(m[0]), text)
    for at, character in enumerate(hidden):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth <= 0 and (character == separator or (separator == " " and character.isspace())):
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    if separator == " ":
        parts = [part for part in parts if part]
    return parts if any(parts) else []
