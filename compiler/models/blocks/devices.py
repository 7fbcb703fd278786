"""Devices that compute one model together: what is one device's, and sums over all of them.

Each device has a share of the heads, of the widths of MLPs and experts, and of the vocabulary, and
computes whole rows of activations with it: the products with its columns are addends of a sum over
the devices (parameters.py: Split). Norms, routers and what else is small is on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from iree.compiler import ir

from mxc.compiler.models.blocks.parameters import Parameter
from mxc.compiler.models.blocks.primitives import add
from mxc.dialects.devices import promise, transfer
from mxc.errors import CheckpointError


@dataclass(frozen=True)
class Device:
    """Device `number` of `count`."""

    number: int = 0
    count: int = 1

    @property
    def prefix(self) -> str:
        """What the names of its parameters and products begin with."""
        return f"device.{self.number}." if self.count > 1 else ""

    @property
    def affinity(self) -> ir.Attribute | None:
        """What says that something is on it; None where there is one device alone."""
        return promise(self.number) if self.count > 1 else None

    def has(self, parameter: Parameter) -> bool:
        """Whether something of it is on this device."""
        return parameter.split != "first" or self.number == 0


def devices_of(count: int) -> tuple[Device, ...]:
    """All of `count` devices."""
    return tuple(Device(number, count) for number in range(count))


def on_each(value: ir.Value, devices: Sequence[Device]) -> list[ir.Value]:
    """`value`, which is on the first device, on every device."""
    return [value, *(transfer(value, each.number) for each in devices[1:])]


def summed(parts: Sequence[ir.Value], devices: Sequence[Device]) -> list[ir.Value]:
    """The sum of parts [T, N], one of each device, on every device.

    All add in the order of the devices, and so have the same bits.
    """
    found = []
    for device in devices:
        here = [
            part if own.number == device.number else transfer(part, device.number)
            for part, own in zip(parts, devices, strict=True)
        ]
        total = here[0]
        for part in here[1:]:
            total = add(total, part)
        found.append(total)
    return found


def divided(devices: int, field: str, size: int) -> int:
    """The share of each device of a size that config.json says. Raises CheckpointError."""
    if size % devices:
        raise CheckpointError(
            f"--devices {devices}: {field} is {size}, which does not divide among {devices} "
            "devices; give a number that divides it"
        )
    return size // devices


def refuse_split(devices: int, what: str) -> NoReturn:
    """Raise CheckpointError for what is not divided among devices."""
    raise CheckpointError(
        f"--devices {devices}: the model has {what}, which mxc does not divide among devices; "
        "compile it for one"
    )
