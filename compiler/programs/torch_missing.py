"""Operations of torch that IREE's importer does not lower, or for known sizes alone, in terms of
those that it lowers.

Where torch has a decomposition that it does not use by default, that one is taken. What depends on
torch is imported where it is used: only a program from torch needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mxc.compiler.programs.torch_types import wide_type

#: The exponent of the last power of an integer of 64 bits that is no zero, and its bits.
_MOST_EXPONENT, _EXPONENT_BITS = 63, 6
#: Modes of an embedding bag.
_SUM, _MEAN = 0, 1


def missing_operations() -> dict[Any, Callable[..., Any]]:
    """The overloads of torch.ops.aten with their decompositions."""
    import torch
    from torch._decomp import decomposition_table

    aten = torch.ops.aten
    by_torch = (
        aten._adaptive_avg_pool2d.default,
        aten._native_batch_norm_legit.no_stats,
        aten.narrow_copy.default,
        aten.permute_copy.default,
        aten.upsample_bilinear2d.vec,
    )
    return {
        **{each: decomposition_table[each] for each in by_torch},
        aten.grid_sampler_2d.default: _wide(decomposition_table[aten.grid_sampler_2d.default]),
        aten._native_batch_norm_legit_no_training.default: _batch_norm,
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
        aten.bitwise_left_shift.Scalar_Tensor: partial(_shift, torch.bitwise_left_shift),
        aten.bitwise_right_shift.Scalar_Tensor: partial(_shift, torch.bitwise_right_shift),
        aten.__lshift__.Scalar: lambda x, by: torch.bitwise_left_shift(x, torch.full_like(x, by)),
        aten.empty_permuted.default: _empty_permuted,
        aten.eye.default: _eye,
        aten.eye.m: _eye,
        aten.fmod.Scalar: _fmod,
        aten.fmod.Tensor: _fmod,
        aten.histc.default: _histogram,
        aten.kthvalue.default: _kth_value,
        aten.median.default: _median,
        aten.median.dim: _median_along,
        aten.pow.Scalar: _power_of_integers,
        aten.pow.Tensor_Scalar: _power_of_integers,
        aten.pow.Tensor_Tensor: _power_of_integers,
        aten.put.default: _put,
        aten.rrelu_with_noise_functional.default: _rrelu,
        aten.scatter.src: _scatter,
        aten.scatter.value: _scatter_value,
        aten.scatter_reduce.two: _scatter_reduce,
        aten.searchsorted.Tensor: _search_sorted,
        aten.sign.default: _sign,
    }


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    """By known statistics; bf16 and f16 as f32."""

    shape = [-1] + [1] * (x.dim() - 2)
    kind = wide_type(x) if _is_narrow(x) else x.dtype
    mean, variance = (each.to(kind).reshape(shape) for each in (mean, variance))
    found = (x.to(kind) - mean) * (variance + epsilon).rsqrt()
    if weight is not None:
        found = found * weight.to(kind).reshape(shape)
    if bias is not None:
        found = found + bias.to(kind).reshape(shape)
    return found.to(x.dtype), x.new_empty([0]), x.new_empty([0])


def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, Any, Any, Any]:
    """Rows of `weight` [V, D] by `indices` [N], of which bag b has those from offset b on: their
    sum, mean or largest. A bag without any is zero."""
    import torch

    starts = offsets[:-1] if include_last_offset else offsets
    numbers = torch.arange(indices.shape[0], device=indices.device)
    bag = (numbers[:, None] >= starts[None, :]).sum(1) - 1
    bags = torch.arange(starts.shape[0], device=indices.device)
    inside = bag[None, :] == bags[:, None]
    if padding_idx >= 0:
        inside = inside & (indices != padding_idx)[None, :]
    counts, numbers = inside.sum(1), torch.zeros_like(offsets)
    rows = torch.ops.aten.embedding(weight, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if mode in (_SUM, _MEAN):
        found = inside.to(torch.float32) @ rows.to(torch.float32)
        if mode == _MEAN:
            found = found / counts.clamp(min=1)[:, None]
        found = found.to(weight.dtype)
    else:
        low = torch.where(inside[:, :, None], rows[None], -torch.inf)
        found = torch.where(counts[:, None] > 0, low.amax(1), 0.0).to(weight.dtype)
        numbers = indices[low.argmax(1)]
    return found, bag, counts, numbers


def _is_narrow(x: Any) -> bool:
    """Whether a tensor is bf16 or f16."""
    import torch

    return x.dtype in (torch.bfloat16, torch.float16)


def _wide(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation on two tensors, of bf16 and f16 in f32."""

    def widened(x: Any, y: Any, *options: Any) -> Any:
        kind = x.dtype
        if _is_narrow(x):
            x, y = (each.to(wide_type(x)) for each in (x, y))
        return operation(x, y, *options).to(kind)

    return widened


def _shift(shift: Callable[..., Any], value: int, by: Any) -> Any:
    import torch

    return shift(torch.full_like(by, value), by)


def _fmod(x: Any, y: Any) -> Any:
    """The remainder of integers with the sign of x; the importer has that of tensors of floats."""
    import torch

    kind = torch.result_type(x, y)
    if kind.is_floating_point:
        if isinstance(y, torch.Tensor):
            return NotImplemented
        return torch.ops.aten.fmod.Tensor(x, torch.full((), y, dtype=kind, device=x.device))
    return x - torch.div(x, y, rounding_mode="trunc") * y


