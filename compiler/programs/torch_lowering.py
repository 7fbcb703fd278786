"""Operations of torch in terms of those that IREE's importer lowers, and lowers right.

    full          of truth values: the importer takes the last bit of a number
    _to_copy      of floats to uint8: by way of int32. The importer stops at 127.
    clamp_min, clamp_max    with a tensor: the larger, the lesser
    roll          two slices
    pad           by negative numbers: a slice, then a padding
    sort.stable   a sort, which mxc-lower-sorts makes stable
    index_put     of one number under a mask: a choice
    gelu          by tanh: its formula. The importer's constants are off by 5e-5.
    index         by numbers of 32 bits: by numbers of 64; in several dynamic dimensions: in one
    _scaled_mm    of blocks, rows or a whole tensor: elements times scales, then a product
    scaled_dot_product_attention    a product, a softmax and a product, with the scale of the scores

Others are computed in wider types (torch_types.py), or taken apart (torch_missing.py). What depends
on torch is imported where it is used: only a program from torch needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

from mxc.compiler.programs.torch_experts import expert_operations
from mxc.compiler.programs.torch_graph import rewrite_graph
from mxc.compiler.programs.torch_missing import missing_operations
from mxc.compiler.programs.torch_reshapes import split_reshapes
from mxc.compiler.programs.torch_types import wide_type, widened_operations
from mxc.compiler.programs.torch_views import views_as_reshapes

#: torch.nn.functional.ScalingType: a scale for the tensor, for each row, or for so many elements
#: of a row.
_WHOLE, _ROWS = 0, 1
_BLOCKS = {2: 16, 3: 32, 4: 128}
#: Rows and columns of a tile of scales as cuBLAS orders them (SWIZZLE_32_4_4), rows of its part.
_TILE_ROWS, _TILE_COLUMNS, _PART = 128, 4, 32


def _decompositions(table: dict[Any, Any]) -> dict[Any, Any]:
    """A table of decompositions of torch with ours added."""
    import torch

    aten = torch.ops.aten
    table.update(dict(widened_operations()))
    table.update(missing_operations())
    table.update(expert_operations())
    table[aten.clamp_min.Tensor] = aten.maximum
    table[aten.clamp_max.Tensor] = aten.minimum
    table[aten.full.default] = _full
    table[aten._to_copy.default] = _to_copy
    table[aten.gelu.default] = _gelu
    table[aten.squeeze.dims] = _squeeze
    table[aten.split_with_sizes.default] = _split_with_sizes
    table[aten.index_put.default] = _index_put
    table[aten.index.Tensor] = _index
    table[aten.constant_pad_nd.default] = _pad
    table[aten.roll.default] = _roll
    table[aten.sort.stable] = _stable_sort
    table[aten._scaled_mm.default] = _scaled_mm
    table[aten._scaled_mm_v2.default] = _scaled_mm_v2
    table[aten.scaled_dot_product_attention.default] = _attention
    return table


def _index(x: Any, indices: Sequence[Any]) -> Any:
    import torch

    places = [axis for axis, each in enumerate(indices) if each is not None]
    given = [indices[axis] for axis in places]
    if any(each.dtype == torch.int32 for each in given):
        wide = [each if each is None or each.dtype != torch.int32 else each.to(torch.int64)
                for each in indices]  # fmt: skip
        return torch.ops.aten.index.Tensor(x, wide)
    sizes = [size for each in (x, *given) for size in each.shape]
    together = places == list(range(places[0], places[-1] + 1)) and len(places) > 1
    whole = all(each.dtype == torch.int64 for each in given)
    if not (together and whole) or all(isinstance(size, int) for size in sizes):
        return NotImplemented
    # One number for the place in all of these dimensions.
    flat: Any = 0
    for axis, each in zip(places, torch.broadcast_tensors(*given), strict=True):
        flat = flat * x.shape[axis] + torch.where(each < 0, each + x.shape[axis], each)
    first = [None] * places[0]
    return torch.ops.aten.index.Tensor(x.flatten(places[0], places[-1]), [*first, flat])


def _pad(x: Any, by: Sequence[int], value: float = 0) -> Any:
    """A negative number cuts off: the importer pads by it, and takes what has the same size for the
    same. `by`: two numbers for each dimension, the last one first."""
    import torch

    cut = [min(each, 0) if isinstance(each, int) else 0 for each in by]
    if not any(cut):
        return NotImplemented
    for place in range(0, len(by), 2):
        axis, (before, after) = x.dim() - 1 - place // 2, cut[place : place + 2]
        if before or after:
            x = x.narrow(axis, -before, x.shape[axis] + before + after)
    return torch.constant_pad_nd(x, [a - b for a, b in zip(by, cut, strict=True)], value)


def _roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Two slices, exchanged; torch's own decomposition gathers by remainders of integers."""
    import torch

    if not all(isinstance(size, int) for size in x.shape):
        return NotImplemented
    if not dims:
        return _roll(x.reshape(-1), shifts, (0,)).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        first = size - shift % size if size else 0
        x = torch.cat([x.narrow(dim, first, size - first), x.narrow(dim, 0, first)], dim)
    return x


