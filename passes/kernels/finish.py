"""Compute the stages of an epilogue on the accumulators of a kernel.

The scalar body of each stage is rebuilt on vectors, whose lanes are adjacent columns of one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.generic import constant
from mxc.passes.kernels.epilogues import Epilogue, MapStage, Reach
from mxc.passes.kernels.exponential import exponential
from mxc.passes.kernels.narrow_floats import extreme, rounded, widened
from mxc.passes.kernels.vectors import f32, index, of, splat

#: Largest argument for which `exponential` is called directly; see `_exponential`.
_HIGH = 87.0
_EXTREMES = ("arith.maximumf", "arith.minimumf")


@dataclass(frozen=True)
class ResultColumns:
    """Adjacent columns of one row of the result, the first of which is `column`. `mask`: the lanes
    that are columns of the result, None if all are."""

    row: ir.Value
    column: ir.Value
    mask: ir.Value | None


@dataclass(frozen=True)
class Finish:
    """An epilogue with the memrefs of its operands, computed on vectors of `lanes` columns.

    `operations`: names of operations of the program -> names of the operations that replace them,
    which take no attributes. `group`: the number of the group to which all rows of the workgroup
    belong, for stages in which the number of rows per group comes with each call.
    """

    epilogue: Epilogue
    memrefs: Mapping[tuple[Reach, ir.Value], ir.Value]
    lanes: int
    operations: Mapping[str, str] = field(default_factory=dict)
    group: ir.Value | None = None

    def apply(
        self,
        totals: list[ir.Value],
        places: list[ResultColumns],
        first: int = 0,
        last: int | None = None,
    ) -> ir.Value:
        """The result of the stages from `first` to before `last` on one total, or on the two totals
        of a gated stage. `places`: of each total. Totals and results are f32 [lanes]."""
        (result,) = self.each(totals, places, first, last)
        return result

    def each(
        self,
        totals: list[ir.Value],
        places: list[ResultColumns],
        first: int = 0,
        last: int | None = None,
    ) -> list[ir.Value]:
        """The results of the stages from `first` to before `last`, one for each total.

        If a stage is gated, there are two totals, and one result.
        """
        for stage in self.epilogue.stages[first:last]:
            if stage.gated:
                totals = [self._stage(stage, totals, places[0])]
            else:
                # After a gated stage there is one total, at the first of two places.
                totals = [
                    self._stage(stage, [total], place)
                    for total, place in zip(totals, places, strict=False)
                ]
        return totals

    def _stage(self, stage: MapStage, totals: list[ir.Value], place: ResultColumns) -> ir.Value:
        """The result of one stage, as f32 [lanes], on its total, or on its two totals if it is
        gated. Narrower floats are held as f32."""
        body = stage.op.regions[0].blocks[0]
        known: dict[ir.Value, ir.Value] = {}
        for argument, given in zip(body.arguments, stage.inputs, strict=False):
            if given.tensor is None:
                total = totals[given.reach == "second"]
                known[argument] = rounded(total, argument.type)
                continue
            source = self.memrefs[given.reach, given.tensor]
            known[argument] = widened(self._read(given.reach, source, place, stage.together))
        for view in body.operations:
            op = view.operation
            if op.name == "linalg.yield":
                return self._spread(self._known(op.operands[0], known))
            if op.name == "linalg.index":
                known[op.results[0]] = place.column
            elif op.name == "tensor.extract":
                table = self.memrefs["table", op.operands[0]]
                last = index(ir.MemRefType(table.type).shape[0] - 1)
                # Clamped, as the kernel clamps the number of an expert that does not exist.
                at = [arith.minui(known[op.operands[1]], last), place.column]
                known[op.results[0]] = widened(self._load(table, at, place))
            elif (
                op.name == "arith.truncf"
                and len(list(op.results[0].uses)) == 1
                and next(iter(op.results[0].uses)).owner.operation.name == "linalg.yield"
            ):
                # Not rounded here: the store or the next stage does it.
                known[op.results[0]] = self._known(op.operands[0], known)
            else:
                found = self._compute(op, [self._known(v, known) for v in op.operands])
                known[op.results[0]] = rounded(found, op.results[0].type)
        raise AssertionError("a linalg body ends in a yield")

    def _known(self, value: ir.Value, known: Mapping[ir.Value, ir.Value]) -> ir.Value:
        return known[value] if value in known else _constant(value)

    def _read(
        self, reach: Reach, source: ir.Value, place: ResultColumns, together: int | None
    ) -> ir.Value:
        if reach == "group":
            group = self.group if together is None else place.row // together
            return memref.LoadOp(source, [group]).result
        if reach in ("row", "scalar"):
            return memref.LoadOp(source, [place.row if reach == "row" else index(0)]).result
        at = [place.row, place.column] if reach == "cell" else [place.column]
        return self._load(source, at, place)

    def _load(self, source: ir.Value, at: list[ir.Value], place: ResultColumns) -> ir.Value:
        element = ir.MemRefType(source.type).element_type
        kind = of(element, self.lanes)
        if place.mask is None:
            return vector.load(kind, source, at)
        return vector.maskedload(kind, source, at, place.mask, splat(0, element, self.lanes))

    def _compute(self, op: ir.Operation, operands: list[ir.Value]) -> ir.Value:
        """Emit the operation on vectors if an operand is a vector, else on scalars."""
        wide = any(_is_vector(value) for value in operands)
        if wide:
            operands = [self._spread(value) for value in operands]
        if op.name in ("arith.extf", "arith.truncf"):
            return operands[0]
        if op.name == "math.exp":
            return _exponential(self._spread(operands[0]), self.lanes)
        if op.name in _EXTREMES and op.name not in self.operations:
            return extreme(*operands, largest=op.name == "arith.maximumf")
        kind = op.results[0].type
        kind = f32() if isinstance(kind, ir.FloatType) else kind
        name = self.operations.get(op.name, op.name)
        attributes = {key: op.attributes[key] for key in op.attributes if name == op.name}
        results = [of(kind, self.lanes) if wide else kind]
        return ir.Operation.create(
            name, results=results, operands=operands, attributes=attributes
        ).result

    def _spread(self, value: ir.Value) -> ir.Value:
        """Broadcast a scalar to all lanes; vectors are unchanged."""
        if _is_vector(value):
            return value
        return vector.broadcast(of(value.type, self.lanes), value)


def _constant(value: ir.Value) -> ir.Value:
    """A constant of the program, rebuilt in the kernel."""
    if isinstance(value.type, ir.FloatType):
        return constant(ir.FloatAttr(value.owner.attributes["value"]).value, f32())
    return arith.ConstantOp(value.type, value.owner.attributes["value"]).result


def _is_vector(value: ir.Value) -> bool:
    return isinstance(value.type, ir.VectorType)


def _exponential(x: ir.Value, lanes: int) -> ir.Value:
    """exp of any f32. Above _HIGH it may be infinite: it is the square of the exp of x / 2."""
    high = arith.cmpf(arith.CmpFPredicate.OGT, x, splat(_HIGH, f32(), lanes))
    half = x * 0.5
    half = arith.minimumf(half, splat(_HIGH, f32(), lanes))
    found = exponential(arith.select(high, half, x))
    return arith.select(high, found * found, found)
