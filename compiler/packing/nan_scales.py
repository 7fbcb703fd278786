"""NaN among the scales of a checkpoint: found while they are packed, and named.

A weight in such a block is NaN, and with it whatever it is multiplied with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.packing.items import PackItem
from mxc.errors import CheckpointError

#: E8M0 byte that is NaN (OCP MX 1.0, section 5.4.1).
_NAN_SCALE = 0xFF


@dataclass(frozen=True, kw_only=True)
class NanScale:
    """`count` NaN scales in one row (as the checkpoint counts rows) of one expert."""

    tensor: str
    expert: int
    row: int
    count: int


class NanSearch:
    """Looks through the bytes of one item as they are read, each once."""

    def __init__(self, item: PackItem) -> None:
        """Looks at nothing where the item is no scales."""
        self._item = item
        self._seen = 0
        self._found: dict[tuple[int, int], int] = {}

    def look(self, start: int, data: NDArray[np.uint8]) -> None:
        """Count the NaN in `data`, which lies `start` bytes into the tensor."""
        if not self._item.scales or start < self._seen:
            return
        self._seen = start + data.size
        _, rows, blocks = self._item.matrix
        for index in np.flatnonzero(data == _NAN_SCALE).tolist():
            expert, row = divmod((start + index) // blocks, rows)
            self._found[expert, row] = self._found.get((expert, row), 0) + 1

    def result(self, *, allowed: bool) -> list[NanScale]:
        """What was found. Raises CheckpointError where something was and is not `allowed`."""
        item = self._item
        result = [
            NanScale(tensor=item.key, expert=expert, row=row, count=count)
            for (expert, row), count in sorted(self._found.items())
        ]
        if result and not allowed:
            file = "generated" if item.record is None else item.record.file
            first = "; ".join(f"expert {n.expert} row {n.row} ({n.count})" for n in result[:4])
            more = f"; and {len(result) - 4} more rows" if len(result) > 4 else ""
            raise CheckpointError(
                f"{file}: tensor {item.key} has {sum(n.count for n in result)} NaN scales (byte "
                f"0xFF): {first}{more}; every weight of such a block is NaN. Fetch the file again, "
                "or pass --allow-nan-scales if they are meant"
            )
        return result
