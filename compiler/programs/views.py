"""Elements of an array that loops read, as an array whose dimensions are the loops.

array [N, K], read at (k, n + 8): strides [1, K], start 8 K
read([(1, 16), (0, K)])    is    array[8:24, :]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from iree.compiler import ir
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

#: Loops with their sizes, in the order of the dimensions of what they read.
Loops = Sequence[tuple[int, int]]


class ArrayView:
    """A row-major array as loops read it.

    `strides`: by how many elements a step of each loop moves; None if the indices are not linear.
    """

    def __init__(self, array: NDArray[Any], at: Sequence[ir.AffineExpr], loops: int) -> None:
        """`at`: the index along each dimension of `array`, of so many `loops`."""
        self._array = array
        self._at = at
        self._start = 0
        self.strides: list[int] | None = None
        terms = [_linear(expression) for expression in at]
        linear = [each for each in terms if each is not None]
        if len(linear) == len(terms):
            self.strides = [0] * loops
            for each, stride in zip(linear, _row_major(array.shape), strict=True):
                for loop, factor in each:
                    if loop is None:
                        self._start += factor * stride
                    else:
                        self.strides[loop] += factor * stride

    def is_row_major(self, loops: Loops) -> bool:
        """Whether what the loops read is contiguous, in the order of the loops."""
        moves = None if self.strides is None else [self.strides[i] for i, _ in loops]
        return moves == _row_major([size for _, size in loops])

    def read(self, loops: Loops) -> NDArray[Any]:
        """What the loops read, others at 0; without a copy where the indices are linear."""
        flat = self._array.reshape(-1)
        if self.strides is None:
            return np.asarray(flat[self._addresses(loops)])
        bytes_of = self._array.dtype.itemsize
        moves = [self.strides[i] * bytes_of for i, _ in loops]
        shape = [size for _, size in loops]
        return as_strided(flat[self._start :], shape, moves, writeable=False)

    def _addresses(self, loops: Loops) -> NDArray[np.int64]:
        sizes = tuple(size for _, size in loops)
        steps = np.ogrid[tuple(slice(size) for size in sizes)]
        grids = dict(zip((i for i, _ in loops), steps, strict=True))
        found = np.zeros(sizes, np.int64)
        for expression, stride in zip(self._at, _row_major(self._array.shape), strict=True):
            found += _numbers(expression, grids) * stride
        return found


def _row_major(shape: Sequence[int]) -> list[int]:
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _numbers(expression: ir.AffineExpr, grids: Mapping[int, NDArray[np.int64]]) -> Any:
    """An expression of loops for all of their iterations; a loop without a grid stays at 0."""
    if isinstance(expression, ir.AffineDimExpr):
        return grids.get(expression.position, 0)
    if isinstance(expression, ir.AffineConstantExpr):
        return expression.value
    two = ir.AffineBinaryExpr(expression)
    left, right = _numbers(two.lhs, grids), _numbers(two.rhs, grids)
    if isinstance(expression, ir.AffineAddExpr):
        return left + right
    if isinstance(expression, ir.AffineMulExpr):
        return left * right
    if isinstance(expression, ir.AffineModExpr):
        return left % right
    up = isinstance(expression, ir.AffineCeilDivExpr)
    return -(-left // right) if up else left // right


def _linear(expression: ir.AffineExpr) -> list[tuple[int | None, int]] | None:
    """The loops of a linear expression, each with its factor, and None with the constant; None for
    another expression."""
    if isinstance(expression, ir.AffineDimExpr):
        return [(expression.position, 1)]
    if isinstance(expression, ir.AffineConstantExpr):
        return [(None, expression.value)]
    if isinstance(expression, ir.AffineAddExpr):
        left, right = _linear(expression.lhs), _linear(expression.rhs)
        return None if left is None or right is None else [*left, *right]
    if isinstance(expression, ir.AffineMulExpr) and isinstance(
        expression.rhs, ir.AffineConstantExpr
    ):
        left = _linear(expression.lhs)
        factor = expression.rhs.value
        return None if left is None else [(loop, each * factor) for loop, each in left]
    return None
