"""The text of a pipeline: `mxc-a,mxc-b{option=value other=2},canonicalize,util.func(cse)`.

A name that starts with `mxc-`, or was given to `register`, is a pass in Python; other text is
passed to MLIR unchanged. Parsing is the inverse of `str` on passes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TypeVar, get_type_hints

from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.errors import PassError
from mxc.passes.base import LEAST, Pass, check_native

_NAMED = re.compile(r"([a-z][a-z0-9-]*)(?:\{(.*)\})?", re.DOTALL)
_OURS = "mxc-"
_OPEN, _CLOSE = "({[<", ")}]>"

#: The passes that were given to `register`, by name.
_registered: dict[str, type[Pass]] = {}

AnyPass = TypeVar("AnyPass", bound=type[Pass])


def register(kind: AnyPass) -> AnyPass:
    """Class decorator: let specs in this process name a pass of the user.

    Raises PassError for a name that is taken, here or in MLIR, or that is no valid name in a spec.
    """
    from mxc.passes import PASSES

    name = kind.name
    if _NAMED.fullmatch(name) is None or "{" in name:
        raise PassError(f"a pass cannot be called {name!r}; give lower case letters and hyphens")
    if any(name == each.name for each in (*PASSES, *_registered.values())) or _is_native(name):
        raise PassError(f"there is a pass {name!r} already; give {kind.__name__} another name")
    _registered[name] = kind
    return kind


def parse(text: str, known: Sequence[type[Pass]] | None = None) -> tuple[Pass | str, ...]:
    """The passes that `text` names. `known`: the table of `mxc.passes`, and registered passes.

    Raises PassError on an unknown pass or option, a value of the wrong type, or an unbalanced
    bracket; the message lists the known names and the nearest one.
    """
    if known is None:
        from mxc.passes import PASSES

        known = (*PASSES, *_registered.values())
    by_name = {p.name: p for p in known}
    return tuple(_element(item, by_name) for item in _split(text))


def _split(text: str) -> Iterator[str]:
    """Yield the elements between the commas that are outside of all brackets."""
    depth, start = 0, 0
    for position, character in enumerate(text + ","):
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
            if depth < 0:
                raise PassError(f"'{character}' at {position} closes nothing in {text!r}")
        elif character == "," and (depth == 0 or position == len(text)):
            if depth:
                raise PassError(f"a bracket is not closed in {text!r}")
            item = text[start:position].strip()
            if not item:
                raise PassError(f"a pass name is missing at {start} in {text!r}")
            yield item
            start = position + 1


def _element(item: str, by_name: dict[str, type[Pass]]) -> Pass | str:
    """The pass that one element of a spec names; the text itself for a pass of MLIR or IREE."""
    match = _NAMED.fullmatch(item)
    if match is not None and match.group(1) in by_name:
        return _build(by_name[match.group(1)], match.group(2) or "")
    if item.startswith(_OURS):
        name = re.split(r"[{(]", item)[0]
        raise PassError(
            f"unknown pass {name!r}; known: {_listing(by_name)}{_suggestion(name, by_name)}"
        )
    inside = sorted(set(re.findall(r"[\w.-]+", item)) & by_name.keys())
    if inside:
        raise PassError(
            f"{inside[0]} runs on a whole module and stands in {item!r}; put it between commas"
        )
    _require_options_once(item)
    with new_context():
        try:
            check_native(item)
        except (ValueError, ir.MLIRError) as error:
            reason = str(error).strip().splitlines()[0]
            raise PassError(
                f"unknown pass {item!r}: MLIR says: {reason}; mxc's own: "
                f"{_listing(by_name)}{_suggestion(item, by_name)}"
            ) from error
    return item


def _is_native(name: str) -> bool:
    """Whether MLIR or IREE has a pass of this name."""
    with new_context():
        try:
            check_native(name)
        except (ValueError, ir.MLIRError):
            return False
    return True


def _require_options_once(item: str) -> None:
    """Raise PassError where a pass of MLIR gets an option twice; MLIR would use the last one."""
    for options in re.findall(r"\{([^{}]*)\}", item):
        keys = [word.partition("=")[0] for word in options.split()]
        for key in keys:
            if keys.count(key) > 1:
                raise PassError(f"option {key} is given twice in {item!r}")


def _listing(names: dict[str, type[Pass]]) -> str:
    return ", ".join(sorted(names))


def _suggestion(name: str, names: dict[str, type[Pass]]) -> str:
    close = difflib.get_close_matches(re.split(r"[{(]", name)[0], names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _build(cls: type[Pass], text: str) -> Pass:
    """Build a pass from the text of its options, `name=value ..`."""
    types = get_type_hints(cls)
    options = {f.name.replace("_", "-"): f.name for f in fields(cls)}
    # The least value of an integer option is in the metadata of its field; by default it is 1, or
    # 0 where 0 is the default value of the option.
    least = {f.name: f.metadata.get(LEAST, 0 if f.default == 0 else 1) for f in fields(cls)}
    values: dict[str, bool | int | str] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if key not in options:
            known = ", ".join(options) if options else "none"
            close = difflib.get_close_matches(key, options, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise PassError(f"{cls.name} has no option {key!r}; its options: {known}{hint}")
        if options[key] in values:
            raise PassError(f"option {key} of {cls.name} is given twice")
        if not equals or not value:
            raise PassError(f"option {key} of {cls.name} needs a value: {key}=...")
        name = options[key]
        values[name] = _value(cls, key, value, types[name], least[name])
    return cls(**values)


def _value(cls: type[Pass], key: str, text: str, wanted: type, least: int) -> bool | int | str:
    """Parse the value of an option; a number is at least `least`."""
    if wanted is bool:
        if text in ("true", "false"):
            return text == "true"
        raise PassError(f"option {key} of {cls.name} must be true or false, got {text!r}")
    if wanted is int:
        try:
            number = int(text)
        except ValueError as error:
            raise PassError(
                f"option {key} of {cls.name} must be an integer, got {text!r}"
            ) from error
        if number < least:
            raise PassError(f"option {key} of {cls.name} must be at least {least}, got {number}")
        return number
    return text
