"""Check whether a stage of an epilogue can compute the body of an elementwise operation on vectors.

A body computes on scalars. It may have arithmetic, and read elements of tables at [number, column]:
`column` is that of the result, and `number` is the same for a whole row of the result.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.values import is_argument, is_constant

#: Dialects whose operations have the same meaning on vectors.
_ELEMENTWISE = ("arith.", "math.")
#: Operations that are taken only with floats that are f32. Kernels hold narrow floats as f32, which
#: has other bits, and to which integers are rounded differently.
_BITS = ("arith.bitcast", "arith.sitofp", "arith.uitofp")
#: Element types of the operands of a stage; float types that its body may compute with.
OPERANDS = ("f32", "bf16", "f16", "i32")
FLOATS = ("f32", "bf16", "f16")


def tables_of(op: ir.Operation, rank: int, rows: set[ir.Value]) -> tuple[ir.Value, ...] | Reason:
    """Return the tables that a body reads, or why the body cannot be computed on vectors.

    `rank`: of the result, whose last dimension is the columns. `rows`: arguments of the body that
    depend on the row only. The body may use the index of a column only to read tables, and may not
    use other indices.
    """
    body = op.regions[0].blocks[0]
    found: dict[ir.Value, None] = {}
    own = set(body.arguments) | {result for view in body.operations for result in view.results}
    for view in body.operations:
        inner = view.operation
        for value in inner.operands:
            outside = value not in own
            tables = inner.name == "tensor.extract" and value == inner.operands[0]
            if outside and not tables and (is_argument(value) or not is_constant(value)):
                return Reason(f"{inner.name} in it reads a value from outside")
        if inner.name == "linalg.index":
            if ir.IntegerAttr(inner.attributes["dim"]).value != rank - 1:
                return Reason("it reads the number of a row")
            if any(use.owner.operation.name != "tensor.extract" for use in inner.results[0].uses):
                return Reason("it computes with the number of a column")
        elif inner.name == "tensor.extract":
            if not _is_row_of_table(inner, rows):
                return Reason(f"it looks up elements of {inner.operands[0].type} one by one")
            found[inner.operands[0]] = None
        elif inner.name != "linalg.yield" and not _is_known(inner):
            kinds = ", ".join(dict.fromkeys(str(v.type) for v in [*inner.operands, *inner.results]))
            return Reason(f"{inner.name} in it is not known on vectors of {kinds}")
    return tuple(found)


def _is_row_of_table(extract: ir.Operation, rows: set[ir.Value]) -> bool:
    """Whether an extract reads a static table at [number, column], where the integer `number`
    depends on the row only, as `rows` states, and `column` is an index of the result."""
    table, *at = extract.operands
    if len(at) != 2 or str(element_of(table)) not in OPERANDS or min(shape_of(table)) < 0:
        return False
    if any(map(is_argument, at)):
        return False
    number, column = (value.owner for value in at)
    if column.name != "linalg.index" or number.name != "arith.index_cast":
        return False
    return number.operands[0] in rows


def _is_known(op: ir.Operation) -> bool:
    """Whether a scalar operation can run on vectors of f32 (for all floats) and of integers."""
    if not op.name.startswith(_ELEMENTWISE) or len(op.results) != 1 or len(op.regions):
        return False
    kinds = [value.type for value in (*op.operands, *op.results)]
    floats = [str(kind) for kind in kinds if isinstance(kind, ir.FloatType)]
    if not set(floats) <= set(FLOATS) or len(floats) < len(
        [kind for kind in kinds if not isinstance(kind, (ir.IntegerType, ir.IndexType))]
    ):
        return False
    # As f32, narrow floats have other bits, and integers are rounded differently.
    return op.name not in _BITS or set(floats) <= {"f32"}
