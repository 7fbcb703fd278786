"""Operations of torch in types that IREE's importer computes right.

    uint8, bool    in int32: the importer takes their elements for signed, and ends its process at a
                   product or a difference of bytes
    bf16, f16      in f32 where many numbers are added one after the other, and where a norm would
                   round its mean; torch does so too

What depends on torch is imported where it is used: only a program from torch needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

#: Types, by what they are computed in.
_WIDE = {"uint8": "int32", "bool": "int32", "bfloat16": "float32", "float16": "float32"}
_BYTES, _UNSIGNED, _NARROW = ("uint8",), ("uint8", "bool"), ("bfloat16", "float16")


@dataclass(frozen=True)
class _Group:
    """Operations of torch.ops.aten of which operands of these types are widened. `operands`: their
    places among the arguments."""

    types: tuple[str, ...]
    operands: tuple[int, ...]
    operations: tuple[str, ...]


_GROUPS = (
    _Group(
        types=_BYTES,
        operands=(0, 1),
        operations=(
            "add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "mul.Tensor",
            "mul.Scalar", "div.Tensor", "div.Scalar", "div.Tensor_mode",
            "div.Scalar_mode", "floor_divide.default", "remainder.Tensor", "remainder.Scalar",
            "fmod.Tensor", "fmod.Scalar", "__rshift__.Scalar", "__rshift__.Tensor",
            "bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar",
            "eq.Scalar", "eq.Tensor", "ne.Scalar", "ne.Tensor",
        ),
    ),
    _Group(
        types=_UNSIGNED,
        operands=(0, 1, 2),
        operations=(
            "minimum.default", "maximum.default", "clamp.default", "clamp_min.default",
            "clamp_max.default", "lt.Scalar", "lt.Tensor", "le.Scalar", "le.Tensor",
            "gt.Scalar", "gt.Tensor", "ge.Scalar", "ge.Tensor",
        ),
    ),
    _Group(_BYTES, (0, 1, 2), ("mm.default", "bmm.default", "addmm.default")),
    _Group(_BYTES, (0,), ("abs.default", "sum.default", "sum.dim_IntList")),
    _Group(_UNSIGNED, (0,), ("max.default", "min.default", "sort.default", "topk.default")),
    _Group(_NARROW, (0,), ("cumsum.default", "cumprod.default")),
    _Group((*_NARROW, "bool"), (0, 3), ("scatter_add.default",)),
    _Group(_NARROW, (0, 2, 3), ("native_layer_norm.default",)),
    _Group(_NARROW, (0, 1, 2), ("native_group_norm.default",)),
)  # fmt: skip


def widened_operations() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Each overload of torch.ops.aten with its decomposition."""
    import torch

    for group in _GROUPS:
        for name in group.operations:
            packet, overload = name.split(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload)
            yield operation, _widened(operation, group.types, group.operands)


def _widened(operation: Any, types: Sequence[str], places: Sequence[int]) -> Callable[..., Any]:
    """The operation on operands of these types in wider ones; NotImplemented without such."""

    def decomposition(*given: Any, **options: Any) -> Any:
        operands = [given[place] for place in places if place < len(given)]
        wide = {wide_type(each) for each in operands if _type(each) in types}
        if not wide:
            return NotImplemented
        arguments = [
            each.to(wide_type(each)) if place in places and _type(each) in types else each
            for place, each in enumerate(given)
        ]
        found = operation(*arguments, **options)
        kind = options.get("dtype") or _result_type(operands)

        def rounded(result: Any) -> Any:
            return result.to(kind) if result.dtype in wide else result

        return tuple(map(rounded, found)) if isinstance(found, tuple) else rounded(found)

    return decomposition


def wide_type(tensor: Any) -> Any:
    """The type in which a tensor of bytes, truth values or narrow floats is computed."""
    import torch

    return getattr(torch, _WIDE[_type(tensor)])


def _type(value: Any) -> str:
    """The name of the type of a tensor, "" for what is none."""
    return str(getattr(value, "dtype", "")).removeprefix("torch.")


def _result_type(operands: Sequence[Any]) -> Any:
    """The type of a result that has that of its operands, tensors and numbers."""
    import torch

    first = next(each for each in operands if _type(each))
    kinds = [torch.result_type(first, each) for each in operands if each is not None]
    return reduce(torch.promote_types, kinds)
