"""Patterns in a config's lists of layers, and the search for the first one that names a layer.

Dialects write patterns in several syntaxes. The names in them may differ from those of the tensors:
with or without the prefix of a wrapper, and before or after layers were fused. Every spelling is
tried.

Published checkpoints have lists of thousands of names, and thousands of layers. A pattern that is a
plain name is looked up in a table; only other patterns are matched one by one.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from functools import cache

from mxc.errors import CheckpointError

#: Prefixes that wrapper models put before the names of the language model inside them.
WRAPPERS = ("model.language_model.", "language_model.model.", "language_model.", "model.")

#: Layers that some dialects store, or exclude, as one: the fused name and its parts.
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    "w13": ("w1", "w3"),
}

#: Longest pattern, and most repetitions and choices in a regular expression, that are accepted.
_LONGEST = 1000
_REPETITIONS = 6
_OPTIONS = 10
#: Operators of a regular expression that repeat or choose; escaped characters and sets are skipped.
_CHOICE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|*+?{]", re.DOTALL)

#: Prefix of a regular expression.
_REGEX = "re:"


class Syntax(Enum):
    """The syntax of a list's patterns. In each, "re:" starts a regular expression, which is matched
    from the start of the name."""

    #: A plain name (compressed-tensors).
    REGEX = "re: prefix"
    #: With *, ? and [..] as in file names (Quark, modelopt).
    GLOB = "glob"
    #: As GLOB; a plain name is that of a layer or of a module that contains it (modelopt's
    #: quantized_layers).
    HOLDER = "glob, or a holder"
    #: A name of the layer or of a module that contains it, or the end of its name; * matches any
    #: text (transformers).
    PREFIX = "prefix"


Pattern = tuple[str, Syntax]


class Patterns:
    """A list of patterns; `first` finds the first that names a layer."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        """Put plain names into tables. Regular expressions are checked when they are first
        tried."""
        self._whole: dict[str, int] = {}
        self._holders: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._others: list[tuple[int, str, Syntax]] = []
        for place, (pattern, syntax) in enumerate(patterns):
            if not _is_name(pattern, syntax):
                self._others.append((place, pattern, syntax))
                continue
            self._whole.setdefault(pattern, place)
            if syntax in (Syntax.HOLDER, Syntax.PREFIX):
                self._holders.setdefault(pattern, place)
            if syntax is Syntax.PREFIX:
                self._ends.setdefault(pattern, place)

    def first(self, module: str) -> int | None:
        """Return the index of the first pattern that matches `module` in some spelling, or None."""
        names = tuple(dict.fromkeys(spellings(module)))
        found = [place for name in names for place in self._by_name(name)]
        best = min(found, default=None)
        for place, pattern, syntax in self._others:
            if best is not None and best < place:
                break
            if any(_matches(pattern, syntax, name) for name in names):
                return place
        return best

    def _by_name(self, name: str) -> Iterator[int]:
        dots = [place for place, letter in enumerate(name) if letter == "."]
        for table, keys in (
            (self._whole, (name,)),
            (self._holders, (name[:dot] for dot in dots)),
            (self._ends, (name[dot + 1 :] for dot in dots)),
        ):
            yield from _found(table, keys)


def _found(table: dict[str, int], keys: Iterable[str]) -> Iterator[int]:
    if table:
        yield from (table[key] for key in keys if key in table)


def spellings(module: str) -> Iterator[str]:
    """Yield the names that a config may use for a layer: wrapped, unwrapped, fused."""
    stem, _, last = module.rpartition(".")
    lasts = [last, *(whole for whole, parts in FUSED.items() if last in parts)]
    bare = _bare(module)
    stem = bare.rpartition(".")[0]
    yield module
    for last in lasts:
        name = f"{stem}.{last}" if stem else last
        yield name
        for wrapper in WRAPPERS:
            yield wrapper + name
        yield f"language_model.model.{name}"


def _bare(module: str) -> str:
    for wrapper in (*WRAPPERS, "model.language_model.model."):
        if module.startswith(wrapper):
            return module.removeprefix(wrapper)
    return module


def _is_name(pattern: str, syntax: Syntax) -> bool:
    special = {Syntax.REGEX: "", Syntax.PREFIX: "*"}.get(syntax, "*?[")
    return not pattern.startswith(_REGEX) and not any(letter in pattern for letter in special)


def _matches(pattern: str, syntax: Syntax, name: str) -> bool:
    if pattern.startswith(_REGEX):
        return _regex(pattern.removeprefix(_REGEX)).match(name) is not None
    if syntax is not Syntax.PREFIX:
        return fnmatch.fnmatchcase(name, pattern)
    # Only * is special; fnmatch does not take exponential time for several of them.
    glob = pattern.replace("[", "[[]").replace("?", "[?]")
    ends = [*(i for i, letter in enumerate(name) if letter == "."), len(name)]
    return any(fnmatch.fnmatchcase(name[:end], glob) for end in ends)


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    if len(pattern) > _LONGEST or not _is_quick(pattern):
        raise CheckpointError(
            f"the quantization config has the pattern {pattern[:80]!r}, whose repetitions are "
            "nested or many, or which is too long; write out the names instead"
        )
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"the quantization config has the pattern {pattern[:80]!r}, which is no regular "
            f"expression ({error}); correct it"
        ) from error


def _is_quick(pattern: str) -> bool:
    """Return whether `pattern` matches every name quickly; no list of layers needs other patterns.

    Choices inside a repetition can take time exponential in the length of the name, many
    repetitions a high power of it, and many choices time exponential in their number.
    """
    repetitions = options = 0
    inside = [0]  # the number of choices in each open group
    for token in _CHOICE.finditer(pattern):
        kind = token[0]
        if kind == "(":
            inside.append(0)
        elif kind == ")" and len(inside) > 1:
            choices = inside.pop()
            inside[-1] += choices
            if choices and pattern[token.end() : token.end() + 1] in ("*", "+", "{"):
                return False
        elif kind in ("|", "?", "*", "+", "{") and pattern[: token.start()][-1:] != "(":
            inside[-1] += 1
            repetitions += kind in ("*", "+", "{")
            options += kind == "?" or (kind == "|" and inside[-1] == 1)
    return repetitions <= _REPETITIONS and options <= _OPTIONS
