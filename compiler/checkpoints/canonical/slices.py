"""Parts of a weight as weights of their own: one expert of all, gate or up of both projections.

Nothing is read: a slice refers to rows of the tensor that it is taken from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mxc.compiler.checkpoints.canonical.numbers import MatrixValues
from mxc.compiler.checkpoints.canonical.stored import RegroupedRows, SelectedRows
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, StoredPart
from mxc.compiler.checkpoints.canonical.transposed import Transposed
from mxc.formats.formats import FORMATS


def entries(part: StoredPart, tensor: CanonicalTensor) -> StoredPart:
    """Return the part; for a vector stored as one row, with one row per entry."""
    if len(tensor.shape) > 1 or part.rows == tensor.shape[0]:
        return part
    return RegroupedRows(part=part, shape=part.shape, dtype=part.dtype, rows=tensor.shape[0])


def leading_slice(tensor: CanonicalTensor, index: int) -> CanonicalTensor:
    """Return one of the leading slices: one expert of a tensor of all experts."""
    count = tensor.shape[0]

    def selected(part: StoredPart | None) -> StoredPart | None:
        if part is None:
            return None
        rows = part.rows // count
        return SelectedRows(
            part=part, first=index * rows, step=1, shape=part.shape[1:], dtype=part.dtype, rows=rows
        )

    found = _with_parts(tensor, tensor.shape[1:], selected)
    factor, static = tensor.tensor_scale, tensor.input_scale
    return replace(
        found,
        tensor_scale=None if factor is None else factor.of_slice(index, count),
        input_scale=None if static is None else static.of_slice(index, count),
    )


def half_of(tensor: CanonicalTensor, half: int, interleaved: bool) -> CanonicalTensor:
    """Return gate (`half` 0) or up (1) of a weight or bias that holds both.

    `interleaved`: their rows alternate; otherwise all rows of gate precede those of up.
    """

    def selected(part: StoredPart | None) -> StoredPart | None:
        if part is None:
            return None
        part = entries(part, tensor)
        rows, shape = part.rows // 2, (part.shape[0] // 2, *part.shape[1:])
        first, step = (half, 2) if interleaved else (half * rows, 1)
        return SelectedRows(
            part=part, first=first, step=step, shape=shape, dtype=part.dtype, rows=rows
        )

    return _with_parts(tensor, (tensor.shape[0] // 2, *tensor.shape[1:]), selected)


def columns_of(tensor: CanonicalTensor) -> CanonicalTensor:
    """Return the transposed matrix; a tensor in blocks becomes plain numbers first.

    Blocks along the rows would become blocks along the columns, which products cannot use. Float
    scales are kept, and their tiles are transposed.
    """
    if tensor.format in FORMATS or tensor.format == "int4":
        tensor = numbers_of(tensor)
    height, width = tensor.shape

    def turned(part: StoredPart | None) -> StoredPart | None:
        if part is None:
            return None
        columns, rows = part.shape
        return Transposed(
            part=part, shape=(rows, columns), dtype=part.dtype, rows=rows, outputs=rows
        )

    block = tensor.block
    found = _with_parts(tensor, (width, height), turned)
    return replace(found, block=None if block is None else (block[1], block[0]))


def numbers_of(tensor: CanonicalTensor) -> CanonicalTensor:
    """Return the values of a tensor with scales as a plain tensor: bf16 if that is exact, else f32.

    bf16 has eight significant bits, so elements of up to eight bits under power-of-two scales are
    exact.
    """
    format = tensor.block_format
    dtype = "F32" if format is None or format.tensor_scale else "BF16"
    elements = MatrixValues(tensor=tensor, shape=tensor.shape, dtype=dtype, rows=tensor.rows)
    return replace(
        tensor,
        format=dtype.lower(),
        elements=elements,
        scales=None,
        block=None,
        tensor_scale=None,
    )


def _with_parts(
    tensor: CanonicalTensor,
    shape: tuple[int, ...],
    of: Callable[[StoredPart | None], StoredPart | None],
) -> CanonicalTensor:
    elements = of(tensor.elements)
    if elements is None:
        raise AssertionError(f"{tensor.name} has no elements")
    return replace(tensor, shape=shape, elements=elements, scales=of(tensor.scales))
