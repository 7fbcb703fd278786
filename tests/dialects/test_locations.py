"""Names and records in locations, however they are nested."""

from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.locations import names, place_of, records, with_place, with_record


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


def test_a_place_is_said_in_a_line() -> None:
    with new_context():
        record = ir.Attribute.parse("2 : i64")
        file = ir.Location.file("net.py", 3, 4)
        name = ir.Location.name("x@w", ir.Location.name("f", file))
        callers = [ir.Location.file("main.py", line, 6) for line in (5, 6, 7, 8)]
        assert place_of(file) == "net.py:3:4"
        assert place_of(name) == "net.py:3:4 (x@w, f)"
        assert place_of(with_record(name, "mxc.record", record)) == "net.py:3:4 (x@w, f)"
        assert place_of(ir.Location.name("layer.3")) == "layer.3"
        called = ir.Location.callsite(name, callers[:1])
        assert place_of(called) == "net.py:3:4 (x@w, f), called from main.py:5:6"
        assert place_of(ir.Location.callsite(name, [file])) == "net.py:3:4 (x@w, f)"
        deep = ir.Location.name("jit", ir.Location.callsite(ir.Location.name("g"), callers))
        assert place_of(deep) == ("jit, g, called from main.py:5:6, main.py:6:6, main.py:7:6, ...")
        fused = ir.Location.fused([name, callers[0], name])
        assert place_of(fused) == "net.py:3:4, main.py:5:6 (x@w, f)"
        assert with_place(file, "is wrong") == "net.py:3:4: is wrong"
        assert with_place(ir.Location.unknown(), "is wrong") == "is wrong"
