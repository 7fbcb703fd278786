"""Locations as carriers of names that builders give, and of records.

A record is a named attribute in the metadata of a fused location. It survives where IREE rebuilds
an operation and drops its attributes, and where IREE forms a dispatch of several operations.
"""

from __future__ import annotations

from collections.abc import Iterator

from iree.compiler import ir


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


def plain(location: ir.Location) -> ir.Location:
    """`location` without records, for messages."""
    if isinstance(location, ir.CallSiteLoc):
        return ir.Location.callsite(plain(location.callee), [plain(location.caller)])
    if _records(location) is not None:
        inner = [plain(each) for each in location.locations]
        return inner[0] if len(inner) == 1 else ir.Location.fused(inner)
    return location


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
