"""Names and records in locations, however they are nested."""

from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.locations import names, plain, records, with_record


def test_names_are_found_in_nested_locations_and_files_are_none() -> None:
    with new_context():
        file = ir.Location.file("model.py", 3, 1)
        callers = [ir.Location.name("caller"), ir.Location.fused([ir.Location.name("c2"), file])]
        deep = ir.Location.callsite(ir.Location.name("a.b", file), callers)
        fused = ir.Location.fused([deep, ir.Location.name('odd "µ\\"'), deep])
        assert names(fused) == ("a.b", 'odd "µ\\"')
        assert names(file) == ()
        assert names(ir.Location.unknown()) == ()


def test_a_record_is_found_in_nested_locations_and_is_no_name() -> None:
    with new_context():
        one, two = ir.Attribute.parse('{why = "x"}'), ir.Attribute.parse("2 : i64")
        first = with_record(ir.Location.name("a"), "mxc.record", one)
        second = with_record(ir.Location.file("model.py", 3, 1), "mxc.record", two)
        called = ir.Location.callsite(first, [ir.Location.name("caller")])
        both = ir.Location.fused([called, second])
        assert records(both, "mxc.record") == [one, two]
        assert records(both, "mxc.other") == []
        assert names(both) == ("a",)


def test_a_plain_location_has_no_records() -> None:
    with new_context():
        record = ir.Attribute.parse("2 : i64")
        name, file = ir.Location.name("a"), ir.Location.file("model.py", 3, 1)
        assert plain(with_record(file, "mxc.record", record)) == file
        caller = ir.Location.name("caller")
        called = ir.Location.callsite(with_record(name, "mxc.record", record), [caller])
        assert plain(called) == ir.Location.callsite(name, [caller])
        fused = ir.Location.fused([name, file])
        assert plain(fused) == fused
