"""Epilogues: elementwise operations after a contraction that its kernel computes before it stores.

    %y = contraction            f32 [P, 1, N]
    %b = linalg.generic(%y, %ids) { y + extract %bias[id, n] }
    %g = linalg.generic(%b[.., : N / 2], %b[.., N / 2 :]) { swiglu }

becomes one kernel with the operands ids and bias, whose result is %g. A *stage* is one generic of
these. *Totals* are the sums of the contraction, or the results of the stage before. A stage may
also read tensors of the result's shape (a residual), of its columns (a bias), of its rows (router
weights) or of groups of rows, a single number (a scale), and rows of a table selected by a number
per row or group (a bias per expert). A *gated* stage reads two columns that are half the width
apart. The result may be reshaped between stages. If a reshape changes its last dimension, the next
stage may read only totals and single numbers. The last stage may yield bf16 or f16, which is then
stored. If the next operation is elementwise but cannot be a stage, the epilogue has the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from iree.compiler import ir

from mxc.dialects.contraction import read_contraction
from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.indexing import dim_of, dims, indexing_maps
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import RESHAPES
from mxc.passes.kernels.epilogue_bodies import FLOATS, OPERANDS, tables_of
from mxc.passes.kernels.extents import Buffer, Size, quotient
from mxc.passes.kernels.values import is_before, readers
from mxc.passes.rewriting.rebuild import body_text

#: How an input of a stage varies over the result. `total`: it is the total; `second`: it is the
#: total of a gated stage that is half the width to the right. A tensor has an element for each row
#: and column (`cell`), for each `column`, `row` or `group` of rows, or one for all (`scalar`). From
#: the rows of a `table`, the body of a stage extracts elements.
Reach = Literal["total", "second", "cell", "column", "row", "group", "scalar", "table"]

#: Inputs that are the same for all columns of a row.
_OF_ROWS = ("row", "group")


@dataclass(frozen=True)
class Input:
    """One input of a stage: how it varies, and its tensor (None for totals)."""

    reach: Reach
    tensor: ir.Value | None


@dataclass(frozen=True)
class MapStage:
    """One elementwise linalg.generic, `op`, over the totals.

    `inputs`: one for each argument of its body except the last. `tables`: the tables that its body
    extracts from. `gated`: whether it reads two totals, half the width apart. `together`: rows per
    group, 1 if no input varies with groups, None where the number comes with each call.
    """

    op: ir.Operation
    inputs: tuple[Input, ...]
    tables: tuple[ir.Value, ...]
    gated: bool
    together: int | None = 1


@dataclass(frozen=True)
class End:
    """The epilogue ends without a reason to report: no elementwise operation follows, or the totals
    have several readers."""


@dataclass(frozen=True)
class Epilogue:
    """The stages after a contraction, in order. At most one is gated.

    `unfused`: the reason why the elementwise operation that follows is not a stage; None where none
    follows. `kept`: the number of stages, none of them gated, after which the kernel stores the
    totals as a result of their own; None if it does not.
    """

    stages: tuple[MapStage, ...]
    unfused: Reason | None = None
    kept: int | None = None

    @property
    def gated(self) -> bool:
        """Whether the result has half as many columns as the contraction."""
        return any(stage.gated for stage in self.stages)

    def last(self, op: ir.Operation) -> ir.Operation:
        """The last operation that the kernel computes: the last stage, or else the contraction
        `op`."""
        return self.stages[-1].op if self.stages else op

    def keeper(self, op: ir.Operation) -> ir.Operation | None:
        """The operation whose result is stored besides that of the last one, or None."""
        if self.kept is None:
            return None
        return self.stages[self.kept - 1].op if self.kept else op

    @property
    def result(self) -> ir.Type:
        """The element type of the result."""
        return element_of(self.stages[-1].op.results[0]) if self.stages else ir.F32Type.get()

    @property
    def kept_result(self) -> ir.Type | None:
        """The element type of the kept result, or None."""
        if self.kept is None:
            return None
        before = self.stages[: self.kept]
        return element_of(before[-1].op.results[0]) if before else ir.F32Type.get()

    @property
    def stores(self) -> str:
        """The name of the element type of the result."""
        return str(self.result)

    @property
    def signature(self) -> str:
        """Text that is equal for epilogues with the same code over operands of the same shapes."""
        places = {operand: number for number, operand in enumerate(self.operands)}
        lines = [f"{reach} {value.type}" for reach, value in self.operands]
        lines += [] if self.kept is None else [f"kept {self.kept}"]
        for stage in self.stages:
            body = stage.op.regions[0].blocks[0]
            names = {v: f"%{i}" for i, v in enumerate(body.arguments)}
            names |= {table: f"table {places['table', table]}" for table in stage.tables}
            inputs = (
                i.reach if i.tensor is None else places[i.reach, i.tensor] for i in stage.inputs
            )
            lines.append(str([*inputs, stage.gated, stage.together]))
            lines += body_text(body, names)
        return "; ".join(lines)

    @property
    def operands(self) -> tuple[tuple[Reach, ir.Value], ...]:
        """Every tensor that the stages read besides the totals, once, with its reach."""
        found: dict[tuple[Reach, ir.Value], None] = {}
        for stage in self.stages:
            for given in stage.inputs:
                if given.tensor is not None:
                    found[given.reach, given.tensor] = None
            for table in stage.tables:
                found["table", table] = None
        return tuple(found)

    def buffers(self, rows: Size, groups: Size, columns: Size = None) -> list[Buffer]:
        """`operands` as buffers of a kernel whose result has `rows` rows, in `groups` groups.
        `columns`: the columns of the result, which replace dynamic sizes of the operands."""
        return [
            Buffer(self._flat(reach, value, rows, groups, columns), element_of(value))
            for reach, value in self.operands
        ]

    def _flat(
        self, reach: Reach, value: ir.Value, rows: Size, groups: Size, columns: Size
    ) -> list[Size]:
        shape: list[Size] = [columns if n < 0 else n for n in shape_of(value)] or [1]
        if reach == "table":
            return shape
        if reach == "group":
            read = Input(reach, value)
            together = next(s.together for s in self.stages if read in s.inputs)
            return [groups if together is None else quotient(rows, together)]
        sizes: dict[str, list[Size]] = {"cell": [rows, shape[-1]], "row": [rows], "scalar": [1]}
        return sizes[reach] if reach in sizes else [shape[-1]]


#: No stages.
NOTHING = Epilogue(())


def epilogue(op: ir.Operation, panel: int, *, keeps: bool = False) -> Epilogue:
    """The stages that a kernel can compute together with the contraction `op`; maybe none.

    `panel`: the halves of a gated stage must be whole panels of this many columns. `keeps`: whether
    the kernel can store totals that have other readers, besides the result of a stage on them. It
    can do so once.
    """
    stages: list[MapStage] = []
    last, width, gated = op, shape_of(op.results[0])[-1], False
    kept: int | None = None
    others: list[ir.Operation] = []
    while True:
        value = last.results[0]
        stage = _next(value, width, 0 if gated or kept is not None else panel)
        if isinstance(stage, End) and keeps and kept is None and not gated:
            beside, others = _beside(value, width)
            stage, kept = beside or stage, len(stages) if beside else None
        if isinstance(stage, MapStage) and stage.together is None and not _has_groups(op, stage.op):
            stage = Reason("groups of a number of rows that comes with the call share one weight")
        if not isinstance(stage, MapStage):
            return Epilogue(tuple(stages), stage if isinstance(stage, Reason) else None, kept)
        if not all(is_before(stage.op, other) for other in others):
            # It may read a result that the other readers compute from the kept totals.
            return Epilogue(tuple(stages), None, kept)
        stages.append(stage)
        last = stage.op
        if stage.gated:
            width, gated = width // 2, True


def _has_groups(op: ir.Operation, stage: ir.Operation) -> bool:
    """Whether the groups of rows of `stage` are the groups of the contraction `op`, each of which
    has weights of its own."""
    of = read_contraction(op)
    same = shape_of(stage.results[0])[:-1] == shape_of(op.results[0])[:-1]
    return of is not None and of.experts > 0 and same


def _beside(value: ir.Value, width: int) -> tuple[MapStage | None, list[ir.Operation]]:
    """The stage that reads `value`, which has several readers, before all others; and the others.
    None and no readers where the first reader is no stage."""
    users = readers(value)
    for user in users:
        others = [other for other in users if other != user]
        if others and all(is_before(user, other) for other in others):
            stage = _stage(user, width, value)
            return (stage, others) if isinstance(stage, MapStage) else (None, [])
    return None, []


def _next(value: ir.Value, width: int, panel: int) -> MapStage | End | Reason:
    """The stage that is the only reader of `value`, which has `width` columns.

    `panel`: columns of a panel; 0 allows no gated stage. Returns a reason for an elementwise
    operation that cannot be a stage.
    """
    users = readers(value)
    if len(users) == 1 and users[0].name in RESHAPES:
        # A dynamic width becomes 0, which no tensor fits: columns may not stay columns.
        return _next(users[0].results[0], max(width, 0), 0)
    if len(users) == 1:
        return _stage(users[0], width, value)
    if len(users) == 2 and all(user.name == "tensor.extract_slice" for user in users):
        return _gated(value, users, panel)
    return End()


def _gated(value: ir.Value, slices: Sequence[ir.Operation], panel: int) -> MapStage | End | Reason:
    """The gated stage whose two totals are the two `slices` of `value`; see `_next`."""
    width = shape_of(value)[-1]
    halves: dict[int, ir.Value] = {}
    for part in slices:
        offsets = list(ir.DenseI64ArrayAttr(part.attributes["static_offsets"]))
        wanted = [*shape_of(value)[:-1], width // 2]
        if any(offsets[:-1]) or shape_of(part.results[0]) != wanted:
            return End()
        if any(stride != 1 for stride in ir.DenseI64ArrayAttr(part.attributes["static_strides"])):
            return End()
        halves[offsets[-1]] = part.results[0]
    users = [list(half.uses) for half in halves.values()]
    if set(halves) != {0, width // 2} or any(len(uses) != 1 for uses in users):
        return End()
    owners = [uses[0].owner.operation for uses in users]
    if owners[0] != owners[1]:
        return End()
    stage = _stage(owners[0], width // 2, halves[0], halves[width // 2])
    if not isinstance(stage, MapStage):
        return stage
    if not panel:
        return Reason("it joins halves of the columns, behind a reshape or another gate")
    if width % (2 * panel):
        return Reason(f"it joins halves of {width // 2} columns, no multiple of {panel}")
    return stage


def _stage(
    op: ir.Operation, width: int, first: ir.Value, second: ir.Value | None = None
) -> MapStage | End | Reason:
    """The operation `op` as a stage over `first` (and `second`), or why it cannot be one.

    Returns `End` where it does not compute each element from the totals at the same index. `width`:
    columns of the result. If the last dimension of `first` has another size, the stage may read
    only totals and single numbers.
    """
    if op.name != "linalg.generic" or len(op.results) != 1 or not is_elementwise(op):
        return End()
    shape = shape_of(first)
    affine = indexing_maps(op)
    maps = [dims(each) for each in affine]
    rank = len(shape)
    whole = list(range(rank))
    totals = [first] if second is None else [first, second]
    read = [places for v, places in zip(op.operands, maps, strict=True) if v in totals]
    if shape_of(op.results[0]) != shape or any(list(each) != whole for each in [*read, maps[-1]]):
        return End()
    if str(element_of(op.results[0])) not in FLOATS:
        return Reason(f"its result is {element_of(op.results[0])}; kernels store f32, bf16 and f16")
    inputs = []
    for value, at in zip(list(op.operands)[:-1], affine, strict=False):
        given = _input(value, at, shape, width, totals)
        if isinstance(given, Reason):
            return given
        inputs.append(given)
    body = op.regions[0].blocks[0]
    if list(body.arguments[len(inputs)].uses):
        return Reason("it reads the tensor that it overwrites")
    rows = {body.arguments[i] for i, given in enumerate(inputs) if given.reach in _OF_ROWS}
    tables = tables_of(op, rank, rows)
    if isinstance(tables, Reason):
        return tables
    return MapStage(op, tuple(inputs), tables, second is not None, _together(inputs, shape))


def _input(
    value: ir.Value, read: ir.AffineMap, shape: list[int], width: int, totals: Sequence[ir.Value]
) -> Input | Reason:
    """The input `value` of a stage over tensors of `shape`, which it reads through the map `read`,
    or why kernels cannot read it so. `width`: columns of the result. `totals`: see `Reach`."""
    if value in totals:
        return Input("total" if value == totals[0] else "second", None)
    if not isinstance(value.type, ir.RankedTensorType):
        return Reason(f"it reads {value.type}, which is no tensor")
    reach = _reach(value, read, shape)
    if reach != "scalar" and shape[-1:] != [width]:
        return Reason(
            f"it reads {value.type} behind a reshape that leaves no rows of {width} columns"
        )
    if reach is None:
        return Reason(f"it reads {value.type} along neither columns nor rows of the result")
    if str(element_of(value)) not in OPERANDS:
        return Reason(f"it reads {element_of(value)}; kernels read {', '.join(OPERANDS)}")
    return Input(reach, value)


def _together(inputs: Sequence[Input], shape: list[int]) -> int | None:
    """Rows per group, None if dynamic; 1 if no input varies with groups."""
    if all(given.reach != "group" for given in inputs):
        return 1
    return shape[-2] if shape[-2] > 0 else None


def _reach(value: ir.Value, read: ir.AffineMap, shape: list[int]) -> Reach | None:
    """The reach of an operand that is read through the map `read` for each element of a result of
    `shape`; None for another access."""
    rank, zero = len(shape), ir.AffineConstantExpr.get(0)
    # A unit dimension that is read at 0 does not count.
    places = [
        dim_of(at)
        for at, size in zip(read.results, shape_of(value), strict=True)
        if at != zero or size != 1
    ]
    if not places:
        return "scalar"
    if places == list(range(rank)):
        return "cell"
    if places == [rank - 1]:
        return "column"
    rows = [axis for axis in range(rank - 1) if axis in places]
    left_out = [axis for axis in range(rank - 1) if axis not in places]
    if places == rows and all(shape[axis] == 1 for axis in left_out):
        return "row"
    # The last dimension before the columns is the rows of a group.
    others = [axis for axis in left_out if shape[axis] != 1]
    return "group" if places == rows and others == [rank - 2] and shape[-2] != 1 else None
