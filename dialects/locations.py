"""Locations as carriers of names that builders give, and of records.

A record is a named attribute in the metadata of a fused location. It survives where IREE rebuilds
an operation and drops its attributes, and where IREE forms a dispatch of several operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from iree.compiler import ir

#: Places that a message says, and callers.
_MOST = 3


def names(location: ir.Location) -> tuple[str, ...]:
    """The names that builders gave (`ir.Location.name`), at any depth, in order, without repeats.

    Fused locations are searched; of a call site only the callee is; file locations have no names.
    """
    found = (each.name_str for each in _inside(location) if isinstance(each, ir.NameLoc))
    return tuple(dict.fromkeys(found))


def records(location: ir.Location, name: str) -> list[ir.Attribute]:
    """The records of this name in a location, in order."""
    found = [_records(each) for each in _inside(location)]
    return [each[name] for each in found if each is not None and name in each]


def with_record(location: ir.Location, name: str, record: ir.Attribute) -> ir.Location:
    """`location` with a record added."""
    return ir.Location.fused([location], ir.DictAttr.get({name: record}))


def place_of(location: ir.Location) -> str:
    """Where something is, for messages: its file, line and column, its names, and its callers.

        loc(callsite("x@w"("f"("FILE":3:4)) at "CALLER":5:6))
        FILE:3:4 (x@w, f), called from CALLER:5:6

    "" if nothing is known. Of many callers, or operations that became one, the first are said.
    """
    # That of a diagnostic is of no kind of its own.
    location = ir.Location.from_attr(location.attr, location.context)
    own, calls = _files(location)
    said = " (" + ", ".join(names(location)) + ")" if own else ", ".join(names(location))
    where = _first(own) + (said if names(location) else "")
    callers = _first([each for each in calls if each not in own])
    return ", called from ".join(each for each in (where, callers) if each)


def with_place(location: ir.Location, message: str) -> str:
    """A message behind its place, if that is known."""
    where = place_of(location)
    return f"{where}: {message}" if where else message


def _files(location: ir.Location) -> tuple[list[str], list[str]]:
    """The places in files that a location consists of, and those that call it, each once."""
    if isinstance(location, ir.FileLineColLoc):
        return [f"{location.filename}:{location.start_line}:{location.start_col}"], []
    if isinstance(location, ir.NameLoc):
        return _files(location.child_loc)
    own, calls = list[str](), list[str]()
    if isinstance(location, ir.CallSiteLoc):
        own, calls = _files(location.callee)
        calls += chain.from_iterable(_files(location.caller))
    elif isinstance(location, ir.FusedLoc):
        for each in location.locations:
            found = _files(each)
            own += found[0]
            calls += found[1]
    return list(dict.fromkeys(own)), list(dict.fromkeys(calls))


def _first(files: list[str]) -> str:
    more = ["..."] if len(files) > _MOST else []
    return ", ".join([*files[:_MOST], *more])


def _records(location: ir.Location) -> ir.DictAttr | None:
    metadata = location.metadata if isinstance(location, ir.FusedLoc) else None
    found = None if metadata is None else metadata.maybe_downcast()
    return found if isinstance(found, ir.DictAttr) else None


def _inside(location: ir.Location) -> Iterator[ir.Location]:
    """Yield a location and the locations that it consists of."""
    yield location
    if isinstance(location, ir.FusedLoc):
        for each in location.locations:
            yield from _inside(each)
    elif isinstance(location, ir.NameLoc):
        yield from _inside(location.child_loc)
    elif isinstance(location, ir.CallSiteLoc):
        yield from _inside(location.callee)
