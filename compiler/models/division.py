"""Division of a model among devices: checks, and the weights on each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.models.binding import Bound
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


def require_whole_blocks(devices: int, bound: Sequence[Bound]) -> None:
    """Raise CheckpointError where the division would split a block that shares a scale."""
    for each in bound:
        blocks, width = each.blocks, each.parameter.shape[-1] // devices
        if devices == 1 or each.parameter.split != "columns" or blocks is None:
            continue
        if not blocks.unit_scales and width % blocks.block:
            raise CheckpointError(
                f"--devices {devices}: {each.key} is {each.format}, in blocks of {blocks.block}, "
                f"and each device would have {width} of its {each.parameter.shape[-1]} columns, "
                "which is no multiple; give fewer devices"
            )


def device_weights(
    bound: Sequence[Bound],
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
