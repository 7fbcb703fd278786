"""Checks, when a program is called, that sizes with one name are one size.

    f(x [b, t], y [b])    ->    assert the first size of y is that of x

What is compiled relies on it, and would compute something else from other sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, cf, tensor

from mxc.dialects.sizes import shape_of


def require_same_sizes(
    module: ir.Module, arguments: Sequence[str], names: Sequence[Sequence[str | None]]
) -> None:
    """Begin the one function of a module with such checks.

    `arguments`: the names of its arguments. `names`: of each argument the names of its sizes, None
    for one that has none.
    """
    every = [view.operation for view in module.body.operations]
    (function,) = (op for op in every if op.name == "func.func")
    block = function.regions[0].blocks[0]
    first: dict[str, tuple[int, int]] = {}
    with function.location, ir.InsertionPoint.at_block_begin(block):
        for number, (argument, sizes) in enumerate(zip(block.arguments, names, strict=True)):
            for axis, name in enumerate(sizes):
                if name is None or shape_of(argument)[axis] >= 0:
                    continue
                before, at = first.setdefault(name, (number, axis))
                if (before, at) == (number, axis):
                    continue
                here, there = (
                    tensor.dim(block.arguments[which], arith.constant(ir.IndexType.get(), place))
                    for which, place in ((number, axis), (before, at))
                )
                same = arith.cmpi(arith.CmpIPredicate.eq, here, there)
                one, other = f"{axis} of {arguments[number]}", f"{at} of {arguments[before]}"
                cf.AssertOp(same, f"size {one} and size {other} are both {name}, and differ")
