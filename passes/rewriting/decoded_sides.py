"""Rebuild decoded tensors, and decoded sides of contractions, in the usual form: a linalg.generic
that extends elements of a block format and multiplies them by their scales."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.dialects.boundary import unpack
from mxc.dialects.decoded_formats import (
    Decoding,
    decoding_of,
    halved_axis,
    halves_of,
    is_code,
    place_in_row,
)
from mxc.dialects.dequantize import extend, is_byte, iterators
from mxc.dialects.generic import constant, element_of, generic, shape_of, to_f32
from mxc.dialects.indexing import dims, indexing_maps, loop_ranges, substitute
from mxc.dialects.product import f32_operands
from mxc.dialects.scalar_nodes import Apply, FloatProduct, TensorElement, Tree, loops_of, reads
from mxc.dialects.scalar_trees import body_tree
from mxc.dialects.sizes import size_of
from mxc.passes.rewriting.codes import Codes
from mxc.passes.rewriting.rebuild import clone_scalar, discardable, replace
from mxc.passes.rewriting.split_loops import reassociation, reshape
from mxc.passes.rewriting.transposes import transposed

#: Most factors of a product that are examined: two for each side.
_MOST = 4


def decoded_tensor(decoding: Decoding, like: ir.Value) -> ir.Value:
    """Build the tensor that `decoding` describes. Its loops are the dimensions of `like`."""
    sizes = [size_of(like, axis) for axis in range(len(shape_of(like)))]
    return _decoded(decoding, list(range(len(sizes))), sizes)


def _decoded(decoding: Decoding, loops: list[int], sizes: Sequence[int | ir.Value]) -> ir.Value:
    """Build a decoded tensor with a dimension for each of `loops`, loops of the decoding, of these
    sizes."""
    format, kind = decoding.format, decoding.kind
    decoding = _in_order(_with_halves_last(decoding))
    elements = _typed(decoding.elements.value, ir.Type.parse(format.element.mlir), decoding.swapped)
    scales = _typed(decoding.scale.value, ir.Type.parse(format.scale.mlir), swapped=False)
    own = {loop: number for number, loop in enumerate(loops)}
    to = [ir.AffineDimExpr.get(own.get(loop, 0)) for loop in range(max(loops, default=0) + 1)]
    maps = [
        ir.AffineMap.get(len(loops), 0, [substitute(expression, to) for expression in at])
        for at in (place_in_row(decoding), decoding.scale.at)
    ]
    inputs = [elements, scales]
    if decoding.factor != 1.0:
        factor = ir.FloatAttr.get(ir.F32Type.get(), decoding.factor)
        of_one = ir.RankedTensorType.get([], factor.type)
        inputs.append(arith.constant(of_one, ir.DenseElementsAttr.get_splat(of_one, factor)))
        maps.append(ir.AffineMap.get(len(loops), 0, []))
    maps.append(ir.AffineMap.get_identity(len(loops)))
    parallel = [linalg.IteratorType.parallel] * len(loops)

    def body(element: ir.Value, scale: ir.Value, *rest: ir.Value) -> ir.Value:
        value = extend(element, scale)
        for factor in rest[:-1]:
            value = value * factor
        return value if kind == value.type else arith.truncf(kind, value)

    init = tensor.empty(list(sizes), kind)
    return linalg.generic(inputs, [init], maps, parallel)(body)


def _with_halves_last(decoding: Decoding) -> Decoding:
    """The decoding with bytes whose two elements are adjacent along the last dimension.

    If they are adjacent along another one, as for weights [K / 2, N], the bytes are transposed.
    """
    axis, read = halved_axis(decoding), decoding.elements
    last = len(read.at) - 1
    if axis is None or axis == last:
        return decoding
    order = [*(each for each in range(last + 1) if each != axis), axis]
    bytes_ = transposed(read.value, order)
    return dataclasses.replace(
        decoding, elements=TensorElement(bytes_, tuple(read.at[each] for each in order))
    )


def _in_order(decoding: Decoding) -> Decoding:
    """The decoding of a tensor in which adjacent elements are adjacent nibbles.

    If instead one nibble of each byte of a stretch holds the first elements, and the other nibble
    the next ones (`Halves`), the nibbles are rearranged.
    """
    halves = halves_of(decoding)
    if halves is None:
        return decoding
    value, at = decoding.elements.value, list(decoding.elements.at)
    last = len(at) - 1
    if halves.axis != last:
        value = transposed(value, [*(i for i in range(last + 1) if i != halves.axis), halves.axis])
        at.append(at.pop(halves.axis))
    whole = shape_of(value)[last]
    if whole % halves.size or halves.size % 2:
        return decoding
    if decoding.swapped:
        value = _exchanged(value)
    # Bytes [.., A * B] are elements [.., A, B, 2], and become [.., A, 2, B].
    loops = [[axis] for axis in range(last)]
    value = reshape(
        value, [*loops, [last, last + 1, last + 2]], [*(None for _ in at), halves.size, 1]
    )
    value = unpack(value, ir.Type.parse(decoding.format.element.mlir))
    value = transposed(value, [*range(last + 1), last + 2, last + 1])
    kind = ir.RankedTensorType.get([*shape_of(value)[:last], 2 * whole], element_of(value))
    groups = reassociation([*loops, [last, last + 1, last + 2]])
    elements = TensorElement(
        tensor.CollapseShapeOp(kind, value, groups).result, (*at[:last], halves.at)
    )
    return dataclasses.replace(decoding, elements=elements, second=None, swapped=False)


def _typed(value: ir.Value, kind: ir.Type, swapped: bool) -> ir.Value:
    """Reinterpret a tensor of codes as elements or scales of the type `kind`. `swapped`: whether
    the first code of a byte is in its high bits."""
    if element_of(value) == kind or is_byte(kind):
        return value
    if swapped:
        value = _exchanged(value)
    return unpack(value, kind)


def _exchanged(value: ir.Value) -> ir.Value:
    """Build a tensor of bytes with the two nibbles of each exchanged."""
    i8 = ir.IntegerType.get_signless(8)
    letters = " ".join("abcdefgh"[: len(shape_of(value))])

    def body(byte: ir.Value) -> ir.Value:
        four = constant(4, i8)
        return byte << four | byte >> four

    return generic([(value, letters)], letters, i8, body)


def decode_sides(op: ir.Operation, codes: Codes) -> list[Decoding]:
    """Rewrite a contraction whose body decodes one or both sides, so that it reads decoded tensors.
    Return the decodings.

    Returns an empty list, and changes nothing, where the body decodes no format.
    """
    factors = _factors(op)
    ranges = loop_ranges(op)
    if factors is None or not 2 <= len(factors) <= _MOST + 1:
        return []
    plain, trees = [], []
    for value in factors:
        tree = body_tree(op, value, ranges, codes.enter)
        if tree is None or not _reads_codes(tree):
            plain.append(value)
        else:
            trees.append(tree)
    if len(plain) > 1:
        return []
    for groups in _partitions(trees, 2 - len(plain)):
        found = [_side(_product(group), ranges) for group in groups]
        sides = [side for side in found if isinstance(side, Decoding)]
        if len(sides) == len(found):
            _rebuild(op, sides, plain)
            return sides
    return []


def _side(tree: Tree, ranges: list[int | None]) -> Decoding | str | None:
    """The decoding of an f32 tree, which may be extended from a narrower float. For other results
    see `decoding_of`."""
    found = decoding_of(tree, ranges)
    if isinstance(found, str) and isinstance(tree, Apply) and tree.op.name == "arith.extf":
        inner = decoding_of(tree.inputs[0], ranges)
        return inner if isinstance(inner, Decoding) else found
    return found


def _factors(op: ir.Operation) -> list[ir.Value] | None:
    """The factors of the f32 product that the body adds to the accumulator; else None."""
    block = op.regions[0].blocks[0]
    acc = block.arguments[len(block.arguments) - 1]
    added = f32_operands(list(block.operations)[-1].operands[0], "arith.addf")
    terms = [value for value in added or () if value != acc]
    if len(terms) != 1:
        return None
    found, pending = [], terms
    while pending:
        value = pending.pop(0)
        inner = f32_operands(value, "arith.mulf")
        if inner is None:
            found.append(value)
        else:
            pending = [*inner, *pending]
    return found


def _reads_codes(tree: Tree) -> bool:
    """Whether all reads of a tree, at least one, are codes."""
    found = list(reads(tree))
    return bool(found) and all(is_code(each.type) for each in found)


def _product(trees: Sequence[Tree]) -> Tree:
    """The product of f32 trees."""
    first, *rest = trees
    for tree in rest:
        first = FloatProduct(first, tree)
    return first


def _partitions(trees: Sequence[Tree], count: int) -> Iterator[list[list[Tree]]]:
    """Yield all ways to split trees into `count` groups, none of them empty."""
    if count == 1 or not trees:
        if bool(trees) == (count == 1):
            yield [list(trees)]
        return
    for mask in range(1 << (len(trees) - 1)):
        first = [tree for i, tree in enumerate(trees) if i == 0 or mask >> (i - 1) & 1]
        second = [tree for tree in trees if not any(tree is each for each in first)]
        if second:
            yield [first, second]


def _rebuild(op: ir.Operation, sides: Sequence[Decoding], plain: Sequence[ir.Value]) -> None:
    """Replace `op` by a contraction of the decoded tensors `sides` and the factors `plain`, at most
    one, which are cloned from the body."""
    block, maps = op.regions[0].blocks[0], indexing_maps(op)
    arguments = list(block.arguments)[:-1]
    kept = [number for number, argument in enumerate(arguments) if _depends(plain, argument)]
    with ir.InsertionPoint(op), op.location:
        values, affine = [op.operands[i] for i in kept], [maps[i] for i in kept]
        for side in sides:
            loops = loops_of([*place_in_row(side), *side.scale.at])
            values.append(_decoded(side, loops, [_extent(op, loop) for loop in loops]))
            reads = [ir.AffineDimExpr.get(loop) for loop in loops]
            affine.append(ir.AffineMap.get(maps[-1].n_dims, 0, reads))
        init = op.operands[len(op.operands) - 1]
        new = linalg.GenericOp(
            [init.type],
            values,
            [init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(each) for each in (*affine, maps[-1])]),
            ir.ArrayAttr.get(iterators(op)),
        )
        body = new.regions[0].blocks.append(*(element_of(value) for value in (*values, init)))
    for name in discardable(op):
        new.attributes[name] = op.attributes[name]
    with ir.InsertionPoint(body), op.location:
        *inner, total = body.arguments
        at = {arguments[i]: argument for i, argument in zip(kept, inner, strict=False)}
        factors = [clone_scalar(value, at) for value in plain]
        factors += map(to_f32, inner[len(kept) :])
        linalg.YieldOp([total + arith.mulf(*factors)])
    replace(op, new.results[0])


def _depends(values: Sequence[ir.Value], on: ir.Value) -> bool:
    """Whether any of the scalars `values` of a body is computed from `on`."""
    pending = list(values)
    while pending:
        value = pending.pop()
        if value == on:
            return True
        if not isinstance(value, ir.BlockArgument):
            pending += value.owner.operands
    return False


def _extent(op: ir.Operation, loop: int) -> int | ir.Value:
    """The number of iterations of a loop, from an operand that it indexes."""
    for value, affine in zip(op.operands, indexing_maps(op), strict=True):
        if loop in (places := dims(affine)):
            return size_of(value, places.index(loop))
    raise AssertionError(f"no operand of {op.name} has loop {loop}")
