"""Division of a model among devices: checks, and the weights on each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.binding import BoundParameter
from mxc.compiler.models.blocks.devices import Device
from mxc.compiler.models.decoder import Decoder
from mxc.compiler.models.options import Options
from mxc.compiler.models.packed import pack_items
from mxc.compiler.report import DeviceWeights
from mxc.errors import CheckpointError


def require_devices(decoder: Decoder, options: Options) -> None:
    """Raise CheckpointError where the model cannot be divided among `options.devices` devices."""
    count = options.devices
    if count < 1:
        raise CheckpointError(f"--devices {count}: wanted at least 1")
    if count > 1 and options.observe_inputs:
        raise CheckpointError(
            f"--devices {count}: inputs of linear layers are collected on one device alone; "
            "leave it out"
        )
    decoder.share(count)


def why_by_number(devices: int, bound: Sequence[BoundParameter]) -> str:
    """A note that experts are divided by number, where a part of their width would cut blocks; else
    ""."""
    for each in bound:
        if each.parameter.experts and each.parameter.split == "columns" and _cut(devices, each):
            why = _uneven_blocks(devices, each)
            return f"experts are divided among the devices by number: {why}"
    return ""


def require_blocks(decoder: Decoder, devices: int, bound: Sequence[BoundParameter]) -> None:
    """Raise CheckpointError where devices would have parts of blocks that share a scale, or there
    are no experts for each."""
    decoder.share(devices)
    for each in bound:
        if each.parameter.split == "columns" and _cut(devices, each):
            raise CheckpointError(
                f"--devices {devices}: {_uneven_blocks(devices, each)}; give fewer devices"
            )


def _cut(devices: int, bound: BoundParameter) -> bool:
    """Whether the columns of a weight would be divided inside a block."""
    blocks = bound.blocks
    if blocks is None or blocks.unit_scales:
        return False
    return bool(bound.parameter.shape[-1] // devices % blocks.block) and devices > 1


def _uneven_blocks(devices: int, bound: BoundParameter) -> str:
    columns, blocks = bound.parameter.shape[-1], bound.blocks
    assert blocks is not None
    return (
        f"{bound.key} is {bound.format}, in blocks of {blocks.block}, and each device would have "
        f"{columns // devices} of its {columns} columns, which is no multiple"
    )


def device_weights(
    bound: Sequence[BoundParameter],
    generated: Mapping[str, NDArray[np.float32]],
    devices: Sequence[Device],
    panels: Mapping[str, str],
) -> list[DeviceWeights]:
    """Return the bytes of weights on each device; empty for a single device.

    generated: the computed parameters of all devices. panels: see pack_items.
    """
    found = []
    for device in devices if len(devices) > 1 else ():
        tables = sum(a.nbytes for key, a in generated.items() if key.startswith(device.prefix))
        total, whole = tables, tables
        for each in bound:
            size = sum(item.bytes for item in pack_items(each, panels, device))
            total += size
            whole += size if each.parameter.split is None else 0
        found.append(DeviceWeights(bytes=total, on_every_device=whole))
    return found
