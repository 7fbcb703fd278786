"""Values that are pinned: which types LLVM passes through inline assembly as they are."""

from collections.abc import Iterator

import pytest
from iree.compiler import ir

from mxc.dialects.amdgpu import pinned
from mxc.dialects.context import new_context
from mxc.dialects.generic import constant


@pytest.fixture
def in_module() -> Iterator[None]:
    with new_context(), ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
        yield


def number(kind: str) -> ir.Value:
    return constant(0, ir.Type.parse(kind))


@pytest.mark.parametrize("kinds", [["i32"], ["vector<2xi32>"], ["i32", "vector<4xi32>", "f32"]])
def test_types_stay(kinds: list[str], in_module: None) -> None:
    found = pinned([number(kind) for kind in kinds])
    assert [str(value.type) for value in found] == kinds


@pytest.mark.parametrize("kinds", [["vector<1xi32>"], ["i32", "vector<1xf32>"]])
def test_a_vector_of_one_element_is_an_error(kinds: list[str], in_module: None) -> None:
    with pytest.raises(ValueError, match="give its element"):
        pinned([number(kind) for kind in kinds])
