"""Rounding with error feedback (GPTQ): the columns after one compensate its rounding error.

The columns of a weight [N, K] are rounded one after the other, in the order of decreasing inputs. H
= mean of x x^T over the inputs x of a text. The error of column j changes the outputs least if the
later columns k are updated before they are rounded:

  w[:, k] -= error * U[j, k] / U[j, j]    where H^-1 = U^T U, U upper triangular

Scales are computed before, from the original weight, so the stored format is the same. Source:
Frantar et al., GPTQ, arXiv 2210.17323, algorithm 1, with its order by activations.

A text of few tokens shows correlations that other texts do not have, and compensating by these
loses more than it gains. So the off-diagonal entries of H are shrunk by the share that n
independent inputs would show by chance (Schaefer and Strimmer, 2005). With few tokens, or
uncorrelated inputs, little is fed back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.formats.formats import ElementFormat
from mxc.formats.rounding import Ties, encode

Floats = NDArray[np.float32]

#: Added to the diagonal of H, as a share of its mean, for inputs that are constant in the text.
_DAMPING = 0.01
#: Number of columns after which the rest of the matrix is updated by one matrix product.
_PANEL = 128


@dataclass(frozen=True)
class Feedback:
    """Parameters of error feedback.

    `order` int [K]: the order in which columns are rounded; `factor` float32 [K, K]: U in that
    order.
    """

    order: NDArray[np.intp]
    factor: Floats

    @staticmethod
    def of(gram: NDArray[np.float64], count: int) -> Feedback:
        """Compute from a nonzero H float64 [K, K] of `count` inputs; needs 32 bytes per element of
        H."""
        diagonal = np.diag(gram)
        order = np.argsort(-diagonal, kind="stable")
        damped = gram[np.ix_(order, order)]
        damped *= 1 - chance(damped, count)
        damped[np.diag_indices(len(order))] = diagonal[order]
        damped[np.diag_indices(len(order))] += _DAMPING * diagonal.mean()
        # H = R R^T with R upper triangular, from the Cholesky factor of the reversed matrix; U =
        # R^-1.
        upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
        return Feedback(order, np.triu(np.linalg.inv(upper)).astype(np.float32))

    def run(
        self, values: Floats, units: Floats, element: ElementFormat, ties: Ties
    ) -> NDArray[np.uint8]:
        """Return codes uint8 [n, K] of rows `values` [n, K] with scales `units` [n, K / block]."""
        depth = values.shape[1]
        block = depth // units.shape[1]
        # Transposed, so that a column is contiguous.
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
    """Return the share, 0 to 1, of off-diagonal entries of H that `count` inputs show by chance."""
    sizes = np.sqrt(np.maximum(np.diag(gram), np.finfo(np.float64).tiny))
    correlations = gram / sizes
    correlations /= sizes[:, None]
    squares = float(np.einsum("ij,ij->", correlations, correlations)) - len(gram)
    pairs = len(gram) * (len(gram) - 1)
    return min(1.0, (pairs + squares) / count / squares) if squares > 0 else 1.0
