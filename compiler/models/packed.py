"""The archive's items of each parameter of a model, and the manifest's records of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import BLOCKS, SCALES, WeightRecord
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, StoredPart
from mxc.compiler.checkpoints.files.tensors import DTYPES, TensorRecord
from mxc.compiler.models.binding import BoundParameter
from mxc.compiler.models.blocks.devices import Device
from mxc.compiler.models.blocks.parameters import Parameter
from mxc.compiler.models.blocks.weights import TENSOR_SCALES
from mxc.compiler.packing.device_share import DeviceShare, Whole
from mxc.compiler.packing.float_scales import FloatRowScales, PackedNibbles
from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.quantized import Loss, QuantizedPart, QuantizedRows
from mxc.compiler.packing.stacked import Stacked
from mxc.formats.formats import F32, INT4, BlockFormat

#: The most tensors of one parameter that the manifest names; of more it names first and last.
_NAMED = 4

#: The device of a program for a single device.
_ONLY = Device()


def pack_items(
    bound: BoundParameter, panels: Mapping[str, str], device: Device = _ONLY
) -> tuple[PackItem, ...]:
    """Return the items of a parameter: one if it is plain, else elements, scales, tensor scales.

    panels: the panel layouts of the items that kernels read in panels, by key. device: the device
    whose share the items are; empty where it has no part of the parameter.
    """
    if not device.has(bound.parameter):
        return ()
    return tuple(_shared(item, bound, device, panels) for item in _whole_items(bound))


def _shared(
    item: PackItem, bound: BoundParameter, device: Device, panels: Mapping[str, str]
) -> PackItem:
    """Return a device's share of an item of a parameter."""
    key, source = f"{device.prefix}{item.key}", item.source
    if device.count > 1 and not isinstance(source, DeviceShare):
        source = _share(source, bound.parameter, device)
    return replace(item, key=key, source=source, panels=panels.get(key))


