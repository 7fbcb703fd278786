"""Rounding with error feedback (GPTQ): what one column loses, the columns after it make up for.

Columns of a weight [N, K] are rounded one after the other, those of the largest inputs first. With
H = mean of x x^T over the inputs x of a text, the error of a column changes outputs least when

    w[:, k] -= error * U[j, k] / U[j, j]    of every later column k, where H^-1 = U^T U, U upper

is done before these are rounded. Scales are found before, of the weight as it was: what is stored
is the same format. Source: Frantar et al., GPTQ, arXiv 2210.17323, algorithm 1, with its order by
activations.

A text of few tokens shows correlations that other texts do not have, and making up by those loses
more than it gains. So entries of H beside its diagonal are shrunk, by the share of them that n
independent inputs would show by chance (Schaefer and Strimmer, 2005): with few tokens, or inputs
that are not correlated, little is fed back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.formats.formats import ElementFormat
from mxc.formats.rounding import Ties, encode

Floats = NDArray[np.float32]

#: Added to the diagonal of H, as a part of its mean: inputs that the text does not vary.
_DAMPING = 0.01
#: Columns after which the rest of the matrix is corrected by one product.
_PANEL = 128


@dataclass(frozen=True)
class Feedback:
    """How errors are fed back.

    `order` int [K]: the columns as they are rounded; `factor` float32 [K, K]: U in that order.
    """

    order: NDArray[np.intp]
    factor: Floats

    @staticmethod
    def of(gram: NDArray[np.float64], count: int) -> Feedback:
        """From H float64 [K, K], not zero, of `count` inputs; 32 bytes for each of its elements."""
        diagonal = np.diag(gram)
        order = np.argsort(-diagonal, kind="stable")
        damped = gram[np.ix_(order, order)]
        damped *= 1 - chance(damped, count)
        damped[np.diag_indices(len(order))] = diagonal[order]
        damped[np.diag_indices(len(order))] += _DAMPING * diagonal.mean()
        # H = R R^T with R upper, by the factor of the reversed matrix; then U = R^-1.
        upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
        return Feedback(order, np.triu(np.linalg.inv(upper)).astype(np.float32))

    def run(
        self, values: Floats, units: Floats, element: ElementFormat, ties: Ties
    ) -> NDArray[np.uint8]:
        """Codes uint8 [n, K] of rows `values` [n, K]; `units` [n, K / block]: what an element is
        multiplied with."""
        depth = values.shape[1]
        block = depth // units.shape[1]
        # A column is contiguous.
        rows = np.ascontiguousarray(values.T[self.order])
        scales = np.ascontiguousarray(units.T)
        codes = np.empty((depth, len(values)), np.uint8)
        errors = np.empty((_PANEL, len(values)), np.float32)
        for start in range(0, depth, _PANEL):
            stop = min(start + _PANEL, depth)
            for at in range(start, stop):
                column, row = self.order[at], rows[at]
                unit = scales[column // block]
                with np.errstate(over="ignore"):
                    found = encode(row / unit, element, ties)
                codes[column] = found
                error = errors[at - start]
                np.subtract(row, element.values.take(found) * unit, out=error)
                error /= self.factor[at, at]
                rows[at + 1 : stop] -= self.factor[at, at + 1 : stop, None] * error
            rows[stop:] -= self.factor[start:stop, stop:].T @ errors[: stop - start]
        return np.ascontiguousarray(codes.T)


def chance(gram: NDArray[np.float64], count: int) -> float:
    """The share of what is beside the diagonal that `count` inputs show by chance, 0 to 1."""
    sizes = np.sqrt(np.maximum(np.diag(gram), np.finfo(np.float64).tiny))
    correlations = gram / sizes
    correlations /= sizes[:, None]
    squares = float(np.einsum("ij,ij->", correlations, correlations)) - len(gram)
    pairs = len(gram) * (len(gram) - 1)
    return min(1.0, (pairs + squares) / count / squares) if squares > 0 else 1.0
