"""Which loops can be split, of those that indexing maps divide by constants."""

import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.errors import PassError
from mxc.passes.rewriting.split_loops import is_divided_evenly, plan_split


@pytest.mark.parametrize(
    ("length", "sizes", "even"),
    [
        (96, (32,), True),
        (96, (16, 32), True),
        (96, (48, 32), False),
        # Each divides the size, but not each other.
        (96, (96, 48, 32), False),
        (96, (64,), False),
        (None, (32,), False),
    ],
)
def test_divided_evenly_is_what_can_be_split(
    length: int | None, sizes: tuple[int, ...], even: bool
) -> None:
    with new_context(), ir.Location.unknown() as location:
        maps = [
            ir.AffineMap.get(1, 0, [ir.AffineExpr.get_floor_div(ir.AffineDimExpr.get(0), size)])
            for size in sizes
        ]
        kind = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        assert is_divided_evenly(maps, [length]) == even
        if even:
            plan = plan_split(maps, [kind], [length], location)
            assert plan is not None
        else:
            with pytest.raises(PassError):
                plan_split(maps, [kind], [length], location)
