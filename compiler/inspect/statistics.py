"""Statistics of a tensor: first values, scales, and counts of NaN and saturated elements.

Counted in pieces: a tensor of any size needs a few MiB of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.tensor import UNSTATED, CanonicalTensor, Convention
from mxc.compiler.checkpoints.files.tensors import DTYPES, read_bytes
from mxc.compiler.inspect.infer_recipe import RecipeInference
from mxc.formats.formats import BlockFormat
from mxc.formats.packing import unpack_elements

#: Number of bytes of elements processed at a time.
_CHUNK = 1 << 20

#: Number of values of a tensor that are shown: one block.
_SHOWN = 32

#: Number of blocks from which a recipe is inferred when a whole checkpoint is listed.
_SAMPLE_BLOCKS = 512


def recipe_of(tensor: CanonicalTensor, inference: RecipeInference | None = None) -> dict[str, Any]:
    """Return `recipe`, its source, and the number of blocks that it was inferred from.

    `recipe_source` is "declared", "inferred" or "unstated", None for tensors without E8M0 scales.
    Without `inference` the first few hundred blocks are used.
    """
    format = tensor.block_format
    if format is None or format.tensor_scale:
        return {"recipe": None, "recipe_source": None}
    if tensor.recipe != UNSTATED:
        return {"recipe": tensor.recipe, "recipe_source": "declared"}
    if inference is None:
        inference = RecipeInference(tensor)
        each = max(1, tensor.shape[-1] // format.block)
        rows = min(tensor.rows, max(1, _SAMPLE_BLOCKS // each))
        inference.look(tensor.piece(0, rows))
    found = inference.recipes()
    if not found:
        return {"recipe": UNSTATED, "recipe_source": UNSTATED}
    return {
        "recipe": " or ".join(found),
        "recipe_source": "inferred",
        "inferred_from_blocks": inference.blocks,
    }


def statistics(tensor: CanonicalTensor) -> dict[str, Any]:
    """Return counts over the whole tensor; the result can be written as JSON.

    It has `elements` and the `first` values; for plain tensors `nan`, `infinite`, `min`, `max`; for
    weights in blocks `scales`, `scale_exponents` (power of two -> blocks), `nan_scales`, the number
    of `zero`, `saturated` and `nan` elements, and the recipe as in `recipe_of`. Raises
    CheckpointError for a truncated file.
    """
    first: list[Any] = []
    if tensor.is_plain:
        # A vector is one row, however long.
        some = min(_SHOWN * DTYPES[tensor.dtype].itemsize, tensor.elements.bytes)
        flat = tensor.elements.reader(read_bytes)(0, some).view(DTYPES[tensor.dtype])
        first = [_number(x) for x in flat.astype(np.float64).tolist()]
    elif tensor.rows and tensor.shape[-1]:
        first = [_number(x) for x in tensor.values(0, 1).reshape(-1)[:_SHOWN].tolist()]
    found = {"elements": math.prod(tensor.shape), "first": first}
    if tensor.tensor_scale is not None:
        values = tensor.tensor_scale.read()
        divides = tensor.tensor_scale.convention is Convention.DIVIDE
        found["tensor_scale_divides" if divides else "tensor_scale"] = (
            _number(float(values[0])) if values.size == 1 else [_number(x) for x in values.tolist()]
        )
    format = tensor.block_format
    if format is None:
        return found | _plain(tensor)
    return found | _blocks(tensor, format)


def _plain(tensor: CanonicalTensor) -> dict[str, Any]:
    nan = infinite = 0
    low, high = math.inf, -math.inf
    for numbers in _numbers(tensor):
        finite = numbers[np.isfinite(numbers)]
        nan += int(np.isnan(numbers).sum())
        infinite += int(np.isinf(numbers).sum())
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    spread = {"min": low, "max": high} if low <= high else {"min": None, "max": None}
    return {"nan": nan, "infinite": infinite, **spread}


def _numbers(tensor: CanonicalTensor) -> Iterator[NDArray[np.float64]]:
    """Yield all values in pieces, as float64, which is exact except for large 64-bit integers."""
    if tensor.scales is not None or tensor.tensor_scale is not None:
        for piece in tensor.pieces(_CHUNK // 4):
            yield tensor.decode(piece).astype(np.float64)
        return
    read, whole = tensor.elements.reader(read_bytes), tensor.elements.bytes
    for start in range(0, whole, _CHUNK):
        raw = read(start, min(_CHUNK, whole - start))
        yield raw.view(DTYPES[tensor.dtype]).astype(np.float64)


def _blocks(tensor: CanonicalTensor, format: BlockFormat) -> dict[str, Any]:
    element = format.element
    codes, scales = np.zeros(1 << element.bits, np.int64), np.zeros(256, np.int64)
    inference = RecipeInference(tensor)
    for piece in tensor.pieces(_CHUNK):
        codes += np.bincount(unpack_elements(piece.elements, format).reshape(-1),
                             minlength=codes.size)  # fmt: skip
        if piece.scales is not None:
            scales += np.bincount(piece.scales.reshape(-1), minlength=256)
        inference.look(piece)
    exponents: dict[str, int] = {}
    nan = 0
    for count, value in zip(scales.tolist(), format.scale.values.tolist(), strict=True):
        if count and math.isnan(value):
            nan += count
        elif count:
            # The scale 0 of nvfp4 has no exponent.
            key = str(math.frexp(value)[1] - 1) if value else "zero"
            exponents[key] = exponents.get(key, 0) + count
    magnitude = np.abs(element.values)
    return {
        "scales": int(scales.sum()),
        "scale_exponents": exponents,
        "nan_scales": nan,
        "zero": _count(codes, magnitude == 0),
        "saturated": _count(codes, magnitude == element.max),
        "nan": _count(codes, np.isnan(magnitude)),
        **recipe_of(tensor, inference),
    }


def _count(codes: NDArray[np.int64], where: NDArray[np.bool_]) -> int:
    return int(codes[where].sum())


def _number(value: float) -> float | str:
    # JSON cannot express these numbers.
    return value if math.isfinite(value) else str(value)
