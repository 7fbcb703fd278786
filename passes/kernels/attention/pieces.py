"""Combine pieces of keys, in one order and by one formula: in a workgroup, or in @NAME_merged.

The state starts with the sink. Piece p of a row has a maximum m, a total l and values a, which are
the sums of exp(score - m) and of these times values:

    M' = max(M, m)
    L' = L * exp(M - M') + l * exp(m - M')
    A' = A * exp(M - M') + a * exp(m - M')

and the result is A / L. A piece without keys that the row attends to leaves M, L and A unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import math, scf, vector

from mxc.dialects.dense_attention import LOWEST, SMALLEST
from mxc.passes.kernels.attention.shape import CpuAttention, is_apart
from mxc.passes.kernels.attention.staging import extended
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.exponential import exponential, greater
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.runs import KernelRun, run_of_token
from mxc.passes.kernels.vectors import broadcast, f32, index, lanes_of, load, loop, splat, when

#: The smallest maximum: that of a row whose keys are all masked.
FLOOR = LOWEST
#: Registers of a row that are summed at once.
SUMS = 8


@dataclass(frozen=True)
class SoftmaxState:
    """Maximum and total of rows, in the lanes of a register."""

    maximum: ir.Value
    total: ir.Value

    @property
    def numbers(self) -> tuple[ir.Value, ir.Value]:
        """Maximum and total."""
        return self.maximum, self.total


def only_sink(sink: ir.Value) -> SoftmaxState:
    """The state before the first piece."""
    maximum = greater(splat(FLOOR, f32(), lanes_of(sink)), sink)
    return SoftmaxState(maximum, exponential(sink - maximum))


def merged(
    before: SoftmaxState, piece: SoftmaxState
) -> tuple[SoftmaxState, tuple[ir.Value, ir.Value]]:
    """The combined state, and the factors of the state before and of the piece."""
    maximum = greater(piece.maximum, before.maximum)
    old = exponential(before.maximum - maximum)
    new = exponential(piece.maximum - maximum)
    return SoftmaxState(maximum, added(before.total, piece.total, (old, new))), (old, new)


def added(before: ir.Value, piece: ir.Value, factors: tuple[ir.Value, ir.Value]) -> ir.Value:
    """before * the first factor + piece * the second."""
    return math.fma(piece, factors[1], before * factors[0])


def mean(shape: CpuAttention, total: ir.Value, weights: ir.Value) -> ir.Value:
    """A sum of values over the total of their weights, which is zero only under a mask."""
    if shape.mask is not None:
        weights = greater(weights, splat(SMALLEST, f32(), shape.lanes))
    return total / weights


def merge_pieces(shape: CpuAttention, buffers: Sequence[ir.Value]) -> None:
    """Build the body of @NAME_merged; a workgroup has the query heads of a token."""
    parts, sinks, runs, result = buffers
    lanes, whole = shape.lanes, shape.mixed // shape.lanes
    registers = max(n for n in range(1, SUMS + 1) if whole % n == 0)
    head, token = workgroup(0), workgroup(1)
    with when(is_apart(shape)):
        run = run_of_token(runs, value_of(shape.runs), token)
        with loop(index(0), index(shape.group), index(1)) as (member, _, _):
            first, behind = _pieces(shape, run, token, member)
            sink = only_sink(extended(broadcast(sinks, [head, member], lanes)))
            start = [sink.maximum, sink.total, *[splat(0.0, f32(), lanes)] * registers]
            with loop(index(0), index(whole), index(registers)) as (register, _, _):
                columns = [(register + i) * lanes for i in range(registers)]
                with loop(first, behind, index(1), start) as (piece, (maximum, total, *sums), op):
                    row = piece * value_of(shape.tokens) + token
                    left = [
                        broadcast(parts, shape.state_of([row, head, member], i), lanes)
                        for i in range(2)
                    ]
                    state, factors = merged(SoftmaxState(maximum, total), SoftmaxState(*left))
                    for i, at in enumerate(columns):
                        part = load(parts, [row, head, member, at], f32(), lanes)
                        sums[i] = added(sums[i], part, factors)
                    scf.YieldOp([state.maximum, state.total, *sums])
                _, total, *sums = op.results
                for at, value in zip(columns, sums, strict=True):
                    vector.store(mean(shape, value, total), result, [token, head, member, at])


def _pieces(
    shape: CpuAttention, run: KernelRun, token: ir.Value, member: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The first piece that a row attends to and the one after the last, counted from the first
    piece that its block of rows attends to."""
    own, rows = token - run.first, shape.rows_of_call()
    row = own * shape.group + member
    begin = row // rows * rows // shape.group

    def first_piece(token: ir.Value) -> ir.Value:
        key = shape.first_seen(run.before + token)
        return key // shape.piece_keys

    behind = shape.position(run, own) // shape.piece_keys + 1
    zero = first_piece(begin)
    return first_piece(own) - zero, behind - zero