def _stable_sort(x: Any, *, stable: bool, dim: int = -1, descending: bool = False) -> Any:
    import torch

    return torch.ops.aten.sort(x, dim, descending)


def _full(size: Sequence[int], value: Any, *, dtype: Any = None, **options: Any) -> Any:
    import torch

    if dtype != torch.bool or isinstance(value, bool):
        return NotImplemented
    return torch.ops.aten.full(size, bool(value), dtype=dtype, **options)


def _to_copy(x: Any, *, dtype: Any = None, **options: Any) -> Any:
    import torch

    if dtype != torch.uint8 or not x.dtype.is_floating_point:
        return NotImplemented
    return torch.ops.aten._to_copy(x.to(torch.int32), dtype=dtype, **options)


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    import torch

    if approximate != "tanh":
        return NotImplemented
    wide = x.to(torch.float32)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)


def _squeeze(tensor: Any, dims: Any) -> Any:
    """aten.squeeze.dims, which the importer does not know, as a reshape."""
    gone = {axis % tensor.dim() for axis in dims}
    shape = [n for axis, n in enumerate(tensor.shape) if axis not in gone or n != 1]
    return tensor.reshape(shape)


def _split_with_sizes(tensor: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    """Slices; the importer lowers the split of a list only if each part has a reader."""
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [tensor.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True)]


