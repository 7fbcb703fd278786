"""How libraries store a weight [out, in]: the parts of its layer, and the numbers that they mean.

Written out with numpy and ml_dtypes: the package under test has no part in it. The numbers are
computed in float64 and rounded to float32 once.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Parts = dict[str, torch.Tensor]

#: What stores a weight: its parts by the ends of their names, and its numbers.
Store = Callable[[Floats], tuple[Parts, Floats]]

_TORCH = {
    np.dtype(ml_dtypes.float8_e4m3fn): torch.float8_e4m3fn,
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
}


def as_torch(array: NDArray[Any]) -> torch.Tensor:
    """The same bytes as a tensor of torch."""
    contiguous = np.ascontiguousarray(array)
    if array.dtype not in _TORCH:
        return torch.from_numpy(contiguous)
    size = f"i{array.dtype.itemsize}"
    return torch.from_numpy(contiguous.view(size)).view(_TORCH[array.dtype])


def _blocks(weight: Floats, size: int) -> NDArray[np.float64]:
    return weight.astype(np.float64).reshape(weight.shape[0], -1, size)


def _largest(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(np.abs(blocks).max(-1, keepdims=True), 1e-9)


def _packed(codes: NDArray[Any]) -> NDArray[np.uint8]:
    """Two e2m1 codes in a byte, the even one low: [out, in] of a block format."""
    raw = codes.reshape(codes.shape[0], -1).view(np.uint8)
    return raw[:, ::2] | raw[:, 1::2] << np.uint8(4)


def _values(elements: NDArray[Any], scales: NDArray[np.float64], shape: tuple[int, ...]) -> Floats:
    return (elements.astype(np.float64) * scales).reshape(shape).astype(np.float32)


def _mxfp4(weight: Floats) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Floats]:
    blocks = _blocks(weight, 32)
    exponents = np.floor(np.log2(_largest(blocks))) - 2
    codes = (blocks / 2.0**exponents).astype(ml_dtypes.float4_e2m1fn)
    scales = (exponents[..., 0] + 127).astype(np.uint8)
    return _packed(codes), scales, _values(codes, 2.0**exponents, weight.shape)


def quark_mxfp4(weight: Floats) -> tuple[Parts, Floats]:
    """AMD Quark: packed `weight`, E8M0 `weight_scale`."""
    elements, scales, values = _mxfp4(weight)
    return {"weight": as_torch(elements), "weight_scale": as_torch(scales)}, values


def compressed_mxfp4(weight: Floats) -> tuple[Parts, Floats]:
    """compressed-tensors: `weight_packed`, E8M0 `weight_scale`."""
    elements, scales, values = _mxfp4(weight)
    return {"weight_packed": as_torch(elements), "weight_scale": as_torch(scales)}, values


def _nvfp4(
    weight: Floats, block: int, factor: float
) -> tuple[NDArray[np.uint8], NDArray[Any], Floats]:
    """Elements and scales of blocks, all of which `factor` multiplies, and the values."""
    blocks = _blocks(weight, block)
    scales = (_largest(blocks) / 6 / factor).astype(ml_dtypes.float8_e4m3fn)
    each = scales.astype(np.float64) * factor
    codes = (blocks / each).astype(ml_dtypes.float4_e2m1fn)
    return _packed(codes), scales[..., 0], _values(codes, each, weight.shape)


def modelopt_nvfp4(weight: Floats, block: int = 16) -> tuple[Parts, Floats]:
    """NVIDIA's Model Optimizer: `weight_scale_2` multiplies."""
    factor = np.float32(np.abs(weight).max() / (448 * 6))
    elements, scales, values = _nvfp4(weight, block, float(factor))
    parts = {
        "weight": as_torch(elements),
        "weight_scale": as_torch(scales),
        "weight_scale_2": torch.tensor(factor),
        "input_scale": torch.tensor(0.01),
    }
    return parts, values


def compressed_nvfp4(weight: Floats) -> tuple[Parts, Floats]:
    """compressed-tensors: `weight_global_scale` divides."""
    divisor = np.float32(448 * 6 / np.abs(weight).max())
    elements, scales, values = _nvfp4(weight, 16, 1 / float(divisor))
    parts = {
        "weight_packed": as_torch(elements),
        "weight_scale": as_torch(scales),
        "weight_global_scale": torch.tensor([divisor]),
        "input_global_scale": torch.tensor([100.0]),
    }
    return parts, values


