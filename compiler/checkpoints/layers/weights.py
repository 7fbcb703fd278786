"""Builds weights from the tensors of a layer: MX, nvfp4, fp8 and integers with their scales."""

from __future__ import annotations

import math
from dataclasses import replace

from mxc.compiler.checkpoints.canonical.codecs import PLAIN, packed_integers, tiles
from mxc.compiler.checkpoints.canonical.stored import FileTensor, count_rows
from mxc.compiler.checkpoints.canonical.tensor import (
    CanonicalTensor,
    Convention,
    TensorScale,
    blocked,
)
from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.compiler.checkpoints.layers.modules import matrix, require
from mxc.compiler.checkpoints.layers.quantization import Scheme
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS, BlockFormat

#: Dtypes of E8M0 scales in files.
E8M0_DTYPES = ("U8", "F8_E8M0")

#: Dtypes of elements in files, by format: 8-bit elements have their own, packed ones are bytes.
_ELEMENTS = {
    "e4m3": ("F8_E4M3", "U8"),
    "e5m2": ("F8_E5M2", "U8"),
    "int8": ("I8", "U8"),
}
_PACKED = ("U8", "I8")

#: Dtypes of float scales.
_FLOAT_SCALES = ("F32", "BF16", "F16")


def logical_shape(record: TensorRecord, format: BlockFormat) -> tuple[int, ...]:
    """Return [.., out, in] for packed elements [.., out, bytes]. CheckpointError for partial
    blocks."""
    *lead, last = matrix(record, format.name)
    bits = last * 8
    if bits % (format.element.bits * format.block):
        raise CheckpointError(
            f"{record.file}: tensor {record.name} is {record.describe()}; {format} wants rows of "
            f"whole blocks of {format.block_bytes} bytes; fetch the file again, or the config that "
            "belongs to it"
        )
    return (*lead, bits // format.element.bits)


def mx_weight(
    name: str,
    elements: TensorRecord,
    scales: TensorRecord,
    scheme: Scheme,
    input_scale: TensorRecord | None = None,
) -> CanonicalTensor:
    """Return a weight in an MX format: elements [out, bytes], E8M0 scales [out, in / 32].

    Raises CheckpointError for other dtypes or shapes.
    """
    format = FORMATS[scheme.format]
    require(elements, _ELEMENTS.get(format.element.name, _PACKED), None, scheme.format)
    shape = logical_shape(elements, format)
    blocks = (*shape[:-1], shape[-1] // format.block)
    require(scales, E8M0_DTYPES, blocks, f"{scheme.format} of {list(shape)}")
    return blocked(
        name,
        shape,
        format,
        elements,
        scales,
        recipe=scheme.recipe,
        stated_in=scheme.stated_in,
        input_scale=None if input_scale is None else scalar(input_scale),
    )


def nvfp4_weight(
    name: str,
    elements: TensorRecord,
    scales: TensorRecord,
    tensor_scale: TensorRecord,
    convention: Convention,
    scheme: Scheme,
    input_scale: TensorRecord | None = None,
) -> CanonicalTensor:
    """Return a weight in nvfp4: elements [out, in / 2], E4M3 scales [out, in / 16], one float
    scale.

    If the scheme has a larger block, a multiple of 16, its scale is repeated for each 16 elements.
    Raises CheckpointError for other dtypes or shapes.
    """
    format = FORMATS["nvfp4"]
    require(elements, _PACKED, None, "nvfp4")
    shape, (_, size) = logical_shape(elements, format), scheme.block or (1, format.block)
    require(scales, ("F8_E4M3",), (*shape[:-1], -(-shape[-1] // size)), f"nvfp4 {list(shape)}")
    return blocked(
        name,
        shape,
        format,
        elements,
        scales,
        scale_codec=PLAIN if size == format.block else tiles(1, size // format.block),
        tensor_scale=scalar(tensor_scale, convention),
        stated_in=scheme.stated_in,
        input_scale=None if input_scale is None else scalar(input_scale, convention),
    )


def scalar(record: TensorRecord, convention: Convention = Convention.MULTIPLY) -> TensorScale:
    """Return the scale of a whole tensor. Raises CheckpointError unless it is one float."""
    if record.dtype not in _FLOAT_SCALES or math.prod(record.shape) != 1:
        raise CheckpointError(
            f"{record.file}: tensor {record.name} is {record.describe()}; a tensor scale is one "
            f"number in {' or '.join(_FLOAT_SCALES)}; fetch the file again"
        )
    return TensorScale(record=record, convention=convention)


def scaled_weight(
    name: str,
    elements: TensorRecord,
    scales: TensorRecord,
    scheme: Scheme,
    input_scale: TensorRecord | None = None,
) -> CanonicalTensor:
    """Return a weight [out, in] of fp8 or int8, one element per byte, with scales by their shape.

    One scale is that of the tensor; [out, 1] or [out] are scales of rows; if the scheme has blocks,
    scales of tiles. E8M0 scales of tiles whose width is a multiple of the MX block make an MX
    format, without changing a value. Raises CheckpointError for other dtypes and shapes.
    """
    require(elements, ("F8_E4M3", "F8_E5M2", "I8"), None, scheme.format)
    out, width = matrix(elements, scheme.format)[-2:]
    lead = elements.shape[:-2]
    static = None if input_scale is None else scalar(input_scale)
    block = scheme.block
    if block is None and math.prod(scales.shape) == 1:
        return _unblocked(name, elements, scalar(scales), scheme, static)
    if block is None:
        block = (1, width)
    tile = (*lead, -(-out // block[0]), -(-width // block[1]))
    if _without_ones(scales.shape) == _without_ones(tile):
        scales = replace(scales, shape=tile)
    if scales.shape not in (tile, tile[:-1] if block[1] == width else tile):
        require(scales, (*_FLOAT_SCALES, *E8M0_DTYPES), tile, f"tiles of {list(block)}")
    element = {"F8_E4M3": "mxfp8e4m3", "F8_E5M2": "mxfp8e5m2"}.get(elements.dtype)
    if scales.dtype in E8M0_DTYPES and element is not None:
        format = FORMATS[element]
        if block[1] % format.block == 0 and width % format.block == 0 and not lead:
            return blocked(
                name,
                elements.shape,
                format,
                elements,
                scales,
                scale_codec=tiles(block[0], block[1] // format.block),
                recipe=scheme.recipe,
                stated_in=scheme.stated_in,
                input_scale=static,
            )
    dtype = "F8_E8M0" if scales.dtype in E8M0_DTYPES else scales.dtype
    require(scales, (*_FLOAT_SCALES, *E8M0_DTYPES), None, f"tiles of {list(block)}")
    return CanonicalTensor(
        name=name,
        shape=elements.shape,
        format=elements.dtype.lower(),
        elements=_direct(elements),
        scales=FileTensor(record=scales, shape=tile, dtype=dtype, rows=count_rows(tile)),
        block=block,
        recipe=scheme.recipe,
        stated_in=scheme.stated_in,
        input_scale=static,
    )


def integer_weight(
    name: str,
    elements: TensorRecord,
    scales: TensorRecord,
    shape: tuple[int, ...],
    scheme: Scheme,
) -> CanonicalTensor:
    """Return a weight [out, in] of integers in `scheme.format`, packed into int32 [out, words].

    There is a float scale per block of the scheme, or per row without blocks. Raises
    CheckpointError for other dtypes and shapes.
    """
    bits = {"int4": 4, "i8": 8}[scheme.format]
    *lead, width = shape
    _, size = scheme.block or (1, width)
    why = f"{scheme.format} {list(shape)} in groups of {size}"
    require(elements, ("I32",), (*lead, -(-width * bits // 32)), why)
    groups = (*lead, -(-width // size))
    if scales.shape != groups[:-1] or scheme.block is not None:
        require(scales, _FLOAT_SCALES, groups, why)
    return CanonicalTensor(
        name=name,
        shape=shape,
        format=scheme.format,
        elements=FileTensor(
            record=elements,
            shape=shape,
            dtype="I8",
            rows=count_rows(shape),
            codec=packed_integers(bits),
        ),
        scales=FileTensor(record=scales, shape=groups, dtype=scales.dtype, rows=count_rows(groups)),
        block=(1, size),
        recipe=scheme.recipe,
        stated_in=scheme.stated_in,
    )


def _unblocked(
    name: str,
    elements: TensorRecord,
    tensor_scale: TensorScale,
    scheme: Scheme,
    input_scale: TensorScale | None,
) -> CanonicalTensor:
    return CanonicalTensor(
        name=name,
        shape=elements.shape,
        format=elements.dtype.lower(),
        elements=_direct(elements),
        tensor_scale=tensor_scale,
        recipe=scheme.recipe,
        stated_in=scheme.stated_in,
        input_scale=input_scale,
    )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _direct(record: TensorRecord) -> FileTensor:
    return FileTensor(
        record=record,
        shape=record.shape,
        dtype=record.dtype,
        rows=count_rows(record.shape),
        codec=PLAIN,
    )