def _power_of_integers(x: Any, exponent: Any) -> Any:
    """By squares: the importer has powers of floats."""
    import torch

    kind = torch.result_type(x, exponent)
    if kind.is_floating_point or kind.is_complex or kind == torch.bool:
        return NotImplemented
    tensor = x if isinstance(x, torch.Tensor) else exponent
    x, exponent = (
        each.to(kind)
        if isinstance(each, torch.Tensor)
        else torch.full((), each, dtype=kind, device=tensor.device)
        for each in (x, exponent)
    )
    # Of larger exponents the result is as of these, or has lost all of its bits.
    left = torch.where(exponent > _MOST_EXPONENT, _MOST_EXPONENT - 1 + exponent % 2, exponent)
    found, square = torch.ones_like(x), x
    for _ in range(_EXPONENT_BITS):
        found = torch.where(left % 2 == 1, found * square, found)
        square, left = square * square, left // 2
    odd = torch.where(exponent % 2 == 1, x, 1)
    unit = (x == 1) | (x == -1)
    return torch.where(exponent < 0, torch.where(unit, odd, 0), found)


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = (index.reshape(-1),)
    return x.reshape(-1).index_put(flat, source.reshape(-1), accumulate).reshape(x.shape)


def _rrelu(
    x: Any, noise: Any, lower: Any = 1 / 8, upper: Any = 1 / 3, training: bool = False, *_: Any
) -> Any:
    import torch

    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise


def _scatter_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Truth values and narrow floats in wider types; the mean of integers is rounded down."""
    import torch

    scatter, kind = torch.ops.aten.scatter_reduce.two, x.dtype
    if kind == torch.bool or _is_narrow(x):
        wide = [each.to(wide_type(x)) for each in (x, source)]
        return scatter(wide[0], dim, index, wide[1], reduce, include_self=include_self).to(kind)
    if reduce != "mean" or kind.is_floating_point:
        return NotImplemented
    total = scatter(x, dim, index, source, "sum", include_self=include_self)
    count = torch.full_like(x, int(include_self))
    count = count.scatter_add(dim, index, torch.ones_like(source)).clamp(min=1)
    return torch.div(total, count, rounding_mode="floor")


def _scatter(x: Any, dim: int, index: Any, src: Any) -> Any:
    """One place along a dimension is a choice: the importer ends with the process where the number
    of such places comes with the call."""
    import torch

    shape = list(x.shape)
    shape[dim] = 1
    if x.dim() == 0 or list(index.shape) != shape:
        return NotImplemented
    numbers = torch.arange(x.shape[dim], device=x.device)
    numbers = numbers.reshape([-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())])
    return torch.where(numbers == index, src.narrow(dim, 0, 1), x)


def _scatter_value(x: Any, dim: int, index: Any, value: float) -> Any:
    """The importer ends with the process where sizes come with the call."""
    import torch

    values = torch.full_like(index, value, dtype=x.dtype)
    return torch.ops.aten.scatter.src(x, dim, index, values)


def _search_sorted(
    sorted_sequence: Any,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """How many elements are less than each value, or at most it."""
    import torch

    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    most = right or side == "right"
    elements = sorted_sequence.unsqueeze(-2)
    column = values.unsqueeze(-1)
    before = elements <= column if most else elements < column
    return before.sum(-1).to(torch.int32 if out_int32 else torch.int64)


def _histogram(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many elements are in each of `bins` ranges of equal width; the last one has its end too.

    Where both ends are equal, they are those of the elements.
    """
    import torch

    first: Any = torch.full((), min, dtype=x.dtype)
    last: Any = torch.full((), max, dtype=x.dtype)
    if min == max:
        first, last = x.min(), x.max()
        first, last = (torch.where(first == last, end, each)
                       for each, end in ((first, first - 1), (last, last + 1)))  # fmt: skip
    place = ((x - first) * bins / (last - first)).to(torch.int64).clamp(max=bins - 1)
    inside = ((x >= first) & (x <= last)).reshape(-1)
    here = place.reshape(-1)[None, :] == torch.arange(bins)[:, None]
    return (here & inside[None, :]).sum(1).to(x.dtype)


def _sign(x: Any) -> Any:
    import torch

    if x.dtype in (torch.bool, torch.uint8):
        return (x != 0).to(x.dtype)
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def _empty_permuted(size: Any, physical_layout: Any, **options: Any) -> Any:
    """Memory has one order here."""
    import torch

    return torch.ops.aten.empty.memory_format(size, **options)


def _eye(rows: Any, columns: Any = None, *, dtype: Any = None, **options: Any) -> Any:
    """The importer's own ends its process."""
    import torch

    columns = rows if columns is None else columns
    row, column = (torch.arange(each, device=options.get("device")) for each in (rows, columns))
    return (row[:, None] == column).to(torch.get_default_dtype() if dtype is None else dtype)


def _kth_value(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    import torch

    if not x.dim():
        return x, torch.zeros_like(x, dtype=torch.int64)
    values, numbers = torch.ops.aten.sort(x, dim)
    found = tuple(each.narrow(dim, k - 1, 1) for each in (values, numbers))
    return found if keepdim else tuple(each.squeeze(dim) for each in found)


def _median(x: Any) -> Any:
    return _median_along(x.reshape(-1), 0)[0]


def _median_along(x: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """The lesser of two in the middle; NaN where there is one, which a sort puts at the end."""
    import torch

    if not x.dim():
        return x, torch.zeros_like(x, dtype=torch.int64)
    size = x.shape[dim]
    found = _kth_value(x, (size + 1) // 2, dim, keepdim)
    if not x.dtype.is_floating_point:
        return found
    last = _kth_value(x, size, dim, keepdim)
    unknown = torch.isnan(last[0])
    return tuple(torch.where(unknown, *pair) for pair in zip(last, found, strict=True))