def _fp8(weight: Floats, largest: NDArray[np.float64], dtype: Any) -> tuple[Any, Any, Floats]:
    """Elements, scales of `dtype` for parts of the weight whose largest magnitudes are these."""
    scales = (largest / 448).astype(dtype)
    each = scales.astype(np.float64)
    elements = np.clip(weight / each, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return elements, scales, _values(elements, each, weight.shape)


def fp8_of_tensor(weight: Floats) -> tuple[Parts, Floats]:
    """One float32 scale, and one of the inputs (modelopt, Quark, compressed-tensors)."""
    largest = np.abs(weight).max().astype(np.float64)
    elements, scale, values = _fp8(weight, largest, np.float32)
    parts = {
        "weight": as_torch(elements),
        "weight_scale": torch.tensor(float(scale)),
        "input_scale": torch.tensor(0.01),
    }
    return parts, values


def mistral_fp8(weight: Floats) -> tuple[Parts, Floats]:
    """The same under other names; the scale multiplies (Ministral 3)."""
    parts, values = fp8_of_tensor(weight)
    names = {"weight_scale": "weight_scale_inv", "input_scale": "activation_scale"}
    return {names.get(name, name): part for name, part in parts.items()}, values


def fp8_of_rows(weight: Floats) -> tuple[Parts, Floats]:
    """A bfloat16 scale for each row (compressed-tensors, dynamic inputs)."""
    largest = np.abs(weight).max(1, keepdims=True).astype(np.float64)
    elements, scales, values = _fp8(weight, largest, ml_dtypes.bfloat16)
    return {"weight": as_torch(elements), "weight_scale": as_torch(scales)}, values


def fp8_of_tiles(weight: Floats) -> tuple[Parts, Floats]:
    """A bfloat16 `weight_scale_inv` for 128 x 128 elements, which multiplies (DeepSeek, Qwen)."""
    rows, columns = weight.shape
    size = -(-rows // 128), -(-columns // 128)
    whole = np.zeros((size[0] * 128, size[1] * 128))
    whole[:rows, :columns] = np.abs(weight)
    largest = np.maximum(whole.reshape(size[0], 128, size[1], 128).max((1, 3)), 1e-9)
    scales = (largest / 448).astype(ml_dtypes.bfloat16)
    each = np.kron(scales.astype(np.float64), np.ones((128, 128)))[:rows, :columns]
    elements = np.clip(weight / each, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    parts = {"weight": as_torch(elements), "weight_scale_inv": as_torch(scales)}
    return parts, _values(elements, each, weight.shape)


def _integers(weight: Floats, size: int, most: int, dtype: Any) -> tuple[Any, Any, Floats]:
    """Integers up to `most`, a scale of `dtype` for each `size` of them, and their values."""
    blocks = _blocks(weight, size)
    scales = (_largest(blocks) / most).astype(dtype)
    each = scales.astype(np.float64)
    codes = np.clip(np.rint(blocks / each), -most - 1, most).astype(np.int64)
    return codes, scales[..., 0], _values(codes, each, weight.shape)


def _words(codes: NDArray[np.int64], bits: int) -> torch.Tensor:
    """Integers plus half of their range in int32, the first one low."""
    rows = codes.reshape(codes.shape[0], -1, 32 // bits) + (1 << (bits - 1))
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    packed = np.bitwise_or.reduce(rows.astype(np.uint32) << shifts, axis=-1)
    return as_torch(packed.astype(np.uint32).view(np.int32))


def _of_groups(weight: Floats, bits: int, size: int) -> tuple[Parts, Floats]:
    most = (1 << (bits - 1)) - 1
    codes, scales, values = _integers(weight, size, most, ml_dtypes.bfloat16)
    parts = {
        "weight_packed": _words(codes, bits),
        "weight_scale": as_torch(scales),
        "weight_shape": torch.tensor(weight.shape),
    }
    return parts, values


def int4_of_groups(weight: Floats) -> tuple[Parts, Floats]:
    """compressed-tensors' pack-quantized: eight in an int32, bfloat16 scales of 32."""
    return _of_groups(weight, 4, 32)


def int4_of_large_groups(weight: Floats) -> tuple[Parts, Floats]:
    """The same with scales of 128."""
    return _of_groups(weight, 4, 128)


def int8_of_groups(weight: Floats) -> tuple[Parts, Floats]:
    """The same of 8 bits, with scales of 32: four in an int32."""
    return _of_groups(weight, 8, 32)


def int8_of_rows(weight: Floats) -> tuple[Parts, Floats]:
    """compressed-tensors' int-quantized: int8, a bfloat16 scale for each row."""
    codes, scales, values = _integers(weight, weight.shape[1], 127, ml_dtypes.bfloat16)
    elements = codes.reshape(weight.shape).astype(np.int8)
    return {"weight": as_torch(elements), "weight_scale": as_torch(scales)}, values
