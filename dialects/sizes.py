"""Dynamic sizes of tensors, traced to the tensors that they come from.

A `tensor.dim` of a computed tensor would be one more use of it, and passes that replace operations
would find the tensor used twice. A size is therefore taken from an argument of the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import arith, flow, tensor

from mxc.dialects import named_operations

#: A number, or an index value if dynamic.
Size: TypeAlias = int | ir.Value

#: Operations that give a tensor another shape, and move nothing.
RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")
#: Operations whose result has the shape of an operand: the number of that operand.
_UPDATES = {"tensor.insert_slice": 1, "iree_linalg_ext.scatter": 2, "iree_linalg_ext.gather": 2}


def shape_of(value: ir.Value) -> list[int]:
    """Static sizes of a ranked tensor; a negative entry is dynamic."""
    return list(ir.RankedTensorType(value.type).shape)


def axes_of(value: ir.Value) -> str:
    """A name for each axis of a tensor, "d0 d1 d2", as subscripts of `generic`."""
    return " ".join(f"d{axis}" for axis in range(len(shape_of(value))))


def element_of(value: ir.Value) -> ir.Type:
    """Element type of a ranked tensor."""
    return ir.RankedTensorType(value.type).element_type


def i32() -> ir.Type:
    """The i32 type."""
    return ir.IntegerType.get_signless(32)


def constant(value: float | int, kind: ir.Type) -> ir.Value:
    """A constant of a scalar type, or of a vector type with this value in every element.

    The attribute is built here, because `arith.constant` finds by a failed C++ cast that 0 is not a
    float, which takes half a second.
    """
    is_vector = isinstance(kind, ir.VectorType)
    element = ir.VectorType(kind).element_type if is_vector else kind
    attribute: ir.Attribute
    if isinstance(element, ir.FloatType):
        attribute = ir.FloatAttr.get(element, float(value))
    else:
        attribute = ir.IntegerAttr.get(element, int(value))
    if is_vector:
        attribute = ir.DenseElementsAttr.get_splat(kind, attribute)
    return arith.ConstantOp(kind, attribute).result


#: Operations whose last operands are the dynamic sizes of their result.
_STATED = (
    "tensor.empty",
    "tensor.expand_shape",
    "flow.tensor.bitcast",
    "flow.tensor.reshape",
    "flow.tensor.transfer",
)


def size_of(value: ir.Value, axis: int) -> Size:
    """The size of a tensor along `axis`."""
    shape = shape_of(value)
    if shape[axis] >= 0:
        return shape[axis]
    if isinstance(value, ir.BlockArgument):
        return _size_of_argument(value, axis)
    op, place = value.owner, ir.OpResult(value).result_number
    operands = list(op.operands)
    before = sum(size < 0 for size in shape[:axis])
    if op.name.startswith("linalg."):
        return size_of(operands[len(operands) - len(op.results) + place], axis)
    if op.name in _UPDATES:
        return size_of(operands[_UPDATES[op.name]], axis)
    if op.name == "tensor.pad" and not any(
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{side}"]))[axis]
        for side in ("low", "high")
    ):
        return size_of(operands[0], axis)
    if op.name == "iree_linalg_ext.topk_v2":
        return size_of(operands[1 + place], axis)
    if op.name in _STATED:
        sizes = operands[-sum(size < 0 for size in shape) :]
        return sizes[before]
    if op.name == "flow.dispatch":
        earlier = sum(size < 0 for each in list(op.results)[:place] for size in shape_of(each))
        return segments(op)[-1][earlier + before]
    if op.name == "tensor.collapse_shape":
        groups = [[int(one) for one in group] for group in op.attributes["reassociation"]]
        return product([size_of(operands[0], each) for each in groups[axis]])
    if op.name == "tensor.extract_slice":
        source, _, sizes, _ = segments(op)
        static = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
        kept = kept_axes(static, shape)
        dynamic = sum(size < 0 for size in static[: kept[axis]])
        return sizes[dynamic] if static[kept[axis]] < 0 else size_of(source[0], kept[axis])
    if op.name == "util.call":
        found = named_operations.size_of_result(op, place, axis)
        if found is not None:
            return size_of(operands[found[0]], found[1])
    return tensor.dim(value, constant(axis, ir.IndexType.get()))


def as_long_as(value: ir.Value, other: ir.Value) -> ir.Value:
    """Reshape a vector so that its dynamic size is the value that `other` has; both are as long."""
    sizes = [dynamic_sizes(each) for each in (value, other)]
    return flow.TensorReshapeOp(value.type, value, *sizes).result


def sizes_of(value: ir.Value) -> list[Size]:
    """The sizes of a tensor along all of its axes."""
    return [size_of(value, axis) for axis in range(len(shape_of(value)))]


def dynamic_sizes(value: ir.Value) -> list[ir.Value]:
    """The sizes that are dynamic in the type of a tensor, in order."""
    return [size for size in sizes_of(value) if not isinstance(size, int)]


def product(sizes: Sequence[Size]) -> Size:
    """The product of sizes."""
    number = 1
    found: ir.Value | None = None
    for size in sizes:
        if isinstance(size, int):
            number *= size
        else:
            found = size if found is None else arith.muli(found, size)
    if found is None:
        return number
    return found if number == 1 else arith.muli(found, constant(number, ir.IndexType.get()))


def quotient(size: Size, by: int) -> Size:
    """size / by, where size is a multiple of `by`."""
    if isinstance(size, int):
        return size // by
    return size if by == 1 else arith.divui(size, constant(by, ir.IndexType.get()))


def value_of(size: Size) -> ir.Value:
    """A size as an index value."""
    return constant(size, ir.IndexType.get()) if isinstance(size, int) else size


def split(sizes: Sequence[Size]) -> tuple[list[int], list[ir.Value]]:
    """The sizes for a tensor type, with dynamic ones marked as such, and the values of these."""
    dynamic = ir.ShapedType.get_dynamic_size()
    given = [size for size in sizes if not isinstance(size, int)]
    return [size if isinstance(size, int) else dynamic for size in sizes], given


def split_dimension(value: ir.Value, axis: int, size: int) -> ir.Value:
    """Split a dimension of known size into two, the inner one of `size`. A negative `axis` counts
    from the end. Raises ValueError where it holds no such blocks."""
    kind = ir.RankedTensorType(value.type)
    axis %= kind.rank
    shape = sizes_of(value)
    whole = kind.shape[axis]
    if whole < 0 or whole % size:
        raise ValueError(f"dimension {axis} of {value.type} holds no blocks of {size}")
    groups = [[at + (at > axis)] for at in range(kind.rank)]
    groups[axis].append(axis + 1)
    static, dynamic = split([*shape[:axis], whole // size, size, *shape[axis + 1 :]])
    made = ir.RankedTensorType.get(static, kind.element_type)
    return tensor.expand_shape(made, value, groups, dynamic, static)


def _size_of_argument(value: ir.BlockArgument, axis: int) -> ir.Value:
    """A `tensor.dim` of an argument at the start of its block; later calls reuse it."""
    block = value.owner
    for each in block.operations:
        op = each.operation
        if op.name == "tensor.dim" and op.operands[0] == value:
            number = op.operands[1].owner
            if ir.IntegerAttr(number.attributes["value"]).value == axis:
                return op.result
        elif op.name not in ("arith.constant", "tensor.dim"):
            break
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
        return tensor.dim(value, constant(axis, ir.IndexType.get()))


def segments(op: ir.Operation) -> list[list[ir.Value]]:
    """The operands of an operation in the groups of its definition, such as offsets and sizes."""
    counts = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    operands, found = iter(op.operands), []
    for count in counts:
        found.append([next(operands) for _ in range(count)])
    return found


def kept_axes(static: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The axes of a slice that its result keeps; axes of size one may be dropped."""
    dropped = len(static) - len(shape)
    kept: list[int] = []
    for axis, size in enumerate(static):
        if dropped and size == 1 and (len(kept) == len(shape) or shape[len(kept)] != 1):
            dropped -= 1
            continue
        kept.append(axis)
    return kept
