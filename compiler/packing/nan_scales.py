"""Detection of NaN among the scales of a checkpoint while they are packed.

Every weight in such a block is NaN, and so is every product with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mxc.errors import CheckpointError

#: The E8M0 byte for NaN (OCP MX 1.0, section 5.4.1).
_NAN_SCALE = 0xFF


@dataclass(frozen=True, kw_only=True)
class NanScale:
    """`count` NaN scales in one row; `row` is the number in the checkpoint, `expert` None where the
    weight is that of no expert."""

    tensor: str
    expert: int | None
    row: int
    count: int

    def place(self, between: str) -> str:
        """Return the expert, if there is one, and the row, with `between` between them."""
        row = f"row {self.row}"
        return row if self.expert is None else f"expert {self.expert}{between}{row}"


@dataclass
class NanCount:
    """Number of NaN scales by (expert, row)."""

    found: dict[tuple[int, int], int] = field(default_factory=dict)

    def look(
        self, data: NDArray[np.uint8], start: int, rows: int, blocks: int, *, halves: bool
    ) -> None:
        """Count the NaN scales in `data`, at byte `start` of a tensor [experts, rows, blocks].

        `halves`: the even rows of an expert come before the odd ones.
        """
        for index in np.flatnonzero(data == _NAN_SCALE).tolist():
            expert, row = divmod((start + index) // blocks, rows)
            if halves:
                odd, pair = divmod(row, rows // 2)
                row = 2 * pair + odd
            self.add(expert, row, 1)

    def add(self, expert: int, row: int, count: int) -> None:
        """Add `count` NaN scales of a row."""
        self.found[expert, row] = self.found.get((expert, row), 0) + count

    def listed(self) -> list[tuple[int, int, int]]:
        """Return (expert, row, count), sorted."""
        return [(expert, row, count) for (expert, row), count in sorted(self.found.items())]


def nan_scales(
    key: str, file: str, found: NanCount, *, experts: bool, allowed: bool
) -> list[NanScale]:
    """Return the NaN scales of tensor `key`. Raises CheckpointError for any unless `allowed`.

    experts: the tensor has several experts, else it is one matrix.
    """
    result = [
        NanScale(tensor=key, expert=expert if experts else None, row=row, count=count)
        for expert, row, count in found.listed()
    ]
    if result and not allowed:
        first = "; ".join(f"{n.place(' ')} ({n.count})" for n in result[:4])
        more = f"; and {len(result) - 4} more rows" if len(result) > 4 else ""
        raise CheckpointError(
            f"{file}: tensor {key} has {sum(n.count for n in result)} NaN scales (byte "
            f"0xFF): {first}{more}; every weight of such a block is NaN. Fetch the file again, "
            "or pass --allow-nan-scales if they are meant"
        )
    return result
