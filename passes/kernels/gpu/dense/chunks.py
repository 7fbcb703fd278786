"""How the sum over K of a dense product is put together: the same way by every schedule.

K is cut into chunks, each of the same number of blocks of 32. The sum of a chunk is one chain of
matrix instructions in the order of K, which starts from zero. The sums of the chunks are added in
their order. This depends on K alone: not on the number of rows, nor on where a row is. Each wave
may have one chunk (stream.py), or one wave all of them, one after the other: the bits of the result
are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Rows of the matrix instruction. All schedules use the same one, because the hardware decides in
#: which order an instruction adds.
ROWS = 16
#: Numbers of chunks, the best first. If each wave has one chunk, they are the waves of a workgroup
#: along K, which should be a few.
_COUNTS = (4, 5, 6, 3, 7, 8, 2)
#: Fewest blocks of a chunk; blocks of a stage of a ring, of which a chunk is a whole number.
_LEAST, STAGE = 4, 2
#: Most chunks, where none of `_COUNTS` divides K.
_MOST = 8


@dataclass(frozen=True)
class Chunks:
    """`count` chunks of `size` blocks each. The last one may go past the end of K."""

    size: int
    count: int

    @staticmethod
    def of(blocks: int) -> Chunks:
        """Return the chunks of a K of `blocks` blocks."""
        for count in _COUNTS:
            if blocks % (count * STAGE) == 0 and blocks // count >= _LEAST:
                return Chunks(blocks // count, count)
        size = max(_LEAST, STAGE * -(-blocks // (_MOST * STAGE)))
        return Chunks(size, -(-blocks // size))