def _index_put(tensor: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    import torch

    # The importer's own adds bits, and rounds each sum.
    if accumulate and tensor.dtype in (torch.bool, torch.bfloat16, torch.float16):
        kind = wide_type(tensor)
        sums = torch.ops.aten.index_put(tensor.to(kind), indices, values.to(kind), accumulate)
        return sums.to(tensor.dtype)
    mask = indices[0]
    if accumulate or len(indices) != 1 or mask is None or mask.dtype != torch.bool:
        return NotImplemented
    if values.numel() != 1 or mask.dim() != tensor.dim():
        return NotImplemented
    return torch.where(mask, values.reshape(()), tensor)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention; a row of which a mask hides all keys is zero, as in torch.

    torch's own decomposition multiplies queries and keys by the root of the scale.
    """
    import torch

    if dropout:
        return NotImplemented
    if enable_gqa:
        shared = query.shape[-3] // key.shape[-3]
        key, value = (each.repeat_interleave(shared, -3) for each in (key, value))
    depth = query.shape[-1]
    scores = (query @ key.transpose(-2, -1)).to(torch.float32)
    scores = scores * (depth**-0.5 if scale is None else scale)
    if is_causal:
        rows, columns = (torch.arange(n, device=query.device) for n in scores.shape[-2:])
        scores = torch.where(columns <= rows.unsqueeze(-1), scores, -torch.inf)
    if mask is None:
        weights = torch.softmax(scores, -1)
    else:
        hidden = torch.where(mask, scores, -torch.inf) if mask.dtype == torch.bool else None
        scores = scores + mask if hidden is None else hidden
        weights = torch.ops.aten._safe_softmax(scores, -1)
    return weights.to(query.dtype) @ value


def _decode(codes: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """f32 of the codes of a float without infinities, one in each integer. Plain arithmetic."""
    import torch

    codes = codes.to(torch.int32)
    bias = (1 << (exponent_bits - 1)) - 1
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    normal = exponent > 0
    units = torch.where(normal, mantissa + (1 << mantissa_bits), mantissa).to(torch.float32)
    power = torch.where(normal, exponent, 1) - (bias + mantissa_bits)
    value = torch.ldexp(units, power)
    return torch.where((codes >> (exponent_bits + mantissa_bits)) == 1, -value, value)


def _plain_torchao() -> AbstractContextManager[None]:
    """torchao decodes elements by `_decode` while its tensors are taken apart.

    Its own function assigns constants under masks, which `run_decompositions` of torch 2.13 does
    not allow inside of a tensor that it takes apart.
    """
    return _decoding_by(import_module("torchao.prototype.mx_formats").kernels)


@contextmanager
def _decoding_by(kernels: Any) -> Iterator[None]:
    own = kernels._floatx_unpacked_to_f32
    kernels._floatx_unpacked_to_f32 = _decode
    try:
        yield
    finally:
        kernels._floatx_unpacked_to_f32 = own


def _scaled_mm(
    left: Any,
    right: Any,
    scale_left: Any,
    scale_right: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """The first version of scaled_mm: the types of the scales say what they are for."""
    import torch

    def recipe(scale: Any) -> tuple[int, int]:
        block = {torch.float8_e8m0fnu: 3, torch.float8_e4m3fn: 2}.get(scale.dtype)
        if block is not None:
            return block, 1
        return (_WHOLE if scale.numel() == 1 else _ROWS), 0

    (by, order), (by_right, order_right) = recipe(scale_left), recipe(scale_right)
    found = _scaled_mm_v2(
        left, right, [scale_left], [by], [order], [scale_right], [by_right], [order_right],
        None, torch.float32,
    )  # fmt: skip
    if scale_result is not None:
        found = found * scale_result
    found = found if bias is None else found + bias.to(torch.float32)
    return found.to(left.dtype if out_dtype is None else out_dtype)


def _scaled_mm_v2(
    left: Any,
    right: Any,
    scale_left: Sequence[Any],
    recipe_left: Sequence[int],
    swizzle_left: Sequence[int],
    scale_right: Sequence[Any],
    recipe_right: Sequence[int],
    swizzle_right: Sequence[int],
    bias: Any,
    out_dtype: Any,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Any:
    """left [M, K] times right [K, N], each under its scales; sums are f32."""
    import torch

    if contraction_dim:
        raise NotImplementedError(
            "_scaled_mm_v2 along other dimensions than the last and the first"
        )
    rows = _scaled(left, scale_left, recipe_left, swizzle_left)
    columns = _scaled(right.t(), scale_right, recipe_right, swizzle_right)
    found = rows @ columns.t()
    found = found if bias is None else found + bias.to(torch.float32)
    return found.to(torch.bfloat16 if out_dtype is None else out_dtype)


def _scaled(
    side: Any, scales: Sequence[Any], recipes: Sequence[int], swizzles: Sequence[int]
) -> Any:
    """The f32 that elements [R, K] are under their scales."""
    import torch

    if side.dtype == torch.float4_e2m1fn_x2:
        raw = side.view(torch.uint8)
        side = _decode(torch.stack([raw & 15, raw >> 4], -1).flatten(-2), 2, 1)
    value = side.to(torch.float32)
    rows, depth = value.shape
    orders = [*swizzles, *[0] * (len(scales) - len(swizzles))]
    for scale, recipe, order in zip(scales, recipes, orders, strict=True):
        if recipe in _BLOCKS:
            count = depth // _BLOCKS[recipe]
            if order:
                scale = _in_rows(scale, rows, count)
            by = scale.reshape(rows, count, 1).to(torch.float32)
            value = (value.reshape(rows, count, _BLOCKS[recipe]) * by).reshape(rows, depth)
        elif recipe in (_WHOLE, _ROWS):
            shape = (1, 1) if recipe == _WHOLE else (rows, 1)
            value = value * scale.to(torch.float32).reshape(shape)
        else:
            raise NotImplementedError(f"_scaled_mm_v2 with ScalingType {recipe} has no lowering")
    return value


def _in_rows(scale: Any, rows: int, count: int) -> Any:
    """Scales [rows, count] of tiles of 128 by 4 in the order 32, 4, 4 of cuBLAS."""
    down, across = -(-rows // _TILE_ROWS), -(-count // _TILE_COLUMNS)
    parts = (down, across, _PART, _TILE_ROWS // _PART, _TILE_COLUMNS)
    ordered = scale.reshape(parts).permute(0, 3, 2, 1, 4)
    whole = ordered.reshape(down * _TILE_ROWS, across * _TILE_COLUMNS)
    return whole[:rows, :count]


def lowered(program: Any) -> Any:
    """An ExportedProgram in the operations above, with parts of tensors named lin.weight.qdata.

    Tensors of two 4-bit floats a byte are uint8 in it: torch saves no others, and reads only bytes.
    """
    import torch
    from torch.utils._pytree import tree_structure

    parts = _parts(program)
    with _plain_torchao() if parts else nullcontext():
        found = views_as_reshapes(program).run_decompositions(
            _decompositions(torch.export.default_decompositions())
        )
    for spec in found.graph_signature.input_specs:
        spec.target = parts.get(spec.target, spec.target)
    for name in list(found.state_dict):
        value = found.state_dict.pop(name)
        if value.dtype == torch.float4_e2m1fn_x2:
            value = value.view(torch.uint8)
        found.state_dict[parts.get(name, name)] = value
    rewrite_graph(found)
    split_reshapes(found)
    # torch saves no results of its own named tuples, such as those of `torch.sort`.
    leaves = found.module_call_graph[0].signature
    leaves.out_spec = tree_structure((0,) * leaves.out_spec.num_leaves)
    return found


def _parts(program: Any) -> dict[str, str]:
    """What torch calls the parts of tensors that it takes apart -> lin.weight.qdata."""
    found = {}
    for name, value in program.state_dict.items():
        if hasattr(value, "__tensor_flatten__"):
            owner, _, own = f".{name}".rpartition(".")
            for number, part in enumerate(value.__tensor_flatten__()[0]):
                made = f"{owner}.parametrizations.{own}.original{number}".lstrip(".")
                found[made] = f"{name}.{part}"
    return found
