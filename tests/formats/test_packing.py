"""Packed bytes against Python's integers and torchao, and the refusals."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchao.prototype.mx_formats.kernels import pack_uint4

from mxc.errors import FormatError
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.formats.packing import (
    decode_elements,
    decode_scales,
    pack_elements,
    unpack_elements,
)


def random_codes(format: BlockFormat, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << format.element.bits, shape).astype(np.uint8)


@pytest.mark.parametrize("format", FORMATS.values(), ids=str)
def test_packed_bytes_are_one_little_endian_integer(format: BlockFormat) -> None:
    """All three packings in one sentence: code i is at bits [i * width, (i + 1) * width)."""
    bits = format.element.bits
    codes = random_codes(format, (5, 2, 64))
    packed = pack_elements(codes, format)
    assert packed.shape == (5, 2, 64 * bits // 8)
    for row, packed_row in zip(codes.reshape(-1, 64), packed.reshape(10, -1), strict=True):
        whole = int.from_bytes(packed_row.tobytes(), "little")
        assert [whole >> (i * bits) & ((1 << bits) - 1) for i in range(64)] == row.tolist()
    np.testing.assert_array_equal(unpack_elements(packed, format), codes)


def test_nibbles_are_those_of_torchao() -> None:
    codes = random_codes(FORMATS["mxfp4"], (8, 64))
    wanted = pack_uint4(torch.from_numpy(codes)).numpy()
    np.testing.assert_array_equal(pack_elements(codes, "mxfp4"), wanted)


def test_slices_that_are_not_contiguous() -> None:
    codes = random_codes(FORMATS["mxfp6e2m3"], (6, 128))[::2, ::2]
    packed = pack_elements(codes, "mxfp6e2m3")
    np.testing.assert_array_equal(unpack_elements(packed, "mxfp6e2m3"), codes)
    np.testing.assert_array_equal(unpack_elements(packed[::2], "mxfp6e2m3"), codes[::2])


def test_decoded_elements_and_scales() -> None:
    packed = np.array([[0x10, 0x32], [0xFE, 0x98]], np.uint8)
    np.testing.assert_array_equal(
        decode_elements(packed, "mxfp4"), [[0, 0.5, 1, 1.5], [-4, -6, -0.0, -0.5]]
    )
    every = np.arange(256, dtype=np.uint8)
    for name, dtype in (("mxfp8e5m2", ml_dtypes.float8_e5m2), ("mxint8", np.int8)):
        factor = np.float32(1 / 64 if name == "mxint8" else 1)
        wanted = every.view(dtype).astype(np.float32) * factor
        np.testing.assert_array_equal(decode_elements(every, name), wanted)
    for name, dtype in (("mxfp4", ml_dtypes.float8_e8m0fnu), ("nvfp4", ml_dtypes.float8_e4m3fn)):
        scales = decode_scales(every.reshape(8, 32), name)
        np.testing.assert_array_equal(scales, every.reshape(8, 32).view(dtype).astype(np.float32))


def test_partial_groups_are_refused() -> None:
    with pytest.raises(FormatError, match=r"codes of mxfp4 come in groups of 2, .* axis of 3"):
        pack_elements(np.zeros((2, 3), np.uint8), "mxfp4")
    with pytest.raises(FormatError, match=r"codes of mxfp6e2m3 .* groups of 4, .* axis of 6"):
        pack_elements(np.zeros(6, np.uint8), "mxfp6e2m3")
    with pytest.raises(FormatError, match=r"bytes of mxfp6e2m3 .* groups of 3, .* axis of 4"):
        unpack_elements(np.zeros(4, np.uint8), "mxfp6e2m3")


def test_too_wide_a_code_is_refused() -> None:
    with pytest.raises(FormatError, match=r"codes of mxfp4 have 4 bits, found 0x10"):
        pack_elements(np.array([1, 16], np.uint8), "mxfp4")


@pytest.mark.parametrize("wrong", [np.zeros(4, np.int8), np.array(1, np.uint8)], ids=["i8", "0-d"])
def test_other_than_bytes_is_refused(wrong: NDArray[Any]) -> None:
    for function in (pack_elements, unpack_elements, decode_elements, decode_scales):
        with pytest.raises(FormatError, match="must be uint8 with at least one axis, found"):
            function(wrong, "mxfp4")
