"""The values of a block-quantized or float-scaled weight as a plain tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mxc.compiler.checkpoints.canonical.codecs import Bytes
from mxc.compiler.checkpoints.canonical.stored import Raw, WeightPart
from mxc.compiler.checkpoints.files.tensors import TensorRecord

if TYPE_CHECKING:
    from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor


@dataclass(frozen=True, kw_only=True)
class MatrixValues(WeightPart):
    """The values of `tensor` in `dtype`: F32, each product rounded once, or BF16, truncated."""

    tensor: CanonicalTensor

    @property
    def record(self) -> TensorRecord:
        """The file tensor of the elements."""
        return self.tensor.elements.record

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""
        return self.tensor.records

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Return rows [start, start + count). They are read from the files, not through `raw`."""
        values = np.ascontiguousarray(self.tensor.values(start, count))
        if self.dtype == "BF16":
            values = np.ascontiguousarray(values.view(np.uint16)[:, 1::2])
        return values.view(np.uint8)
