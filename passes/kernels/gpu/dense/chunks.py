"""How the sum over K of a dense product is put together: the same way by every schedule.

K is cut into chunks of as many blocks of 32. A chunk is one chain of matrix instructions, from
zero, in the order of K; the sums of the chunks are added up in their order. This depends on K
alone: not on the number of rows, nor on where a row is. Waves may have a chunk each (stream.py),
or one wave has all of them, one after the other. The bits are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Rows of the instructions: the same for all, since the sums within one are the machine's.
ROWS = 16
#: Numbers of chunks, the best first: of waves that share K a workgroup has a few.
_COUNTS = (4, 5, 6, 3, 7, 8, 2)
#: Blocks of a chunk, at least, and of a stage of a ring, of which a chunk has some.
_LEAST, STAGE = 4, 2
#: Chunks where none of these numbers divides K, at most.
_MOST = 8


@dataclass(frozen=True)
class Chunks:
    """`count` chunks of `size` blocks; the last ones may go beyond the end of K."""

    size: int
    count: int

    @staticmethod
    def of(blocks: int) -> Chunks:
        """Those of a K of so many blocks."""
        for count in _COUNTS:
            if blocks % (count * STAGE) == 0 and blocks // count >= _LEAST:
                return Chunks(blocks // count, count)
        size = max(_LEAST, STAGE * -(-blocks // (_MOST * STAGE)))
        return Chunks(size, -(-blocks // size))
