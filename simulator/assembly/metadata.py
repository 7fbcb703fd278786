"""Reads the subset of YAML that kernel metadata in assembly text uses (`.amdgpu_metadata`).

The subset, all that LLVM writes, is: mappings and sequences in block form, sequences of scalars in
brackets, strings, integers, Booleans. Source: https://yaml.org/spec/1.2.2.
"""

from __future__ import annotations

import re

from mxc.artifact.code_objects.msgpack import Value
from mxc.simulator.assembly.source import SourceLine, refuse, split, statements

_KEY = re.compile(r"(?P<key>'[^']*'|\"[^\"]*\"|[^\s'\"#:\[\]{},][^:]*?)\s*:(?:\s+(?P<rest>.*))?$")
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None, "~": None, "": None}
_DEEPEST = 32


def metadata_of(text: str, file: str) -> Value:
    """Return the metadata of an assembly file, None if there is none. Raises AssemblyError."""
    for each in statements(text, file):
        if each.kind == "metadata":
            return read_metadata(each.text, each.place)
    return None


def read_metadata(text: str, place: SourceLine) -> Value:
    """Return the value of a block that begins after `place`.

    Raises AssemblyError, with the line, for anything outside of the subset.
    """
    lines = []
    for number, raw in enumerate(text.splitlines(), place.line + 1):
        line = raw.rstrip()
        if line.strip() in ("", "---", "...") or line.lstrip().startswith("#"):
            continue
        here = SourceLine(place.file, number)
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise refuse(here, "metadata: a tab in front; YAML wants spaces")
        lines.append((len(line) - len(line.lstrip()), line.strip(), here))
    reader = _Reader(lines)
    value = reader.block(0, 0) if lines else None
    if reader.at < len(lines):
        _, line, here = lines[reader.at]
        raise refuse(here, f"metadata: {line!r} does not stand where it belongs; see its indent")
    return value


class _Reader:
    def __init__(self, lines: list[tuple[int, str, SourceLine]]) -> None:
        self.lines = lines
        self.at = 0

    def block(self, least: int, depth: int) -> Value:
        """Read the mapping, sequence or scalar whose lines are indented by at least `least`."""
        indent, line, place = self.lines[self.at]
        if depth > _DEEPEST:
            raise refuse(place, f"metadata: nested deeper than {_DEEPEST}")
        if indent < least:
            return None
        if line == "-" or line.startswith("- "):
            return self.sequence(indent, depth)
        if _KEY.match(line):
            return self.mapping(indent, depth)
        self.at += 1
        return _scalar(line, place)

    def sequence(self, indent: int, depth: int) -> Value:
        items: list[Value] = []
        while self.at < len(self.lines):
            found, line, place = self.lines[self.at]
            if found != indent or not (line == "-" or line.startswith("- ")):
                break
            rest = line[1:].lstrip()
            if rest:
                # The text after the dash is the first line of the item, at its own indent.
                self.lines[self.at] = (indent + len(line) - len(rest), rest, place)
            else:
                self.at += 1
            items.append(self.block(indent + 1, depth + 1) if self.at < len(self.lines) else None)
        return items

    def mapping(self, indent: int, depth: int) -> Value:
        items: dict[str, Value] = {}
        while self.at < len(self.lines):
            found, line, place = self.lines[self.at]
            match = _KEY.match(line)
            if found != indent or match is None:
                break
            self.at += 1
            key = match["key"].strip("'\"")
            if key in items:
                raise refuse(place, f"metadata: {key!r} for the second time")
            items[key] = self.value(match["rest"] or "", indent, depth, place)
        return items

    def value(self, rest: str, indent: int, depth: int, place: SourceLine) -> Value:
        if rest:
            return _scalar(rest, place)
        if self.at == len(self.lines):
            return None
        below, line, _ = self.lines[self.at]
        # The dashes of a sequence may have the indent of its key.
        if below > indent or (below == indent and (line == "-" or line.startswith("- "))):
            return self.block(below, depth + 1)
        return None


def _scalar(text: str, place: SourceLine) -> Value:
    if text[0] in "'\"":
        if len(text) < 2 or text[-1] != text[0]:
            raise refuse(place, f"metadata: {text!r} is a string without its end")
        return text[1:-1]
    if text[0] == "[":
        if text[-1] != "]":
            raise refuse(place, f"metadata: {text!r} is a list without its end")
        return [_scalar(item, place) for item in split(text[1:-1]) if item]
    if text[0] in "{&*!|>%@`":
        raise refuse(place, f"metadata: {text!r} is YAML that metadata of kernels does not have")
    if text in _WORDS:
        return _WORDS[text]
    try:
        return int(text, 0)
    except ValueError:
        return text
