"""Pack codes of elements to bytes, unpack them, and decode packed bytes to numbers without scales.

Along the last axis of every array here:
    4-bit  two codes per byte, the even index in the low nibble;
    6-bit  four codes in three bytes, little endian: code i at bits 6i .. 6i+5;
    8-bit  one code per byte.
These are the layouts of gpt-oss, Quark, compressed-tensors and torchao. Readers of sources with
another order (GGUF splits a block into halves) convert to this one.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mxc.errors import FormatError
from mxc.formats.formats import BlockFormat, block_format

Bytes = npt.NDArray[np.uint8]


def _require_bytes(array: npt.NDArray[np.generic], what: str) -> None:
    if array.dtype != np.uint8 or array.ndim == 0:
        raise FormatError(
            f"{what} must be uint8 with at least one axis, found {array.dtype} "
            f"{list(array.shape)}; view the bytes as uint8 without converting their values"
        )


def _require_groups(length: int, group: int, what: str, format: BlockFormat) -> None:
    if length % group:
        raise FormatError(
            f"{what} of {format} come in groups of {group}, found a last axis of {length}; "
            "pack whole blocks"
        )


def pack_elements(codes: Bytes, format: BlockFormat | str) -> Bytes:
    """Pack codes, uint8 [..., n] -> uint8 [..., n * bits / 8].

    Bits above the element's width must be zero. Raises FormatError where n codes do not fill whole
    bytes, or where a code is too wide.
    """
    format = block_format(format)
    bits = format.element.bits
    _require_bytes(codes, "codes")
    group = math.lcm(bits, 8) // bits
    _require_groups(codes.shape[-1], group, "codes", format)
    if codes.size and int(codes.max()) >> bits:
        raise FormatError(
            f"codes of {format} have {bits} bits, found {int(codes.max()):#04x}; "
            "unpack the elements before packing them"
        )
    return _pack(codes, bits)


def _pack(codes: Bytes, bits: int) -> Bytes:
    if bits == 8:
        return codes
    if bits == 4:
        return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)
    packed = np.empty((*codes.shape[:-1], codes.shape[-1] // 4, 3), np.uint8)
    a, b, c, d = (codes[..., i::4] for i in range(4))
    # uint8 shifts drop the high bits, which belong to the next byte.
    packed[..., 0] = a | b << np.uint8(6)
    packed[..., 1] = b >> np.uint8(2) | c << np.uint8(4)
    packed[..., 2] = c >> np.uint8(4) | d << np.uint8(2)
    return packed.reshape(*codes.shape[:-1], -1)


def unpack_elements(packed: Bytes, format: BlockFormat | str) -> Bytes:
    """Unpack bytes, uint8 [..., m] -> one code per byte, uint8 [..., m * 8 / bits].

    Raises FormatError where the bytes do not hold a whole number of groups.
    """
    format = block_format(format)
    bits = format.element.bits
    _require_bytes(packed, "packed elements")
    _require_groups(packed.shape[-1], math.lcm(bits, 8) // 8, "bytes", format)
    if bits == 8:
        return packed
    lead = packed.shape[:-1]
    codes = np.empty((*lead, packed.shape[-1] * 8 // bits), np.uint8)
    if bits == 4:
        codes[..., 0::2] = packed & np.uint8(0x0F)
        codes[..., 1::2] = packed >> np.uint8(4)
        return codes
    a, b, c = (packed[..., i::3] for i in range(3))
    codes[..., 0::4] = a & np.uint8(0x3F)
    codes[..., 1::4] = a >> np.uint8(6) | (b & np.uint8(0x0F)) << np.uint8(2)
    codes[..., 2::4] = b >> np.uint8(4) | (c & np.uint8(0x03)) << np.uint8(4)
    codes[..., 3::4] = c >> np.uint8(2)
    return codes


def decode_elements(packed: Bytes, format: BlockFormat | str) -> npt.NDArray[np.float32]:
    """Values of packed elements without their scales: uint8 [..., m] -> float32 [..., n].

    Exact. NaN and Inf codes (mxfp8) decode to NaN and Inf. Raises FormatError as `unpack_elements`.
    """
    format = block_format(format)
    return format.element.values.take(unpack_elements(packed, format))


def decode_scales(scales: Bytes, format: BlockFormat | str) -> npt.NDArray[np.float32]:
    """Values of scale bytes, uint8 [...] -> float32 [...] of the same shape; exact.

    E8M0: 0x00 is 2^-127, a float32 subnormal; 0xFF is NaN. nvfp4: E4M3, without the tensor scale.
    """
    format = block_format(format)
    _require_bytes(scales, "scales")
    return format.scale.values.take(scales)
