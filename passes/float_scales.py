"""mxc-float-scales: make float scales of blocks f32, one for each row and block.

Some fp8 formats have a float scale per square of 128 x 128 elements, shared by its rows, which may
be bf16 or f16. The canonical contraction has scales by row and block: they are extended, which is
exact, and repeated for the rows (dialects/repeated_rows.py). Kernels for GPUs look through the
repetition; for others it costs four bytes per block of a row. The elements are not copied.

before:
    linalg.generic {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (n, k),
                    (m, n, k) -> (n floordiv 128, k floordiv 128), (m, n, k) -> (m, n)]}
      ins(%x, %w : tensor<256x512xf8E4M3FN>, %s : tensor<2x4xbf16>) outs(%acc)
      { mulf(extf(%w), extf(%s)), mulf, addf }
after:
    %e = linalg.generic ins(%s) { extf } -> tensor<2x4xf32>
    %r = linalg.generic {indexing_maps = [(n, ko) -> (n floordiv 128, ko), (n, ko) -> (n, ko)]}
      ins(%e) -> tensor<256x4xf32>
    linalg.generic {indexing_maps = [.., (m, n, k) -> (n, k floordiv 128), (m, n, k) -> (m, n)]}
      ins(%x, %w, %r) outs(%acc) { mulf(extf(%w), %r), mulf, addf }

Leaves alone: 8-bit scales, scales with a dynamic number of rows, and floats that do not multiply an
element of 8 bits or fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import is_code, iterators
from mxc.dialects.generic import extended, shape_of
from mxc.dialects.indexing import loop_ranges, substitute
from mxc.dialects.repeated_rows import read_at
from mxc.dialects.scalar_nodes import loops_of
from mxc.passes.base import Pass
from mxc.passes.rewriting.generics import generic_like, is_product, read_map, yielded
from mxc.passes.rewriting.rebuild import OperandRead, clone_scalar, replace, sums_of_elements, sweep


@dataclass(frozen=True)
class FloatScales(Pass):
    """Make float scales of blocks f32, one for each row and block."""

    name = "mxc-float-scales"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every contraction with a float scale narrower than f32 or shared by rows."""
        for op in sums_of_elements(module):
            if op.name == "linalg.generic":
                _rewrite(op)
        sweep(module)


@dataclass(frozen=True)
class _Pair:
    """An element and the float that scales it, as arguments of a body. `wide`: the scalar that is
    the scale extended to f32."""

    element: ir.Value
    scale: ir.Value
    wide: ir.Value


def _rewrite(op: ir.Operation) -> None:
    block = op.regions[0].blocks[0]
    wide = {pair.scale: (pair.wide, read) for pair in _pairs(op) if (read := _read(op, pair))}
    if not wide:
        return
    *arguments, _ = block.arguments
    reads = [
        wide[a][1] if a in wide else OperandRead(op.operands[a.arg_number], read_map(op, a))
        for a in arguments
    ]

    def body(scalars: Sequence[ir.Value]) -> ir.Value:
        at = dict(zip(block.arguments, scalars, strict=True))
        at |= {value: at[argument] for argument, (value, _) in wide.items()}
        return clone_scalar(yielded(op), at)

    replace(op, generic_like(op, reads, op.operands[len(op.operands) - 1], body))


def _pairs(op: ir.Operation) -> list[_Pair]:
    """The products of an element and a float scale in the body of `op`."""
    found = []
    for view in op.regions[0].blocks[0].operations:
        op = view.operation
        if op.name != "arith.mulf" or not is_product(op.results[0]):
            continue
        for first, second in (list(op.operands), reversed(list(op.operands))):
            element, scale = _widened(first), _widened(second)
            if element is None or scale is None or element == first:
                continue
            floats = (ir.F32Type, ir.BF16Type, ir.F16Type)
            if is_code(element.type) and isinstance(scale.type, floats):
                found.append(_Pair(element, scale, second))
    return found


def _widened(value: ir.Value) -> ir.Value | None:
    """The argument of a body that `value` is, or is converted to f32 from; None for others."""
    if not isinstance(value, ir.BlockArgument) and value.owner.name in (
        "arith.extf",
        "arith.sitofp",
    ):
        value = value.owner.operands[0]
    return value if isinstance(value, ir.BlockArgument) else None


def _read(op: ir.Operation, pair: _Pair) -> OperandRead | None:
    """Build the scale of a pair as a tensor of f32 by row and block, and return how to read it.

    None where the scale has this form already, or cannot get it.
    """
    kinds, ranges = iterators(op), loop_ranges(op)
    reduced = {i for i, kind in enumerate(kinds) if "reduction" in str(kind)}
    of_element, of_scale = read_map(op, pair.element), read_map(op, pair.scale)
    used = [set(loops_of([e])) for e in of_scale.results]
    along = [e for e in of_element.results if reduced.intersection(loops_of([e]))]
    if all(e in of_scale.results for e in along):
        return None  # one number per element along K: it is the other side of the contraction
    if not set().union(*used) & reduced or any(s & reduced and s - reduced for s in used):
        return None
    rows = [loop for e in of_element.results for loop in loops_of([e]) if loop not in reduced]
    blocks = [e for e, loops in zip(of_scale.results, used, strict=True) if loops & reduced]
    wanted = [ir.AffineDimExpr.get(loop) for loop in rows] + blocks
    f32 = isinstance(pair.scale.type, ir.F32Type)
    if (f32 and list(of_scale.results) == wanted) or any(ranges[loop] is None for loop in rows):
        return None
    source = op.operands[pair.scale.arg_number]
    counts = [n for n, loops in zip(shape_of(source), used, strict=True) if loops & reduced]
    if min(counts) < 0:
        return None
    sizes = [*(ranges[loop] or 0 for loop in rows), *counts]
    places = [ir.AffineConstantExpr.get(0)] * of_scale.n_dims
    for axis, loop in enumerate(rows):
        places[loop] = ir.AffineDimExpr.get(axis)
    reads, axis = [], len(rows)
    for expression, loops in zip(of_scale.results, used, strict=True):
        if loops & reduced:
            reads.append(ir.AffineDimExpr.get(axis))
            axis += 1
        else:
            reads.append(substitute(expression, places))
    with ir.InsertionPoint(op), op.location:
        # Extended before they are repeated: kernels that look through the repetition read f32.
        repeated = _repeated(extended(source), reads, sizes)
    return OperandRead(repeated, ir.AffineMap.get(of_scale.n_dims, 0, wanted))


def _repeated(source: ir.Value, reads: Sequence[ir.AffineExpr], sizes: Sequence[int]) -> ir.Value:
    """Build a tensor of `sizes` with the elements of `source` at the indices `reads`; or `source`
    itself, if it is that tensor."""
    every = [ir.AffineDimExpr.get(axis) for axis in range(len(sizes))]
    return source if list(reads) == every else read_at(source, reads, sizes)
