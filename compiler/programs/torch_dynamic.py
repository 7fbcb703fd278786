"""Operations of torch that IREE's importer does not lower, or for known sizes alone."""

from __future__ import annotations

from typing import Any


def dynamic_operations() -> dict[Any, Any]:
    """Operation -> what it is in terms of others: torch's own decomposition where there is one."""
    import torch
    from torch._decomp import decomposition_table

    aten = torch.ops.aten
    by_torch = (
        aten._native_batch_norm_legit.no_stats,
        aten._adaptive_avg_pool2d.default,
        aten.upsample_bilinear2d.vec,
    )
    found = {each: decomposition_table[each] for each in by_torch}
    return found | {aten._native_batch_norm_legit_no_training.default: _batch_norm}


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    """By known statistics; bf16 and f16 as f32."""
    import torch

    shape = [-1] + [1] * (x.dim() - 2)
    kind = torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype
    mean, variance = (each.to(kind).reshape(shape) for each in (mean, variance))
    found = (x.to(kind) - mean) * (variance + epsilon).rsqrt()
    if weight is not None:
        found = found * weight.to(kind).reshape(shape)
    if bias is not None:
        found = found + bias.to(kind).reshape(shape)
    return found.to(x.dtype), x.new_empty([0]), x.new_empty([0])
