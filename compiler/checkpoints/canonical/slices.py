"""Parts of a weight as weights of their own: one of all experts, gate or up of both projections.

Nothing is read: a slice names the rows of the tensor that it is from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mxc.compiler.checkpoints.canonical.numbers import Numbers
from mxc.compiler.checkpoints.canonical.stored import Entries, Selected
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, StoredPart
from mxc.compiler.checkpoints.canonical.transposed import Transposed
from mxc.formats.formats import FORMATS


def entries(part: StoredPart, tensor: CanonicalTensor) -> StoredPart:
    """The part; of a vector its entries as rows."""
    if len(tensor.shape) > 1 or part.rows == tensor.shape[0]:
        return part
    return Entries(part=part, shape=part.shape, dtype=part.dtype, rows=tensor.shape[0])


def leading_slice(tensor: CanonicalTensor, index: int) -> CanonicalTensor:
    """One of the leading slices: an expert of all that are in one tensor."""
    count = tensor.shape[0]

    def selected(part: StoredPart | None) -> StoredPart | None:
        if part is None:
            return None
        rows = part.rows // count
        return Selected(
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
    """Gate (0) or up (1) of a weight, or of a bias, that is both.

    `interleaved`: their rows lie in turn, else those of the one after those of the other.
    """

    def selected(part: StoredPart | None) -> StoredPart | None:
        if part is None:
            return None
        part = entries(part, tensor)
        rows, shape = part.rows // 2, (part.shape[0] // 2, *part.shape[1:])
        first, step = (half, 2) if interleaved else (half * rows, 1)
        return Selected(part=part, first=first, step=step, shape=shape, dtype=part.dtype, rows=rows)

    return _with_parts(tensor, (tensor.shape[0] // 2, *tensor.shape[1:]), selected)


def columns_of(tensor: CanonicalTensor) -> CanonicalTensor:
    """A matrix whose rows are the columns of another; plain numbers where that is in blocks.

    Blocks lie along the rows of the other one. Float scales keep what they are for.
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
    """The plain numbers of a tensor with scales: bf16 where that has all of their digits, else f32.

    It has eight, so that elements of eight bits and fewer under a power of two are exact.
    """
    format = tensor.block_format
    dtype = "F32" if format is None or format.tensor_scale else "BF16"
    elements = Numbers(tensor=tensor, shape=tensor.shape, dtype=dtype, rows=tensor.rows)
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
