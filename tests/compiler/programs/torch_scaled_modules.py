"""Modules of torch with scaled elements, most of torchao: name -> (module, its arguments)."""

from collections.abc import Callable
from typing import Any

import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import MXFP4A16, MXFP8A16, NVFP4A16
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from torch.nn import functional
from torch.nn.functional import ScalingType, SwizzleType
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.prototype.mx_formats.utils import from_blocked, to_blocked

N, K = 128, 256
Module = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class Dequantized(torch.nn.Module):
    """A product with an MXTensor that is dequantized where it is used."""

    def __init__(self, element: object) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(K, N)
        weight = MXTensor.to_mx(torch.randn(N, K), element, 32)
        self.lin.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.lin.weight.dequantize(torch.float32), self.lin.bias)


def nvfp4_linear(scaled: bool) -> torch.nn.Module:
    """A linear layer whose weight is an NVFP4Tensor, as torchao's weight-only config makes it."""
    linear = torch.nn.Linear(K, N)
    weight = torch.randn(N, K)
    whole = per_tensor_amax_to_scale(weight.abs().max()) if scaled else None
    packed = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=whole)
    linear.weight = torch.nn.Parameter(packed, requires_grad=False)
    return torch.nn.Sequential(linear)


class Compressed(torch.nn.Module):
    """A linear layer as compressed-tensors stores it, by what its library decompresses it to."""

    def __init__(self, compressor: Any, preset: dict[str, Any]) -> None:
        super().__init__()
        kind, weight = preset["weights"], torch.randn(N, K)
        blocks = weight.reshape(N, -1, kind.group_size)
        low, high = blocks.amin(-1), blocks.amax(-1)
        whole = generate_gparam(low.min(), high.max()) if kind.group_size == 16 else None
        scale, _ = calculate_qparams(low, high, kind, whole)
        parts = {"weight": weight, "weight_scale": scale}
        parts |= {} if whole is None else {"weight_global_scale": whole}
        self.scheme = QuantizationScheme(targets=["Linear"], weights=kind)
        self.compressor = compressor
        for name, part in compressor.compress(parts, self.scheme).items():
            self.register_buffer(name, part.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = dict(self.named_buffers())
        weight = self.compressor.decompress(parts, self.scheme)["weight"]
        return functional.linear(x, weight.to(torch.float32))


class ScaledMm(torch.nn.Module):
    """torch.nn.functional.scaled_mm with scales in the order of cuBLAS, which the CPU of torch
    does not compute: `wanted` does, by dequantizing."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        weight = MXTensor.to_mx(torch.randn(N, K), dtype, 32)
        self.weight = weight
        self.register_buffer("elements", weight.qdata.view(dtype))
        self.register_buffer("scales", to_blocked(weight.scale))

    def forward(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        block, order = ScalingType.BlockWise1x32, SwizzleType.SWIZZLE_32_4_4
        return functional.scaled_mm(
            x, self.elements.t(), scales, block, self.scales, block,
            swizzle_a=order, swizzle_b=order, output_dtype=torch.float32,
        )  # fmt: skip

    def wanted(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        rows = from_blocked(scales, x.shape[0], K // 32)
        raw = x.view(self.weight.qdata.dtype)
        kind = self.weight
        left = MXTensor(
            raw, rows, kind.elem_dtype, 32, torch.float32, kind.kernel_preference, None, False
        )
        return left.dequantize(torch.float32) @ kind.dequantize(torch.float32).t()


class Bytes(torch.nn.Module):
    """Arithmetic of bytes with and without their highest bit."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.where(x > 127, 1.0, 0.0) + torch.where(x == 255, 2.0, 0.0)
        return wide + (x * 3 - 7).to(torch.float32) + (x >> 4).to(torch.float32)


class Pairs(torch.nn.Module):
    """Bytes of the dtype for two elements of 4 bits, turned and seen as bytes."""

    def __init__(self) -> None:
        super().__init__()
        raw = torch.randint(0, 256, (8, 4), dtype=torch.uint8)
        self.register_buffer("own", raw.view(torch.float4_e2m1fn_x2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = x.t().view(torch.uint8) & 15
        return low.to(torch.float32) - self.own.view(torch.uint8).to(torch.float32)


def pairs() -> Module:
    x = torch.randint(0, 256, (4, 8), dtype=torch.uint8)
    return Pairs(), (x.view(torch.float4_e2m1fn_x2),)


def scaled_mm(dtype: torch.dtype) -> Module:
    module = ScaledMm(dtype)
    x = MXTensor.to_mx(torch.randn(N, K), dtype, 32)
    return module, (x.qdata.view(dtype), to_blocked(x.scale))


def _with_rows(module: torch.nn.Module) -> Module:
    return module, (torch.randn(6, K),)


SCALED: dict[str, Callable[[], Module]] = {
    "torchao MXTensor mxfp4": lambda: _with_rows(Dequantized(torch.float4_e2m1fn_x2)),
    "torchao MXTensor mxfp8": lambda: _with_rows(Dequantized(torch.float8_e4m3fn)),
    "torchao MXTensor mxfp6": lambda: _with_rows(Dequantized(DTYPE_FP6_E2M3)),
    "torchao NVFP4Tensor": lambda: _with_rows(nvfp4_linear(False)),
    "torchao NVFP4Tensor, scaled": lambda: _with_rows(nvfp4_linear(True)),
    "compressed-tensors mxfp4": lambda: _with_rows(Compressed(MXFP4PackedCompressor, MXFP4A16)),
    "compressed-tensors mxfp8": lambda: _with_rows(
        Compressed(MXFP8QuantizationCompressor, MXFP8A16)
    ),
    "compressed-tensors nvfp4": lambda: _with_rows(Compressed(NVFP4PackedCompressor, NVFP4A16)),
    "scaled_mm mxfp8": lambda: scaled_mm(torch.float8_e4m3fn),
    "pairs": pairs,
    "bytes": lambda: (Bytes(), (torch.arange(256, dtype=torch.uint8),)),
}
