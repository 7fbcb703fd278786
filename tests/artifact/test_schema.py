"""Records from JSON: what is not of the type of its field is refused with the key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from mxc.artifact.schema import SchemaError, read_record


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    kind: Literal["a", "b"]


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    share: float
    flag: bool
    numbers: tuple[int, ...]
    pair: tuple[str, str | None]
    inner: Inner
    maybe: Inner | None
    table: dict[str, Inner]
    counts: Mapping[str, int]
    anything: Any
    later: int = 5


INNER = {"size": 1, "kind": "a"}
WHOLE: dict[str, Any] = {
    "name": "n",
    "share": 1,
    "flag": True,
    "numbers": [1, 2],
    "pair": ["x", None],
    "inner": INNER,
    "maybe": None,
    "table": {"t": INNER},
    "counts": {"c": 2},
    "anything": {"a": [None]},
    "later": 3,
}


def test_a_record_is_read() -> None:
    inner = Inner(size=1, kind="a")
    assert read_record(Outer, WHOLE) == Outer(
        name="n",
        share=1,
        flag=True,
        numbers=(1, 2),
        pair=("x", None),
        inner=inner,
        maybe=None,
        table={"t": inner},
        counts={"c": 2},
        anything={"a": [None]},
        later=3,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 7}, "f.name: wants a string, found 7"),
        ({"share": True}, "f.share: wants a number, found true"),
        ({"share": float("nan")}, "f.share: wants a number, found nan"),
        ({"flag": 1}, "f.flag: wants true or false, found 1"),
        ({"numbers": None}, "f.numbers: wants an array, found null"),
        ({"numbers": [1, 2.0]}, r"f.numbers\[1\]: wants an integer, found 2.0"),
        ({"pair": ["x"]}, "f.pair: wants 2 items, found 1"),
        ({"pair": ["x", 3]}, r"f.pair\[1\]: wants a string or null, found 3"),
        ({"inner": []}, "f.inner: wants an object, found an array"),
        ({"inner": {**INNER, "kind": "c"}}, "f.inner.kind: wants 'a' or 'b', found 'c'"),
        ({"maybe": {"size": 1}}, "f.maybe.kind: missing"),
        ({"maybe": 3}, "f.maybe: wants an object or null, found 3"),
        ({"table": {"t": {**INNER, "x": 1}}}, "f.table.t.x: unknown key; known are size, kind"),
        ({"counts": {"c": None}}, "f.counts.c: wants an integer, found null"),
        ({"z" * 99: 1}, "f.z{60}...: unknown key"),
        ({"name": "n", "later": "3"}, "f.later: wants an integer, found '3'"),
    ],
)
def test_refusals_name_the_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        read_record(Outer, {**WHOLE, **change}, "f")


def test_what_is_missing_and_what_is_no_object() -> None:
    with pytest.raises(SchemaError, match=r"^later: missing"):
        read_record(Outer, {name: value for name, value in WHOLE.items() if name != "later"})
    with pytest.raises(SchemaError, match=r"^the file: wants an object, found null"):
        read_record(Outer, None)
