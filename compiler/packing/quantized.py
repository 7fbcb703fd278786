"""Weights that are quantized while they are packed, a few rows at a time.

Elements and scales are two tensors of the archive. Each is computed from a reading of the source of
its own, so that neither is held in memory for the other. The loss is accumulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import BLOCKS
from mxc.compiler.quantize.loss import Loss
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.formats.formats import BlockFormat
from mxc.formats.recipes import ScaleRecipe

__all__ = ["Loss", "QuantizedPart", "QuantizedRows", "describe_loss", "loss_rows", "quantized_rows"]


class QuantizedPart(Enum):
    """The part of a quantized tensor that is packed."""

    ELEMENTS = "elements"
    SCALES = "scales"


@dataclass(frozen=True, kw_only=True)
class QuantizedRows:
    """A part of a tensor [.., rows, K] in blocks of `format` along K, with scales by `recipe`."""

    format: BlockFormat
    recipe: ScaleRecipe
    part: QuantizedPart

    def shape(self, source: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in bytes for [.., K]: [.., blocks, bytes per block], or [.., blocks]."""
        *rows, depth = source
        blocks = (*rows, self.format.blocks(depth))
        return (*blocks, self.format.block_bytes) if self.part is QuantizedPart.ELEMENTS else blocks


def loss_rows(losses: Mapping[str, Loss]) -> list[dict[str, Any]]:
    """Return the entries of report.json for quantized tensors; `losses` is by elements' key."""
    return [
        {"name": key.removesuffix(BLOCKS), "to": loss.how, "elements": loss.elements,
         "sqnr": loss.sqnr}
        for key, loss in losses.items()
    ]  # fmt: skip


def describe_loss(losses: Mapping[str, Loss]) -> list[str]:
    """Return one sentence about all quantized tensors; an empty list if there are none."""
    if not losses:
        return []
    whole = Loss()
    for loss in losses.values():
        whole.add(loss)
    known = [(loss.sqnr, key) for key, loss in losses.items() if loss.sqnr is not None]
    worst = f", least {min(known)[0]} dB in {min(known)[1].removesuffix(BLOCKS)}" if known else ""
    return [
        f"{len(losses)} dense weights were quantized to {whole.how}: "
        f"signal to noise {whole.sqnr} dB{worst}"
    ]


def quantized_rows(
    values: NDArray[Any], quantized: QuantizedRows, loss: Loss, *, place: str, row: int
) -> NDArray[np.uint8]:
    """Return the bytes of one part of the quantized rows `values` [count, K].

    `row` is the number of the first row, for messages. `loss` is updated with the elements. Raises
    CheckpointError with the `place` of the tensor for NaN or Inf, which would make its whole block
    useless.
    """
    elements, scales, lost = _quantizer(quantized.format, quantized.recipe).run(
        values, place, row=row
    )
    if quantized.part is QuantizedPart.SCALES:
        return scales.reshape(-1)
    loss.add(lost)
    return elements.reshape(-1)


@cache
def _quantizer(format: BlockFormat, recipe: ScaleRecipe) -> RowQuantizer:
    """Cached because it makes tables."""
    return RowQuantizer(format=format, recipe=recipe, remedy="leave --quantize-dense out")
