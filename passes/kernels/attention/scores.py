"""Scores of a tile for one block of keys, with keys in the lanes: sums of products, then masks.

A row has one or two registers of keys, and each element of a query is broadcast to all lanes. The
order of a row's sum does not depend on the number of rows in the tile: chains of every n-th
element, then the sum of the chains.
"""

from __future__ import annotations

import functools

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, math, scf, vector

from mxc.dialects.dense_attention import with_mask
from mxc.passes.kernels.attention.memory import AttentionBuffers, KeyBlock, QueryRows
from mxc.passes.kernels.attention.rows import in_all_lanes
from mxc.passes.kernels.attention.shape import KEY_REGISTERS, CpuAttention
from mxc.passes.kernels.exponential import tanh
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.vectors import (
    broadcast,
    choose,
    f32,
    i1,
    i32,
    index,
    load,
    loop,
    of,
    prefetch,
    signed_below,
    splat,
    table,
    when,
)

#: Elements of D per iteration of the loop.
UNROLL = 4
#: The score of a key that a row does not attend to.
MASKED = float("-inf")

#: [row][register of keys].
Scores = list[list[ir.Value]]


def scores(
    shape: CpuAttention, memory: AttentionBuffers, rows: QueryRows, block: KeyBlock
) -> Scores:
    """Scores of the rows for the keys of a block; MASKED for keys that a row does not attend to."""
    found = _products(shape, memory, rows, block)
    if memory.mask is not None:
        found = _added(shape, memory.mask, rows, block, found)
    return _masked(shape, rows, block, found)


def _products(
    shape: CpuAttention, memory: AttentionBuffers, rows: QueryRows, block: KeyBlock
) -> Scores:
    registers = shape.key_registers
    at_once = KEY_REGISTERS * shape.tile_rows // (rows.count * registers)
    number = min(shape.chains, at_once)
    chains: list[list[ir.Value]] = []
    for first in range(0, shape.chains, number):
        chains += _chains(shape, memory, rows, block, range(first, first + number))

    def finished(*sums: ir.Value) -> ir.Value:
        total = functools.reduce(arith.addf, sums)
        if shape.cap is None:
            return total * shape.scale
        bounded = tanh(total * (shape.scale / shape.cap))
        return bounded * shape.cap

    totals = [finished(*sums) for sums in zip(*chains, strict=True)]
    return [totals[i * registers : (i + 1) * registers] for i in range(rows.count)]


def _chains(
    shape: CpuAttention, memory: AttentionBuffers, rows: QueryRows, block: KeyBlock, chains: range
) -> list[list[ir.Value]]:
    """Return the sums of each chain: for each row, those of its registers of keys. Chain n sums the
    products of the elements of D whose index is n modulo the number of chains."""
    lanes, registers = shape.lanes, shape.key_registers
    size = rows.count * registers
    zero = [splat(0.0, f32(), lanes)] * (len(chains) * size)
    with loop(index(0), index(shape.depth), index(UNROLL), zero) as (at, sums, op):
        if 0 in chains:
            with when(memory.copies ^ 1):
                _ask_for_values(shape, memory, block, at)
        for step in range(UNROLL):
            if step % shape.chains not in chains:
                continue
            here = at + step
            keys = [
                load(memory.staged, [here, index(j * lanes)], f32(), lanes)
                for j in range(registers)
            ]
            first = chains.index(step % shape.chains) * size
            for i in range(rows.count):
                query = broadcast(memory.queries, [*rows.row(i), here], lanes)
                for j, key in enumerate(keys):
                    place = first + i * registers + j
                    sums[place] = math.fma(query, key, sums[place])
        scf.YieldOp(sums)
    sums = list(op.results)
    return [sums[first : first + size] for first in range(0, len(sums), size)]


def _ask_for_values(
    shape: CpuAttention, memory: AttentionBuffers, block: KeyBlock, at: ir.Value
) -> None:
    """Prefetch a part of the values of the block, in the loop over its scores at `at`."""
    keys, depth = shape.block_keys, shape.depth
    first, line = at * keys // depth, 512 // int(shape.pool_type.width)
    with loop(first, (at + UNROLL) * keys // depth, index(1)) as (number, _, _):
        for column in range(0, shape.mixed, line):
            prefetch(memory.value_pool, block.here.at(memory.values, number, index(column)))


def _added(
    shape: CpuAttention, mask: ir.Value, rows: QueryRows, block: KeyBlock, scores: Scores
) -> Scores:
    """Add the mask to scores. It is not read past the last key."""
    assert shape.mask is not None
    lanes, registers = shape.lanes, shape.key_registers
    shared, of_heads, of_tokens = shape.mask
    zero, kind = index(0), of(f32(), lanes)
    number = rows.run // shared if shared else zero
    places = [
        [
            number,
            rows.head * shape.group + member if of_heads else zero,
            token if of_tokens else zero,
        ]
        for member, token in zip(rows.members, rows.own, strict=True)
    ]
    columns = [block.start + j * lanes for j in range(registers)]
    inside: list[ir.Value] = []
    if not isinstance(shape.positions, int) or shape.positions % shape.block_keys:
        behind = value_of(shape.positions)
        inside = [vector.create_mask(of(i1(), lanes), [behind - column]) for column in columns]

    def read(place: list[ir.Value], register: int) -> ir.Value:
        at = [*place, columns[register]]
        if not inside:
            return load(mask, at, f32(), lanes)
        return vector.maskedload(kind, mask, at, inside[register], splat(0.0, f32(), lanes))

    return [
        [
            with_mask(score, read(place, register), replaces=shape.replaces)
            for register, score in enumerate(row)
        ]
        for place, row in zip(places, scores, strict=True)
    ]


def _masked(shape: CpuAttention, rows: QueryRows, block: KeyBlock, scores: Scores) -> Scores:
    """Mask scores of keys that a row does not attend to. Most blocks have none, and skip this."""
    behind = block.start + shape.block_keys
    late = signed_below(rows.positions[0] + 1, behind)
    early = signed_below(block.start, shape.first_seen(rows.positions[-1]))

    def masked() -> list[ir.Value]:
        masks: dict[ir.Value, list[ir.Value]] = {}
        lowest = splat(MASKED, f32(), shape.lanes)
        found = []
        for row, position in zip(scores, rows.positions, strict=True):
            if position not in masks:
                masks[position] = _seen_keys(shape, position, block.start)
            found += [
                arith.select(mask, score, lowest)
                for mask, score in zip(masks[position], row, strict=True)
            ]
        return found

    flat = choose(late | early, masked, [value for row in scores for value in row])
    registers = shape.key_registers
    return [flat[i * registers : (i + 1) * registers] for i in range(rows.count)]


def _seen_keys(shape: CpuAttention, position: ir.Value, start: ir.Value) -> list[ir.Value]:
    """The mask of the keys, in the block from `start` on, that a row at `position` attends to."""
    lanes = shape.lanes

    def bound(key: ir.Value) -> ir.Value:
        return in_all_lanes(arith.index_cast(i32(), key - start), lanes)

    own, first = bound(position), bound(shape.first_seen(position))
    masks = []
    for j in range(shape.key_registers):
        keys = table(np.arange(j * lanes, (j + 1) * lanes, dtype=np.int32), i32())
        early = arith.cmpi(arith.CmpIPredicate.sge, keys, first)
        masks.append(early & arith.cmpi(arith.CmpIPredicate.sle, keys, own))
    return masks
