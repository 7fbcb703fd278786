"""Lower a scheduled kernel to MLIR at the insertion point, in one walk over its loop nest.

Grid loops become workgroups. A serial loop carries, as iteration arguments, the registers that are
written inside and live outside; a loop with one iteration is inlined. Statements are emitted for
tile registers or for vector registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.generic import constant
from mxc.kernels.language import Array, Body, Do, For, Kernel, statements
from mxc.kernels.lowering.index import Number, known, least, of, value_of
from mxc.kernels.lowering.places import At, CurrentTile, Places

#: By axis, the dimension of the workgroup id that counts the iterations of its grid loop.
GRID = {"n": 0, "m": 1, "g": 2}


class Statements(Protocol):
    """Emits statements for one kind of registers."""

    def enter(self, held: Sequence[Array], tile: CurrentTile) -> None:
        """Prepare for arrays whose lifetime begins in a tile."""
        ...

    def emit(self, do: Do, tile: CurrentTile) -> None:
        """Emit one statement on a tile."""
        ...


def lower(
    kernel: Kernel,
    memory: Mapping[str, ir.Value],
    sizes: Mapping[str, int | ir.Value],
    statements: Callable[[Kernel, Places], Statements],
) -> None:
    """Build the body of a kernel. `memory`: the memrefs of arrays of the program, by name. `sizes`:
    the size of every axis; that of an axis in `spans` is not read. `statements`: creates the object
    that emits the statements."""
    places = Places(kernel, memory, sizes)
    walk = _Walk(kernel, places, statements(kernel, places))
    at: At = dict.fromkeys(kernel.sizes, 0)
    full = {a for a, size in sizes.items() if isinstance(size, int) and a not in kernel.spans}
    tile = {axis: size if isinstance(size, int) else 0 for axis, size in sizes.items()}
    tile |= dict.fromkeys(kernel.spans, 0)
    walk.block(kernel.body, CurrentTile(at, tile, frozenset(full)))


def workgroups(kernel: Kernel) -> dict[int, tuple[str, int]]:
    """The grid loops: dimension -> axis and step."""
    found = {}

    def visit(body: Body) -> None:
        for each in body:
            if isinstance(each, For):
                if each.kind == "grid":
                    found[GRID[each.axis]] = each.axis, each.by
                visit(each.body)

    visit(kernel.body)
    return found


@dataclass
class _Walk:
    """The lowering of one kernel."""

    kernel: Kernel
    places: Places
    statements: Statements

    def block(self, body: Body, tile: CurrentTile) -> None:
        """Emit every statement and loop of a body."""
        held = self.kernel.held(body)
        for array in held:
            self.places.hold(array, tile)
        with self.places.scope():
            self.statements.enter(held, tile)
            for each in body:
                if isinstance(each, Do):
                    self._do(each, tile)
                elif each.kind == "grid":
                    self._workgroups(each, tile)
                else:
                    self._loop(each, tile)
        for array in held:
            self.places.registers.pop(array.name, None)

    def _do(self, do: Do, tile: CurrentTile) -> None:
        """Emit a statement, under those conditions of its `Early` that are not known to hold."""
        if do.early is None:
            self.statements.emit(do, tile)
            return
        axis, last = do.early.axis, do.early.last
        there = tile.at[axis] + do.early.by
        later = tile.cut(axis, there, tile.sizes[axis], axis in tile.full)
        exists = self.places.end(axis, tile.at) - there if do.early.by else 1
        is_last = tile.at[last] + (tile.sizes[last] + 1) - tile.ends[last]
        whole = [known(positive) for positive in (exists, is_last)]
        if any(number is not None and number <= 0 for number in whole):
            return
        zero = constant(0, ir.IndexType.get())
        conditions = [
            arith.cmpi(arith.CmpIPredicate.sgt, value_of(positive), zero)
            for positive, number in zip((exists, is_last), whole, strict=True)
            if number is None
        ]
        if not conditions:
            self.statements.emit(do, later)
            return
        op = scf.IfOp(functools.reduce(arith.andi, conditions))
        with ir.InsertionPoint(op.then_block), self.places.scope():
            self.statements.emit(do, later)
            scf.YieldOp([])

    def _workgroups(self, loop: For, tile: CurrentTile) -> None:
        """Emit the body of a grid loop, for the iteration of the running workgroup."""
        size = self.places.static(loop.axis)
        one = size is not None and size <= loop.by
        start: Number = 0 if one else of(workgroup(GRID[loop.axis])) * loop.by
        cut = tile.cut(loop.axis, start, loop.by, self._even(loop))
        for axis, derived in self.kernel.derived.items():
            # Load entries of tables here, once: LLVM would not hoist the loads, because it does not
            # know that nothing is stored to the table.
            if derived.group == loop.axis and derived.table:
                self.places.start(derived, cut.at)
            if derived.group == loop.axis and not derived.plus:
                self.places.coordinate(axis, cut.at)
        self.block(loop.body, cut)

    def _even(self, loop: For) -> bool:
        """Whether every iteration of a loop is a full step, wherever the loop begins."""
        size = self.places.static(loop.axis)
        return size is not None and size % loop.by == 0

    def _loop(self, loop: For, tile: CurrentTile) -> None:
        """Emit a serial loop: iterations of the full width, then at most one of each narrower
        width."""
        left, start = self.places.left(loop.axis, tile), tile.at[loop.axis]
        if loop.kind == "first":
            left = least(left, loop.by)
        stop = left + start
        whole = known(left)
        even = self._even(loop) or (whole is not None and whole % loop.by == 0)
        widths = (loop.by, *loop.rest)
        for by, rest in zip(widths, loop.rest, strict=False):
            # Iterations of this width run while more than `rest` coordinates are left. After wider
            # iterations, `start` may be past the end.
            over = stop - start if by == loop.by else _at_least_zero(stop - start)
            behind = (over + (by - rest - 1)) // by * by + start
            self._turns(loop, tile, (start, behind, by), stop, even, once=by != loop.by)
            start, even = behind, False
        self._turns(loop, tile, (start, stop, widths[-1]), stop, even, once=bool(loop.rest))

    def _turns(
        self,
        loop: For,
        tile: CurrentTile,
        span: tuple[Number, Number, int],
        end: Number,
        even: bool,
        *,
        once: bool = False,
    ) -> None:
        """Emit the iterations of one width of a loop, which carry the registers that are written in
        them.

        `span`: start, stop and step. `end`: where the loop ends, with all of its widths. `even`:
        whether every iteration is a full step. `once`: there is at most one iteration, and none if
        start is not below stop.
        """
        start, stop, by = span
        length = known(stop - start)
        if length is not None and length <= by:
            if length > 0:
                self.block(loop.body, tile.cut(loop.axis, start, by, even, end))
            return
        registers = self.places.registers
        names = {do.out for do in statements(loop.body)} & set(registers)
        carried = [(name, key) for name in sorted(names) for key in registers[name]]
        begun = [registers[name][key] for name, key in carried]

        def body(at: Number, given: Sequence[ir.Value]) -> None:
            for (name, key), value in zip(carried, given, strict=True):
                registers[name][key] = value
            self.block(loop.body, tile.cut(loop.axis, at, by, even, end))
            scf.YieldOp([registers[name][key] for name, key in carried])

        op: scf.IfOp | scf.ForOp
        if once:
            # A branch instead of a loop: LLVM would hoist the loads of a loop, and need more
            # registers than there are.
            some = arith.cmpi(arith.CmpIPredicate.slt, value_of(start), value_of(stop))
            op = scf.IfOp(some, [value.type for value in begun], has_else=bool(begun))
            with ir.InsertionPoint(op.then_block):
                body(start, begun)
            if begun:
                with ir.InsertionPoint(op.else_block):
                    scf.YieldOp(begun)
        else:
            # Iterations are counted, so that a coordinate is provably a multiple of the step.
            count = (stop - start + (by - 1)) // by
            zero, one = (constant(each, ir.IndexType.get()) for each in range(2))
            op = scf.ForOp(zero, value_of(count), one, begun)
            with ir.InsertionPoint(op.body):
                body(start + of(op.induction_variable) * by, op.inner_iter_args)
        for (name, key), value in zip(carried, op.results, strict=True):
            registers[name][key] = value


def _at_least_zero(number: Number) -> Number:
    whole = known(number)
    if whole is not None:
        return max(whole, 0)
    zero = constant(0, ir.IndexType.get())
    return of(arith.maxsi(value_of(number), zero))


def workgroup(dimension: int) -> ir.Value:
    """The number of the running workgroup along a dimension."""
    return ir.Operation.create(
        "stream.dispatch.workgroup.id",
        results=[ir.IndexType.get()],
        attributes={"dimension": ir.IntegerAttr.get(ir.IndexType.get(), dimension)},
    ).result
