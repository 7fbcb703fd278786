"""Canonical tensors to items of the archive, and to the manifest's word on them."""

from __future__ import annotations

from collections.abc import Mapping

from mxc.compiler.checkpoints.canonical import CanonicalTensor
from mxc.compiler.checkpoints.stored import Stored, Woven
from mxc.compiler.checkpoints.tensors import TensorRecord
from mxc.compiler.packing.items import PackItem
from mxc.dialects.errors import CheckpointError
from mxc.dialects.manifest import BLOCKS, SCALES, WeightRecord


def pack_items(
    tensor: CanonicalTensor,
    *,
    key: str | None = None,
    layout: str = "identity",
    panels: Mapping[str, str] | None = None,
    experts: bool = False,
) -> tuple[PackItem, ...]:
    """One item for a plain tensor; the blocks and the scales of a weight in an MX format or nvfp4.

    Keys are `key` (the tensor's name, if none is given) and, of a weight in blocks, `key_blocks`
    and `key_scales`; `panels` has the panel layouts by these keys. The bytes are canonical
    whatever the dialect. The tensor scale of nvfp4 is not packed: see CanonicalTensor.tensor_scale.
    Raises CheckpointError for formats that have scales and no kernel (q8_0, fp8 in tiles).
    """
    key = tensor.name if key is None else key
    places = panels or {}
    if tensor.scales is None and tensor.tensor_scale is None:
        return (
            PackItem(
                key=key,
                source=_source(tensor.elements),
                layout=layout,
                panels=places.get(key),
                experts=experts,
            ),
        )
    format = tensor.block_format
    if format is None or tensor.scales is None:
        raise CheckpointError(
            f"{tensor.place}: no kernel takes weights in {tensor.format} with scales; "
            "`mxc convert` and `mxc quantize` make another checkpoint of it"
        )
    return tuple(
        PackItem(
            key=key + suffix,
            source=_source(stored),
            layout=layout,
            panels=places.get(key + suffix),
            experts=experts,
            scales=suffix == SCALES and not format.tensor_scale,
        )
        for suffix, stored in ((BLOCKS, tensor.elements), (SCALES, tensor.scales))
    )


def weight_record(
    tensor: CanonicalTensor, layout: str = "identity", scale_layout: str | None = None
) -> WeightRecord:
    """What the manifest says of a tensor that is packed in these layouts."""
    format = tensor.block_format
    if format is None:
        return WeightRecord(
            source=tensor.elements.name, shape=tensor.shape, format=tensor.format, layout=layout
        )
    return WeightRecord(
        source=", ".join(dict.fromkeys(record.name for record in tensor.records)),
        shape=tensor.shape,
        format=tensor.format,
        block=format.block,
        axis=tensor.axis,
        nibble_order="low-even" if format.element.bits == 4 else None,
        recipe=tensor.recipe,
        layout=layout,
        scale_layout=scale_layout,
    )


def _source(stored: Stored | Woven) -> TensorRecord | Stored | Woven:
    # What needs no decoding is read as it lies.
    same = stored.direct and stored.shape == stored.record.shape
    return stored.record if same and stored.dtype == stored.record.dtype else stored
