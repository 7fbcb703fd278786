"""Weights that are quantised while they are packed, a few rows at a time.

Elements and scales are two tensors of the archive, one after the other, made from two readings of
the source: neither waits in memory for the other. What is lost is summed up on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.dialects.errors import CheckpointError
from mxc.dialects.formats import BlockFormat
from mxc.dialects.manifest import BLOCKS
from mxc.dialects.recipes import ScaleRecipe
from mxc.dialects.reference import dequantize, quantize


class Part(Enum):
    """What of a quantised tensor is packed."""

    ELEMENTS = "elements"
    SCALES = "scales"


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """A part of a tensor [.., rows, K] in blocks of `format` along K, their scales by `recipe`."""

    format: BlockFormat
    recipe: ScaleRecipe
    part: Part

    def shape(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """In bytes, of a source [.., K]: [.., K / 32, bytes of a block], or [.., K / 32]."""
        *rows, depth = source
        blocks = (*rows, self.format.blocks(depth))
        return (*blocks, self.format.block_bytes) if self.part is Part.ELEMENTS else blocks


@dataclass(kw_only=True)
class Loss:
    """Sums of squares of a tensor and of what quantising it changed, as it is read.

    `how` names what it was quantised to.
    """

    how: str = ""
    elements: int = 0
    signal: float = 0.0
    noise: float = 0.0

    def add(self, other: Loss) -> None:
        """Sum up another tensor, or a part of this one."""
        self.how = other.how
        self.elements += other.elements
        self.signal += other.signal
        self.noise += other.noise

    @property
    def sqnr(self) -> float | None:
        """Signal to noise in dB, to 0.01; None where there is no signal, or no noise."""
        if not self.signal or not self.noise:
            return None
        return round(10 * math.log10(self.signal / self.noise), 2)


def loss_rows(losses: Mapping[str, Loss]) -> list[dict[str, Any]]:
    """What report.json says of each tensor; `losses` by the key of the elements."""
    return [
        {"name": key.removesuffix(BLOCKS), "to": loss.how, "elements": loss.elements,
         "sqnr": loss.sqnr}
        for key, loss in losses.items()
    ]  # fmt: skip


def describe_loss(losses: Mapping[str, Loss]) -> list[str]:
    """One sentence about all tensors that were quantised; none where there is none."""
    if not losses:
        return []
    whole = Loss()
    for loss in losses.values():
        whole.add(loss)
    known = [(loss.sqnr, key) for key, loss in losses.items() if loss.sqnr is not None]
    worst = f", least {min(known)[0]} dB in {min(known)[1].removesuffix(BLOCKS)}" if known else ""
    return [
        f"{len(losses)} dense weights were quantised to {whole.how}: "
        f"signal to noise {whole.sqnr} dB{worst}"
    ]


def quantised_rows(
    read: Callable[[int, int], NDArray[np.uint8]],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    quantised: Quantised,
    loss: Loss,
    *,
    chunk: int,
    place: str,
) -> Iterator[NDArray[np.uint8]]:
    """The bytes of one part of a tensor of `dtype`, from about `chunk` bytes of it at a time.

    `loss` grows with the elements. Raises CheckpointError, with the `place` of the tensor, where a
    number is NaN or Inf: in its block nothing else would be left.
    """
    *lead, depth = shape
    rows = int(np.prod(lead))
    row_bytes = depth * dtype.itemsize
    step = max(1, chunk // max(row_bytes, 1))
    for row in range(0, rows if depth else 0, step):
        count = min(step, rows - row)
        values = read(row * row_bytes, count * row_bytes).view(dtype).reshape(count, depth)
        wide = values.astype(np.float32)
        q = quantize(wide, quantised.format, recipe=quantised.recipe)
        if quantised.part is Part.SCALES:
            yield q.scales.reshape(-1)
            continue
        _require_finite(wide, row, place)
        difference = (dequantize(q) - wide).reshape(-1)
        flat = wide.reshape(-1)
        noise = _squares(difference)
        how = f"{quantised.format} with recipe {quantised.recipe}"
        loss.add(Loss(how=how, elements=flat.size, signal=_squares(flat), noise=noise))
        yield q.elements.reshape(-1)


def _squares(values: NDArray[np.float32]) -> float:
    # In float64, where no square of a float32 over- or underflows, and in one order: a dot product
    # is summed as the threads of the machine have it.
    wide = values.astype(np.float64)
    return float(np.square(wide, out=wide).sum())


def _require_finite(values: NDArray[np.float32], first: int, place: str) -> None:
    wrong = ~np.isfinite(values)
    if wrong.any():
        row, column = np.argwhere(wrong)[0].tolist()
        raise CheckpointError(
            f"{place}: row {first + row}, column {column} is {values[row, column]}, one of "
            f"{np.count_nonzero(wrong)} numbers here that cannot be quantised; fetch the file "
            "again, or leave --quantize-dense out"
        )