def _share(
    source: Whole | NDArray[Any], parameter: Parameter, device: Device
) -> Whole | NDArray[Any] | DeviceShare:
    """Return a device's share of a tensor [.., rows, ..]: a parameter, its scales or its factors.

    The dimensions after the rows, if any, are columns.
    """
    rows = parameter.row_axis
    differs = source.shape[: rows + 1] != parameter.shape[: rows + 1]
    if differs and isinstance(source, StoredPart):
        # What the rows are does not show in the shape that is stored.
        source = Stacked((source,), parameter.shape, source.dtype)
    shape = list(source.shape)
    axis = {"matrices": 0, "rows": rows, "columns": rows + 1}.get(parameter.split or "")
    if axis is None or axis == len(shape):
        return source
    shape[axis] //= device.count
    runs = parameter.runs(device.number, device.count)
    if isinstance(source, np.ndarray):
        flat = source.reshape(parameter.row_count, -1)
        return np.concatenate([flat[first : first + count] for first, count in runs]).reshape(shape)
    row_bytes = prod(source.shape[rows + 1 :]) * DTYPES[source.dtype].itemsize
    columns = (0, row_bytes)
    if parameter.split == "columns":
        columns = (device.number * row_bytes // device.count, row_bytes // device.count)
    return DeviceShare(source, tuple(shape), runs, row_bytes, columns)


def _whole_items(bound: BoundParameter) -> tuple[PackItem, ...]:
    """Return the undivided items of a parameter."""
    key, parameter, tensors = bound.key, bound.parameter, bound.tensors
    format = bound.blocks

    def item(suffix: str, source: Any, **more: Any) -> PackItem:
        return PackItem(
            key=key + suffix,
            source=source,
            layout=parameter.layout,
            experts=parameter.experts,
            **more,
        )

    elements = [tensor.elements for tensor in tensors]
    if format is None:
        return (item("", _source(elements, parameter.shape)),)
    if (dense := bound.dense) is not None:
        source = _source(elements, parameter.shape)
        return tuple(
            item(
                suffix,
                source,
                quantized=QuantizedRows(format=dense.format, recipe=dense.recipe, part=part),
            )
            for suffix, part in ((BLOCKS, QuantizedPart.ELEMENTS), (SCALES, QuantizedPart.SCALES))
        )
    shape = (*parameter.shape[:-1], format.blocks(parameter.shape[-1]))
    if format.scale == F32 or format.unit_scales:
        return tuple(item(suffix, source) for suffix, source in _under_floats(bound, format, shape))
    scales = [tensor.scales for tensor in tensors if tensor.scales is not None]
    items = [
        item(BLOCKS, _source(elements, (*shape, format.block_bytes))),
        item(SCALES, _source(scales, shape), scales=not format.tensor_scale),
    ]
    if format.tensor_scale:
        factors = np.concatenate([_factors(tensor) for tensor in tensors])
        items.append(PackItem(key=key + TENSOR_SCALES, source=factors.reshape(shape[:-1])))
    return tuple(items)


def _under_floats(
    bound: BoundParameter, format: BlockFormat, shape: tuple[int, ...]
) -> Iterator[tuple[str, StoredPart | TensorRecord | Stacked]]:
    """Yield the elements of a weight with float scales, and the scales as f32 per row or block.

    shape: [.., rows, blocks per row].
    """
    tensors = bound.tensors
    stored = (*shape, format.block_bytes)
    if format.element is INT4:
        yield BLOCKS, Stacked(tuple(PackedNibbles(t.elements) for t in tensors), stored, "U8")
    else:
        yield BLOCKS, _source([tensor.elements for tensor in tensors], stored)
    if not format.unit_scales:
        scales = tuple(
            FloatRowScales(tensor, format.block, height=format.rows) for tensor in tensors
        )
        *lead, rows, blocks = shape
        yield SCALES, Stacked(scales, (*lead, -(-rows // format.rows), blocks), "F32")
        return
    # Kernels read int8 elements as multiples of 1/64.
    unit = 1.0 if format.element.exponent else 1 / format.element.min_positive
    factors = tuple(FloatRowScales(tensor, tensor.shape[-1], unit) for tensor in tensors)
    yield TENSOR_SCALES, Stacked(factors, shape[:-1], "F32")


def weight_records(
    bound: BoundParameter,
    panels: Mapping[str, str],
    losses: Mapping[str, Loss],
    device: Device = _ONLY,
) -> dict[str, WeightRecord]:
    """Return the manifest's records of a parameter: one for elements and scales, by its key.

    losses: errors of quantizing, by the key of the elements. device: see pack_items.
    """
    items = {item.key: item for item in pack_items(bound, panels, device)}
    if not items:
        return {}
    key, shape = f"{device.prefix}{bound.key}", bound.parameter.share(device.count)
    format = bound.blocks
    if format is None:
        whole = items[key]
        record = WeightRecord(
            source=_names([tensor.elements.name for tensor in bound.tensors]),
            shape=shape,
            format=bound.format,
            layout=whole.full_layout,
        )
        return {key: record}
    elements, scales = items[key + BLOCKS], items.get(key + SCALES)
    recipes = sorted({tensor.recipe for tensor in bound.tensors})
    loss = losses.get(elements.key)
    found = {
        key: WeightRecord(
            source=_names([r.name for tensor in bound.tensors for r in tensor.records]),
            shape=shape,
            format=format.name,
            block=None if format.unit_scales else format.block,
            rows=format.rows if format.rows > 1 else None,
            axis=len(bound.parameter.shape) - 1,
            nibble_order="low-even" if format.element.bits == 4 else None,
            recipe=" or ".join(recipes) if bound.dense is None else str(bound.dense.recipe),
            layout=elements.full_layout,
            scale_layout=None if scales is None else scales.full_layout,
            sqnr=None if loss is None else loss.sqnr,
        )
    }
    if (factors := key + TENSOR_SCALES) in items:
        found[factors] = WeightRecord(
            source=f"the scales of {key}, a factor for each row",
            shape=items[factors].shape,
            format="f32",
        )
    return found


def array_items(arrays: Mapping[str, NDArray[Any]]) -> tuple[PackItem, ...]:
    """Return the items of parameters that the compiler computes."""
    return tuple(PackItem(key=key, source=array) for key, array in arrays.items())


def _source(
    parts: Sequence[StoredPart], shape: tuple[int, ...]
) -> TensorRecord | StoredPart | Stacked:
    if len(parts) > 1:
        return Stacked(tuple(parts), shape, parts[0].dtype)
    # A part that needs no decoding is read directly from the file.
    (part,) = parts
    plain = part.direct and part.record.shape == shape and part.record.dtype == part.dtype
    return part.record if plain else part


def _factors(tensor: CanonicalTensor) -> NDArray[np.float32]:
    """Return the tensor scale of each row of a tensor, float32 [rows]."""
    rows = prod(tensor.shape[:-1])
    if tensor.tensor_scale is None:
        return np.ones(rows, np.float32)
    factors = tensor.tensor_scale.factors()
    return np.repeat(factors, rows // factors.size)


def _names(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{names[0]} .. {names[-1]} ({len(names)} tensors)"
