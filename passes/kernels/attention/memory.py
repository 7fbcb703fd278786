"""The memory of a workgroup, the place of a block of keys in the pool, and the rows of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from mxc.passes.kernels.attention.shape import CpuAttention
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.runs import KernelRun
from mxc.passes.kernels.vectors import index


@dataclass(frozen=True)
class AttentionBuffers:
    """`queries`, `pool`, `value_pool`, `sinks`, `lists`, `mask`, `parts` and `result` are the
    memrefs of a call; `value_pool` may be `pool`. `sums` is either `parts` or `result`: the values
    of a piece are summed there. `keys` and `values` are the entries of a page that have them.

    `packed` is the pool as bytes [pages * entries, bytes of an entry], if pages have scales.

    The rest is scratch. `staged` f32 [D, keys] holds a block of keys. `copied` [keys, mixed] holds
    a block of values, if `copies`. `factors` f32 [mixed / 32, keys] holds the scales of a block of
    values, if pages have scales. `weights` f32 [rows of a tile + 1, keys]. `maxima` and `totals`,
    [tiles, rows], are of a piece; `all_maxima` and `all_totals`, of the same sizes, are of the
    pieces before it and the sink.
    """

    queries: ir.Value
    pool: ir.Value
    value_pool: ir.Value
    packed: ir.Value | None
    sinks: ir.Value
    lists: ir.Value
    mask: ir.Value | None
    parts: ir.Value
    result: ir.Value
    sums: ir.Value
    keys: ir.Value
    values: ir.Value
    staged: ir.Value
    copied: ir.Value | None
    copies: ir.Value
    factors: ir.Value | None
    weights: ir.Value
    maxima: ir.Value
    totals: ir.Value
    all_maxima: ir.Value
    all_totals: ir.Value


@dataclass(frozen=True)
class KeyPlace:
    """The start of a block of keys of a head, which lies in one page: the page and a position in
    it."""

    page: ir.Value
    first: ir.Value

    head: ir.Value

    def at(self, entry: ir.Value, number: ir.Value, element: ir.Value) -> list[ir.Value]:
        """The indices in the pool of an element of key `number` of the block."""
        return [self.page, entry, self.first + number, self.head, element]

    def select(self, condition: ir.Value, other: KeyPlace) -> KeyPlace:
        """This place if the condition holds, else the other one."""
        mine = self.page, self.first, self.head
        others = other.page, other.first, other.head
        return KeyPlace(
            *(arith.select(condition, *pair) for pair in zip(mine, others, strict=True))
        )


@dataclass(frozen=True)
class KeyBlock:
    """The keys `start` .. `stop` - 1 of the sequence of a run for one head; later keys of the block
    are not used.

    `here` is the place of the block, `ahead` the place of a later block to prefetch.
    """

    start: ir.Value
    stop: ir.Value
    here: KeyPlace
    ahead: KeyPlace


def place_of(
    shape: CpuAttention, lists: ir.Value, run: ir.Value, position: ir.Value, head: ir.Value
) -> KeyPlace:
    """The place of the block that begins at `position` of a run."""
    size = value_of(shape.positions)
    page = memref.LoadOp(lists, [run, position // size]).result
    return KeyPlace(arith.index_cast(ir.IndexType.get(), page), position % size, head)


@dataclass(frozen=True)
class QueryRows:
    """The rows of a tile, all of one key/value head and of run number `run`.

    For each row: its token in the call (`tokens`), the same token counted in the run (`own`), the
    last key that it attends to (`positions`), and its query head (`members`). `number`: that of the
    tile in its workgroup. `first_part`: the index of token 0 of the call in the partial results. A
    tile may contain a row twice, which is then computed twice.
    """

    head: ir.Value
    number: ir.Value
    run: ir.Value
    tokens: Sequence[ir.Value]
    own: Sequence[ir.Value]
    positions: Sequence[ir.Value]
    members: Sequence[ir.Value]
    first_part: ir.Value

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.tokens)

    def row(self, number: int) -> list[ir.Value]:
        """The indices of the query and of the result of a row."""
        return [self.tokens[number], self.head, self.members[number]]

    def part(self, number: int) -> list[ir.Value]:
        """The indices of the partial result of a row."""
        token = self.first_part + self.tokens[number]
        return [token, self.head, self.members[number]]


@dataclass(frozen=True)
class Workgroup:
    """The part of a call that a workgroup computes: rows of `run`. `first_part`: the index of token
    0 of the call in its partial results."""

    shape: CpuAttention
    run: KernelRun
    first_part: ir.Value

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.shape.group

    def rows(
        self, head: ir.Value, number: ir.Value, tokens: Sequence[ir.Value], members: list[ir.Value]
    ) -> QueryRows:
        """The rows of `tokens`, which are counted within the run."""
        known: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        for token in tokens:
            if token not in known:
                run = self.run
                known[token] = run.first + token, self.shape.position(run, token)
        places, positions = zip(*(known[token] for token in tokens), strict=True)
        return QueryRows(
            head, number, self.run.number, places, tokens, positions, members, self.first_part
        )

    def tile(self, head: ir.Value, number: ir.Value, first: ir.Value, count: int) -> QueryRows:
        """`count` rows from `first` on; where the run has fewer, rows are repeated."""
        each, last = index(self.group), self.run.tokens - 1
        if self.group % count == 0:
            token, member = first // each, first % each
            members = [member + i for i in range(count)]
            return self.rows(head, number, [token] * count, members)
        if count % self.group == 0:
            token = first // each
            tokens = [arith.minui(token + i, last) for i in range(count // self.group)]
            members = [index(i) for i in range(self.group)]
            spread = [token for token in tokens for _ in members]
            return self.rows(head, number, spread, members * len(tokens))
        most = self.run.tokens * each - 1
        numbers = [arith.minui(first + i, most) for i in range(count)]
        tokens = [row // each for row in numbers]
        return self.rows(head, number, tokens, [row % each for row in numbers])

    def rest(self, head: ir.Value, number: ir.Value, count: int) -> QueryRows:
        """The last `count` rows of the run, all of one token."""
        last = self.run.tokens - 1
        members = [index(self.group - count + i) for i in range(count)]
        return self.rows(head, number, [last] * count, members)
