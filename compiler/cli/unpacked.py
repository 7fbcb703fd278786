"""`mxc run --unpack RESULT=FORMAT[:SCALES]`: results of packed elements as float32.

Packed elements cross the boundary of a program as i8, with two codes of mxfp4 per byte. numpy has
no type for them, so such a result is decoded, and multiplied by the scales in another result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mxc.errors import RequestError
from mxc.formats.formats import BlockFormat, block_format
from mxc.formats.packing import decode_elements, decode_scales

Array = npt.NDArray[Any]

_REQUEST = re.compile(r"(\d{1,4})=([\w-]+)(?::(\d{1,4}))?")


def unpacked(results: Sequence[Array], requests: Sequence[str]) -> list[Array]:
    """Return `results` with those named in `requests` decoded to float32.

    "0=mxfp4" decodes the elements of result 0 without scales; "0=mxfp4:1" multiplies them by the
    scales in result 1. A tensor scale of nvfp4 is not applied, because no result holds one. Raises
    RequestError for a malformed request, or results that do not fit its format, FormatError for an
    unknown format.
    """
    found = list(results)
    for request in requests:
        match = _REQUEST.fullmatch(request)
        if match is None:
            raise RequestError(
                f"--unpack {request}: wants RESULT=FORMAT or RESULT=FORMAT:SCALES, as 0=mxfp4:1"
            )
        format, index = block_format(match[2]), int(match[1])
        values = decode_elements(_bytes(results, index, request), format)
        if match[3] is not None:
            scales = decode_scales(_bytes(results, int(match[3]), request), format)
            values = _scaled(values, scales, format, request)
        found[index] = values
    return found


def _bytes(results: Sequence[Array], index: int, request: str) -> npt.NDArray[np.uint8]:
    if index >= len(results):
        raise RequestError(
            f"--unpack {request}: there is no result {index}; the function has {len(results)}"
        )
    result = results[index]
    if result.dtype.itemsize != 1 or not result.ndim:
        raise RequestError(
            f"--unpack {request}: packed elements and scales are of one byte, found result {index} "
            f"of {result.dtype} {list(result.shape)}"
        )
    return result.view(np.uint8)


def _scaled(
    values: npt.NDArray[np.float32],
    scales: npt.NDArray[np.float32],
    format: BlockFormat,
    request: str,
) -> npt.NDArray[np.float32]:
    """Multiply elements [.., K], or [.., K / block, block], by scales [.., K / block]."""
    lead, last = values.shape[:-1], values.shape[-1]
    wanted = (
        lead
        if last == format.block and len(scales.shape) == len(lead)
        else (*lead, format.blocks(last))
    )
    if scales.shape != wanted:
        raise RequestError(
            f"--unpack {request}: {format} elements {list(values.shape)} want scales "
            f"{list(wanted)}, found {list(scales.shape)}"
        )
    blocks = values.reshape(*scales.shape, format.block)
    with np.errstate(over="ignore", invalid="ignore"):
        product: npt.NDArray[np.float32] = blocks * scales[..., None]
    return product.reshape(values.shape)
